"""The two-loop recursion of L-BFGS on inner products alone (Chen et al., 2014, "Large-scale L-BFGS using MapReduce").

A direction is a combination of the last m steps s, the changes y of the gradient along them, and the gradient. Its
coefficients follow from the inner products of these 2 m + 1 vectors, so no vector ever leaves the servers.
"""

from __future__ import annotations

import numpy as np

from ps2.array_types import Float64s

# Maximum m, as in pyspark.ml.
PAIRS = 10
# A step along which the gradient hardly grows gives no curvature.
MIN_CURVATURE = 1e-10


class History:
    """Inner products of the last steps, in ``size`` slots.

    The basis has 2 * size + 1 vectors: the steps by slot, the changes of the gradient by slot, and the gradient.

    Attributes:
        slots: the slots in use, the oldest first.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._dots = np.zeros((2 * size + 1, 2 * size + 1))
        self.slots: list[int] = []

    @property
    def next_slot(self) -> int:
        """The slot of the next step: a free one, or that of the oldest step."""
        if len(self.slots) < self.size:
            return next(slot for slot in range(self.size) if slot not in self.slots)
        return self.slots[0]

    @property
    def is_empty(self) -> bool:
        return not self.slots

    def add(self, products: Float64s) -> None:
        """Add a step.

        Args:
            products: shape (3, 2 * size + 1): the inner products of the new step, change and gradient with the basis,
                which contains them already. Products with unused slots do not matter.
        """
        slot = self.next_slot
        if len(self.slots) == self.size:
            self.slots.pop(0)
        for vector, row in zip((slot, self.size + slot, 2 * self.size), products, strict=True):
            self._dots[vector] = self._dots[:, vector] = row
        s, y = slot, self.size + slot
        if self._dots[s, y] > MIN_CURVATURE * self._dots[y, y]:
            self.slots.append(slot)

    def begin(self, square: float) -> None:
        """Set the inner product of the first gradient with itself."""
        self._dots[-1, -1] = square

    def forget(self) -> None:
        """Forget all steps; the gradient stays."""
        self.slots = []

    def direction(self) -> tuple[Float64s, float]:
        """Return the coefficients of ``-H g`` over the basis, and its inner product with the gradient."""
        size, dots = self.size, self._dots
        coefficients = np.zeros(2 * size + 1)
        coefficients[-1] = -1.0  # p = -g
        alphas: dict[int, float] = {}
        for s in reversed(self.slots):  # alpha = s p / s y; p -= alpha y
            y = size + s
            alphas[s] = float(dots[s] @ coefficients / dots[s, y])
            coefficients[y] -= alphas[s]
        if self.slots:  # p *= s y / y y
            s = self.slots[-1]
            coefficients *= dots[s, size + s] / dots[size + s, size + s]
        for s in self.slots:  # beta = y p / s y; p += (alpha - beta) s
            y = size + s
            coefficients[s] += alphas[s] - float(dots[y] @ coefficients / dots[s, y])
        return coefficients, float(dots[-1] @ coefficients)
