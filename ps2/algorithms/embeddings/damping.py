"""By how much workers' changes of a word count, where several workers have changed it from one beginning.

Workers that begin at the same vectors and train for a while each make a change; the servers add them up. What one
worker makes of a word that comes rarely is a small step, and the sum of all is the step of all their sentences. What it
makes of a frequent word ends near where its gradient is 0, and the sum would go beyond: there their mean is right. In
between, take the loss of a word for a parabola, along which n updates leave ``exp(-h)`` of the way, h = n * rate *
curve. A worker goes ``1 - exp(-h)`` of it, and all w of them, one after the other, would ``1 - exp(-w h)``; so of the
sum

    factor(h, w) = (1 - exp(-w h)) / (w (1 - exp(-h)))

is taken: 1 for small h, 1/w for large h. The vectors of other words move meanwhile, so it is no parabola: the more
workers, the larger the curve has to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.problem import Recipe
from ps2.ops.kernels import Float64s, Int64s

Float32s = npt.NDArray[np.float32]

ALL = (slice(None), slice(None))
# The curve, by the square of how many workers there are: what keeps vectors in bounds, found by trial of 2, 4 and 8.
CURVE = 0.005


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

    @property
    def most(self) -> float:
        """Updates of the most frequent word, for one token."""
        return float(max(self.vectors.max(), self.contexts.max()))

    def factors(self, tokens: float, rate: float, workers: int, words: Sequence[Any] = ALL) -> list[Float32s]:
        """Return what workers' changes by so many tokens each are multiplied with.

        Args:
            words: which ones, of each table that there is.
        """
        tables = (self.vectors, self.contexts)
        return [_factors(table[some] * tokens, rate, workers) for table, some in zip(tables, words, strict=False)]


def _factors(updates: Float64s, rate: float, workers: int) -> Any:
    h = np.maximum(updates * (rate * CURVE * workers**2), 1e-9)
    return (np.expm1(-workers * h) / (workers * np.expm1(-h))).astype(np.float32)
