"""A table whose columns are cut among servers: the form in which these compute on vectors (``skipgrams.ops``)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.problem import Recipe
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.matrix.partition import partition_bounds

Float32s = npt.NDArray[np.float32]
# Aliases that are sent at once.
MOST_ALIASES = 1 << 22


@dataclass(frozen=True, eq=False)
class Slices:
    """One table; picklable.

    Attributes:
        recipe: how to train.
        matrix: float32, one row; of each server's part, ``vocabulary`` numbers at the end are no columns.
    """

    recipe: Recipe
    matrix: DCVMatrix

    @property
    def parts(self) -> int:
        """Into how many parts the columns are cut."""
        return len(self._bounds) - 1

    def fill(self, seed: int) -> None:
        """Fill it as gensim does: uniformly between -1 and 1, over the size of a vector."""
        most = 1.0 / self.recipe.size
        self.matrix.fillRandom("uniform", seed, low=-most, high=most)

    def pull(self) -> Float32s:
        """Return all vectors, shape (vocabulary, size)."""
        return _joined(self.recipe, self.matrix.pull([0])[0], self._bounds)

    def free(self) -> None:
        self.matrix.free()

    @property
    def _bounds(self) -> tuple[int, ...]:
        bounds: tuple[int, ...] = self.matrix._first._route.bounds
        return bounds


def row_of(recipe: Recipe, servers: int, name: str | None) -> DCV:
    """Make what ``Slices`` are of."""
    words, parts = recipe.vocabulary, min(servers, recipe.size)
    # With more servers than columns each part is one column, and what is behind it.
    align = words if servers < recipe.size else 2 * words
    return DCV.dense(words * (recipe.size + parts), 1, align=align, name=name)


def cut_again(recipe: Recipe, found: DCV, servers: int, name: str) -> DCV:
    """Return a row that was cut among other servers, if it was, cut among these; aliases are to be put there anew.

    Args:
        found: what ``row_of`` has made; given back if it is not what is returned.
        name: of it, and of what takes its place.

    Raises:
        LimitError: there is no room for it beside the other parts.
    """
    parts = found.dim // recipe.vocabulary - recipe.size
    if parts == min(servers, recipe.size):
        return found
    bounds = partition_bounds(found._spec, parts)
    vectors = _joined(recipe, found.pull(), bounds)
    found.free()
    row = row_of(recipe, servers, name)
    none = np.zeros(recipe.vocabulary, np.float32)
    cut, begin = [], 0
    for first, end in pairwise(Slices(recipe, row.matrix())._bounds):
        width = (end - first) // recipe.vocabulary - 1
        cut += [vectors[:, begin : begin + width].reshape(-1), none]
        begin += width
    row.push(np.concatenate(cut))
    return row


def _joined(recipe: Recipe, numbers: Any, bounds: tuple[int, ...]) -> Float32s:
    words = recipe.vocabulary
    parts = [numbers[begin : end - words].reshape(words, -1) for begin, end in pairwise(bounds)]
    return np.ascontiguousarray(np.hstack(parts))


def put_aliases(vectors: Slices, contexts: Slices, whole: Any, others: Any) -> None:
    """Bring an alias table to all servers."""
    matrix, other = vectors.matrix, contexts.matrix
    for begin in range(0, len(whole), MOST_ALIASES):
        some = slice(begin, begin + MOST_ALIASES)
        matrix.apply(
            "skipgrams.put_aliases",
            contexts=other,
            whole=whole[some],
            others=others[some].view(np.uint32),
            words=len(whole),
            begin=begin,
        )
