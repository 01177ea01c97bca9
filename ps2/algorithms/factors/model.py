"""Trained factors of users and items, usable without Spark and servers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.factors.plan import FittedFactors
from ps2.algorithms.factors.side import Side
from ps2.algorithms.factors.top_k import Candidates, lengths, pair_products
from ps2.algorithms.frame.array_files import ArrayModel, reading, write_arrays
from ps2.algorithms.training.record import TrainingHistory
from ps2.array_types import Float32s, Int64s
from ps2.data.ids import Ids, Names
from ps2.errors import ConfigError, InputError, ShapeError
from ps2.number_checks import is_whole

FORMAT = "ps2.factors.v1"
# A product of two vectors has to be a float32.
MAX_PRODUCT = 1e37


class MatrixFactors(ArrayModel):
    """The factors of a trained ``MatrixFactorization``; picklable.

    A rating is predicted as p . q, with the vectors p of the user and q of the item; with biases, as p . q + mean +
    b_user + b_item. All numbers are float32, and a prediction is the same to the last bit however it is computed.

    Attributes:
        users, items: ids, ascending: sequences.
        userFactors, itemFactors: float32, shapes (users, rank) and (items, rank).
        userBias, itemBias: float32, shapes (users,) and (items,); None: the model has no biases.
        mean: the mean rating; 0 without biases.

    Example::

        factors = MatrixFactors.load("models/films")
        factors.recommend(17, 10)  # [(item, rating), ...]
        factors.predict([17, 17], [3, 5])
    """

    _MODEL_CLASS = "ps2.algorithms.recommendation.MatrixFactorizationModel"

    def __init__(  # noqa: PLR0913 - most of them are keywords
        self,
        users: Any,
        items: Any,
        userFactors: npt.ArrayLike,
        itemFactors: npt.ArrayLike,
        userBias: npt.ArrayLike | None = None,
        itemBias: npt.ArrayLike | None = None,
        mean: float = 0.0,
    ) -> None:
        """Args and errors: see ``Side.from_arrays``.

        Raises:
            ShapeError: users and items have vectors of different sizes.
            InputError: only one side has biases, or products of vectors are no float32.
        """
        self._sides = (
            Side.from_arrays("user", users, userFactors, userBias),
            Side.from_arrays("item", items, itemFactors, itemBias),
        )
        self.mean = float(np.float32(mean))
        self._check()

    @staticmethod
    def of(fitted: FittedFactors, user_kind: pa.DataType, item_kind: pa.DataType) -> MatrixFactors:
        """Return the result of a training; the kinds are the ids' types in DataFrames."""
        factors = object.__new__(MatrixFactors)
        factors._sides = (
            Side(Names(fitted.users.values, "user"), user_kind, fitted.user_factors, fitted.user_bias),
            Side(Names(fitted.items.values, "item"), item_kind, fitted.item_factors, fitted.item_bias),
        )
        factors.mean = float(np.float32(fitted.mean))
        factors._check()
        return factors

    def fitted(self) -> FittedFactors:
        """Return the result of a training with these factors, with which another one begins."""
        user, item = self._sides
        history = TrainingHistory([], [], [], 0, 0, 0, "")
        ids = Ids(user.names.values), Ids(item.names.values)
        return FittedFactors(*ids, user.factors, item.factors, user.bias, item.bias, self.mean, history)

    def _check(self) -> None:
        user, item = self._sides
        if user.factors.shape[1] != item.factors.shape[1]:
            raise ShapeError(
                f"item: expected vectors of the users' size {user.factors.shape[1]}, got {item.factors.shape[1]}"
            )
        if (user.bias is None) != (item.bias is None):
            raise InputError("biases: expected those of users and of items, or none, got one of the two")
        if user.bias is None and self.mean:
            raise InputError(f"mean: expected 0 for a model without biases, got {self.mean:g}")
        largest = [float(np.abs(matrix).max()) for matrix in (self._left, self._right.vectors)]
        if not largest[0] * largest[1] * self._left.shape[1] < MAX_PRODUCT:
            raise InputError(
                f"factors: expected vectors whose products are below {MAX_PRODUCT:g}, got elements up to "
                f"{largest[0]:g} and {largest[1]:g}"
            )

    def __repr__(self) -> str:
        biases = ", with biases" if self.hasBiases else ""
        return f"MatrixFactors(users={len(self.users):,}, items={len(self.items):,}, rank={self.rank}{biases})"

    # -- the arrays -------------------------------------------------------------------------------------------------

    @property
    def user(self) -> Side:
        """Ids and arrays of the users."""
        return self._sides[0]

    @property
    def item(self) -> Side:
        """Ids and arrays of the items."""
        return self._sides[1]

    @property
    def users(self) -> Names:
        return self.user.names

    @property
    def items(self) -> Names:
        return self.item.names

    @property
    def userFactors(self) -> Float32s:
        return self.user.factors

    @property
    def itemFactors(self) -> Float32s:
        return self.item.factors

    @property
    def userBias(self) -> Float32s | None:
        return self.user.bias

    @property
    def itemBias(self) -> Float32s | None:
        return self.item.bias

    @property
    def rank(self) -> int:
        """Size of the vectors."""
        return int(self.userFactors.shape[1])

    @property
    def hasBiases(self) -> bool:
        """Whether predictions have a mean and biases."""
        return self.user.bias is not None

    @property
    def is_light(self) -> bool:
        """Whether it is small enough to travel in a closure."""
        return False

    # -- files -----------------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: str, url: str, content: Any) -> MatrixFactors:
        with reading(path, content, FORMAT, "a matrix factorization"):
            user, item = (Side.read(url, name, content["ids"][name], content["files"]) for name in ("user", "item"))
            if user.factors.shape[1] != item.factors.shape[1] or (user.bias is None) != (item.bias is None):
                raise ValueError(f"users and items do not go together: {user.factors.shape} and {item.factors.shape}")
            mean = float(content["mean"])
        factors = object.__new__(MatrixFactors)
        factors._sides, factors.mean = (user, item), mean
        return factors

    def write(self, url: str) -> dict[str, Any]:
        sides = {"user": self.user, "item": self.item}
        arrays = {f"{name}_{part}": array for name, side in sides.items() for part, array in side.arrays().items()}
        kinds = {name: str(side.kind) for name, side in sides.items()}
        return {"format": FORMAT, "ids": kinds, "mean": self.mean, "files": write_arrays(url, arrays)}

    # -- predictions -----------------------------------------------------------------------------------------------

    def predict(self, users: Any, items: Any) -> Float32s:
        """Predict the rating of each pair, float32, shape (n,); NaN if the user or the item is unknown.

        Args:
            users, items: ids: Arrow or NumPy arrays, or sequences; as many of the one as of the other.

        Raises:
            InputError: ids are of another type.
            ShapeError: there are not as many users as items.
        """
        positions = self.users.positions(users), self.items.positions(items)
        if len(positions[0]) != len(positions[1]):
            raise ShapeError(f"items: expected {len(positions[0]):,}, as many as users, got {len(positions[1]):,}")
        return self.ratings(*positions)

    def ratings(self, users: Int64s, items: Int64s) -> Float32s:
        """Like ``predict``, for positions of users and items; -1: unknown."""
        return pair_products(self._left, self._right.vectors, users, items)

    def recommend(self, user: Any, k: int = 10, exclude: Iterable[Any] = ()) -> list[tuple[Any, float]]:
        """Return the k items with the largest predicted ratings for a user, and these; of equal ones, the larger id.

        Args:
            k: the number of items, at least 1; all items if there are fewer.
            exclude: items to leave out, such as those that the user has rated; unknown ones are ignored.

        Raises:
            InputError: the user is unknown, or an id is of another type.
            ConfigError: k is below 1.
        """
        return self._named(self.item, *self._best_for(self.user, user, k, exclude))

    def recommendUsers(self, item: Any, k: int = 10, exclude: Iterable[Any] = ()) -> list[tuple[Any, float]]:
        """Like ``recommend``, with users and items swapped: the users with the largest ratings for an item."""
        return self._named(self.user, *self._best_for(self.item, item, k, exclude))

    def similarItems(self, item: Any, k: int = 10) -> list[tuple[Any, float]]:
        """Return the items whose vectors have the largest cosines with the item's, and these; biases do not count.

        Raises:
            InputError: the item is unknown.
            ConfigError: k is below 1.
        """
        return self._similar(self.item, self._item_units, item, k)

    def similarUsers(self, user: Any, k: int = 10) -> list[tuple[Any, float]]:
        """Like ``similarItems``, for users."""
        return self._similar(self.user, self._user_units, user, k)

    def best(self, places: Int64s, k: int, for_users: bool) -> tuple[Float32s, Int64s]:
        """Return ``Candidates.best`` of the other side for the users, or the items, at some places."""
        check_k(k)
        if for_users:
            return self._right.best(self._left[places], k)
        return self._user_candidates.best(self._right.vectors[places], k)

    def _best_for(self, own: Side, id: Any, k: int, exclude: Iterable[Any]) -> tuple[Float32s, Int64s]:
        check_k(k)
        other = self.item if own is self.user else self.user
        out = other.names.positions(exclude)
        position = np.array([own.names.position(id)])
        scores, positions = self.best(position, k + len(np.unique(out[out >= 0])), own is self.user)
        chosen = np.flatnonzero(~np.isin(positions[0], out))[:k]
        return scores[0][chosen], positions[0][chosen]

    def _similar(self, side: Side, units: Candidates, id: Any, k: int) -> list[tuple[Any, float]]:
        check_k(k)
        own = side.names.position(id)
        scores, positions = units.best(units.vectors[own : own + 1], k + 1)
        chosen = np.flatnonzero(positions[0] != own)[:k]
        return self._named(side, scores[0][chosen], positions[0][chosen])

    @staticmethod
    def _named(side: Side, scores: Float32s, positions: Int64s) -> list[tuple[Any, float]]:
        return list(zip(side.names.named(positions), scores.astype(float).tolist(), strict=True))

    # -- arrays ----------------------------------------------------------------------------------------------------

    def extended(self) -> tuple[Float32s, Float32s]:
        """Return vectors of users and of items whose dot products are the predictions.

        Without biases, these are the factors. With biases, two elements more: (p, mean + b_user, 1) and (q, 1, b_item).
        """
        return self._left, self._right.vectors

    @cached_property
    def _left(self) -> Float32s:
        factors, bias = self.user.factors, self.user.bias
        if bias is None:
            return factors
        return np.column_stack([factors, bias + np.float32(self.mean), np.ones_like(bias)])

    @cached_property
    def _right(self) -> Candidates:
        factors, bias = self.item.factors, self.item.bias
        return Candidates(factors if bias is None else np.column_stack([factors, np.ones_like(bias), bias]))

    @cached_property
    def _user_candidates(self) -> Candidates:
        return Candidates(self._left)

    @cached_property
    def _user_units(self) -> Candidates:
        return Candidates(_units(self.user.factors))

    @cached_property
    def _item_units(self) -> Candidates:
        return Candidates(_units(self.item.factors))

    def __getstate__(self) -> dict[str, Any]:
        return {"_sides": self._sides, "mean": self.mean}


def check_k(k: Any) -> None:
    """Raise ConfigError unless k is an integer above 0."""
    if not is_whole(k) or k < 1:
        raise ConfigError(f"k: expected an integer, at least 1, got {k!r}")


def _units(vectors: Float32s) -> Float32s:
    """Return the vectors divided by their lengths; zeros stay."""
    divisors = lengths(vectors)
    return np.ascontiguousarray(vectors / np.where(divisors > 0, divisors, 1.0)[:, None], np.float32)
