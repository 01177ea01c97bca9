"""By how much workers' changes of a word count, where several workers have changed it from one beginning.

Workers that begin at the same vectors and train for a while each make a change; the servers add them up. What one
worker makes of a word that comes rarely is a small step, and the sum of all is the step of all their sentences. What it
makes of a frequent word ends near where its gradient is 0, and the sum would go beyond: there their mean is right. In
between, take the loss of a word for a parabola, along which n updates leave ``exp(-h)`` of the way, h = n * rate *
curve. A worker goes ``1 - exp(-h)`` of it, and all w of them, one after the other, would ``1 - exp(-w h)``; so of the
sum

    factor(h, w) = (1 - exp(-w h)) / (w (1 - exp(-h)))

is taken: 1 for small h, 1/w for large h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.problem import Recipe
from ps2.ops.kernels import Float64s, Int64s

Float32s = npt.NDArray[np.float32]

# The curve of the loss of one pair, in the direction of an update, and the share of updates in one direction.
CURVE = 0.1


@dataclass(frozen=True, eq=False)
class Damping:
    """Of a training.

    Attributes:
        vectors, contexts: float64, shape (vocabulary,): updates of each word in the two tables, for one token.
    """

    vectors: Float64s
    contexts: Float64s

    @staticmethod
    def of(recipe: Recipe, frequencies: Int64s, chances: Float64s) -> Damping:
        """Args:
        frequencies: how often each word comes.
        chances: of each word to be a negative.
        """
        shares = frequencies / max(frequencies.sum(), 1)
        # A word is a context as often as others are its contexts: window + 1 times, in the mean.
        pairs = {"skipgram": recipe.window + 1.0, "cbow": 1.0, "edges": 0.5}[recipe.architecture]
        inputs = recipe.window + 1.0 if recipe.architecture == "cbow" else pairs * (1 + recipe.negative)
        vectors, contexts = shares * inputs, pairs * (shares + recipe.negative * chances)
        return Damping(vectors + contexts, vectors + contexts) if recipe.shares_table else Damping(vectors, contexts)

    def factors(self, tokens: float, rate: float, workers: int) -> tuple[Float32s, Float32s]:
        """Return what workers' changes by so many tokens each are multiplied with, for the two tables."""
        return _factors(self.vectors * tokens, rate, workers), _factors(self.contexts * tokens, rate, workers)


def _factors(updates: Float64s, rate: float, workers: int) -> Any:
    h = np.maximum(updates * (rate * CURVE), 1e-9)
    return (np.expm1(-workers * h) / (workers * np.expm1(-h))).astype(np.float32)
