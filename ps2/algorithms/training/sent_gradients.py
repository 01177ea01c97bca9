"""The form in which a worker's gradient travels: value by value, or as sufficient factors (Petuum, section 3.4).

The gradient of a model with K numbers a feature is, for some models, the sum over b rows of x_i (D numbers) times
slopes_i (K numbers). The factors are b (D + K) numbers, or fewer where rows are sparse; the sum has K D.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy.typing as npt

from ps2.algorithms.training.record import Gradients
from ps2.array_types import Float64s, Int64s
from ps2.client.dcv import DCV
from ps2.client.factors import sizes

Array = npt.NDArray[Any]

# Whether gradients travel as sufficient factors: where these take fewer bytes, or in any case, or never.
FactorsName = Literal["auto", "always", "never"]
FACTORS: tuple[FactorsName, ...] = get_args(FactorsName)


@dataclass(frozen=True, eq=False)
class SentValues:
    """A gradient at columns, value by value."""

    values: Array
    columns: Int64s

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def add_to(self, vector: DCV) -> None:
        vector.add(self.values.astype(vector.dtype, copy=False), self.columns)


@dataclass(frozen=True, eq=False)
class SentFactors:
    """A gradient as the sum of ``x_i slopes_i'`` over rows, which the servers take (Xing et al., 2016, section 3.4).

    Attributes:
        slopes: shape (n, width): derivatives by each row's margins.
        x: scipy CSR or an array, shape (n, k).
        keys: int64, shape (k,): its features.
        nbytes: size on the network.
    """

    slopes: Float64s
    x: Any
    keys: Int64s
    nbytes: int

    def add_to(self, vector: DCV) -> None:
        vector.addFactors(self.slopes.astype(vector.dtype, copy=False), self.x, self.keys)


@dataclass(eq=False)
class FormChoice:
    """Chooses the form of a worker's gradients; picklable.

    Attributes:
        asked: "auto" compares the bytes of each gradient.
        sent: how many there were since ``reported``, those that travelled as factors, and the bytes of both forms.
    """

    asked: FactorsName
    sent: dict[str, int] = field(default_factory=dict)

    def factor_bytes(self, vector: DCV, width: int, x: Any, keys: Int64s) -> int | None:
        """Return the bytes of a gradient that is to travel as factors to a dense vector; None: value by value."""
        as_factors, as_values = sizes(vector, width, x, keys)
        is_factored = self.asked == "always" or (self.asked == "auto" and as_factors < as_values)
        now = {"gradients": 1, "factored": int(is_factored), "factor_bytes": as_factors, "value_bytes": as_values}
        self.sent = {name: self.sent.get(name, 0) + value for name, value in now.items()}
        return as_factors if is_factored else None

    def reported(self) -> dict[str, int]:
        """Return what a worker reports of its gradients since the last call, for ``gradients_of``."""
        sent, self.sent = self.sent, {}
        return sent


def gradients_of(report: Mapping[str, Any]) -> Gradients | None:
    """Return what the workers of a clock reported of their gradients; None: there was no choice."""
    if not report.get("gradients"):
        return None
    names = ("gradients", "factored", "factor_bytes", "value_bytes")
    return Gradients(*(int(report[name]) for name in names))
