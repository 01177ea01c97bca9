"""Recommends the items of an export to users, without Spark and servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from ps2.algorithms.factors.top_k import Candidates, Excluded
from ps2.array_types import Float32s, Int64s
from ps2.data.ids import Names
from ps2.errors import ConfigError, InputError, ShapeError
from ps2.number_checks import is_whole

if TYPE_CHECKING:
    from ps2.serving.approximate import ApproximateCandidates

# How the best items are selected. A list of allowed items is searched exactly in any case.
IndexName = Literal["exact", "approximate"]
EXACT, APPROXIMATE = INDEXES = get_args(IndexName)
# Makes the index of items' vectors.
NewIndex = Callable[[Float32s], "Candidates | ApproximateCandidates"]
# A list of ids for all users, or a list for each user; None: no such list.
IdLists = Sequence[Any] | None
# The maximum number of users for whom items are selected at once, and of their exclusions.
BLOCK_USERS, BLOCK_EXCLUSIONS = 256, 1 << 22


def index_class(index: str) -> NewIndex:
    """Return the class of an index; raise ConfigError if it is unknown or needs a package that is not installed."""
    if index == EXACT:
        return Candidates
    if index != APPROXIMATE:
        raise ConfigError(f"index: expected {' or '.join(INDEXES)}, got {index!r}")
    from ps2.serving.approximate import ApproximateCandidates

    return ApproximateCandidates


class UserVectors(NamedTuple):
    """The vectors of users, float32 of shape (m, d), and whether the export knows each user, bool of shape (m,)."""

    vectors: Float32s
    known: npt.NDArray[np.bool_]


# Returns the vectors of users of a request.
Users = Callable[[Sequence[Any]], UserVectors]


class Recommendations(NamedTuple):
    """The best items for each user.

    Attributes:
        items: the ids for each user, the best first; of equal scores, the larger id is first.
        scores: their scores: predicted ratings, or the cosines of two towers.
        known: whether the export knows each user, bool of shape (m,).
        export: the number of the export in use.
    """

    items: list[list[Any]]
    scores: list[list[float]]
    known: npt.NDArray[np.bool_]
    export: int


class KnownUsers:
    """The users of an export by id. An unknown user has the mean of all vectors: its score is the mean score."""

    def __init__(self, names: Names, vectors: Float32s) -> None:
        self._names, self._vectors = names, vectors
        self._mean = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)

    def __call__(self, users: Sequence[Any]) -> UserVectors:
        positions = self._names.positions(users)
        known = positions >= 0
        return UserVectors(np.where(known[:, None], self._vectors[positions], self._mean), known)


class Recommender:
    """Selects the best items of an export. Thread-safe."""

    def __init__(self, items: Names, vectors: Float32s, users: Users, new_index: NewIndex) -> None:
        """``items``: the items' ids, ascending; ``vectors``: float32 of shape (n, d)."""
        self._items, self._vectors, self._users = items, vectors, users
        self._candidates = new_index(vectors)

    def recommend(self, users: Sequence[Any], k: int, exclude: IdLists, items: IdLists, export: int) -> Recommendations:
        """See ``Scorer.recommend``; ``export`` is the number of the export."""
        if not is_whole(k) or k < 1:
            raise ConfigError(f"k: expected an integer, at least 1, got {k!r}")
        vectors, known = self._users(users)
        excluded = self._positions("exclude", exclude, len(users))
        allowed = self._positions("items", items, len(users))
        max_excluded = max((len(positions) for positions in excluded), default=0)
        step = max(1, min(BLOCK_USERS, BLOCK_EXCLUSIONS // max(1, max_excluded)))
        if len(set(map(id, allowed))) > 1:
            step = 1
        result = Recommendations([], [], known, export)
        for begin in range(0, len(users), step):
            block = slice(begin, begin + step)
            subset = None if items is None else np.unique(allowed[begin][allowed[begin] >= 0])
            for scores, positions in zip(*self._best(vectors[block], k, excluded[block], subset), strict=True):
                result.items.append(self._items.named(positions[positions >= 0]))
                result.scores.append(scores[positions >= 0].astype(float).tolist())
        return result

    def _positions(self, name: str, ids: IdLists, num_users: int) -> list[Int64s]:
        """Return the positions of the items in each user's list; a list for all users is the same object each time."""
        if ids is None:
            return [np.empty(0, np.int64)] * num_users
        if not isinstance(ids, (list, tuple, np.ndarray)):
            raise InputError(f"{name}: expected a list of items' ids, or a list for each user, got {ids!r:.80}")
        num_lists = sum(isinstance(value, (list, tuple, np.ndarray)) for value in ids)
        if not num_lists:
            return [self._items.positions(ids)] * num_users
        if not num_lists == len(ids) == num_users:
            raise ShapeError(
                f"{name}: expected a list of items' ids, or a list for each of {num_users:,} users, got {num_lists:,} "
                f"lists among {len(ids):,} values"
            )
        return [self._items.positions(values) for values in ids]

    def _best(
        self, vectors: Float32s, k: int, excluded: list[Int64s], allowed: Int64s | None
    ) -> tuple[Float32s, Int64s]:
        """Return the scores and positions of the best items for some users; ``allowed`` ascends; None: all items."""
        owners = np.repeat(np.arange(len(excluded)), [len(positions) for positions in excluded])
        excluded_positions = np.concatenate(excluded)
        if allowed is None:
            pairs = Excluded.from_pairs(owners, excluded_positions, len(excluded)) if len(owners) else None
            return self._candidates.best(vectors, k, pairs)
        is_allowed = np.isin(excluded_positions, allowed)
        in_subset = np.searchsorted(allowed, excluded_positions[is_allowed])
        pairs = Excluded.from_pairs(owners[is_allowed], in_subset, len(excluded))
        scores, best = Candidates(self._vectors[allowed]).best(vectors, k, pairs)
        return scores, np.where(best >= 0, np.append(allowed, -1)[best], -1)
