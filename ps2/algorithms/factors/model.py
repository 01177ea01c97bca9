"""Trained factors of users and items, usable without Spark and servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.factors.plan import FittedFactors
from ps2.algorithms.factors.top_k import Candidates, Excluded, norms_of, pair_products
from ps2.algorithms.frame.array_files import ArrayModel, ModelFiles
from ps2.algorithms.frame.name_files import NAME_ARRAYS, name_arrays, named_vectors, names_from_arrays
from ps2.algorithms.frame.vector_files import export_vectors
from ps2.algorithms.training.record import TrainingHistory
from ps2.array_types import Float32s, Int64s
from ps2.data.ids import Ids, Names
from ps2.data.plain_arrays import as_array
from ps2.errors import ConfigError, InputError, ShapeError
from ps2.number_checks import is_whole
from ps2.storage.export_writing import Content, Export, write_export
from ps2.storage.exports import Description

Array = npt.NDArray[Any]

# The maximum of: the largest absolute user factor * the largest absolute item factor * rank. Dot products of vectors
# below this cannot exceed float32's range.
MAX_PRODUCT = 1e37
SIDES = ("user", "item")
ID_TYPES = ("int8", "int16", "int32", "int64", "string")


@dataclass(frozen=True, eq=False)
class Side:
    """The ids and vectors of all users, or of all items.

    ``names``, the ids, ascend: integers by value, strings by UTF-8 bytes; ``id_type``, one of ``ID_TYPES``, is their
    type in DataFrames. ``factors`` have shape (n, rank), C-contiguous; ``bias`` has shape (n,), or is None.
    """

    names: Names
    id_type: pa.DataType
    factors: Float32s
    bias: Float32s | None

    def ids(self, positions: Array) -> pa.Array:
        """Return the ids at these positions, as an array of ``id_type``."""
        return self.names.values.take(pa.array(positions)).cast(self.id_type)

    @staticmethod
    def from_arrays(kind: str, ids: Any, factors: npt.ArrayLike, bias: npt.ArrayLike | None) -> Side:
        """Check arrays, and sort them by id.

        Args:
            kind: "user" or "item".
            ids: distinct integers or strings, in any order; the type of an Arrow or NumPy array is kept.

        Raises:
            InputError: the ids are of another type, or an id is repeated; a factor or bias is not finite.
            ShapeError: the numbers of ids, vectors and biases differ.
        """
        names = ids if isinstance(ids, Names) else Names.from_values(ids, kind)
        vectors, n = np.ascontiguousarray(as_array(kind, factors), np.float32), len(names)
        biases = None if bias is None else np.ascontiguousarray(as_array(kind, bias), np.float32)
        if vectors.ndim != 2 or len(vectors) != n or not vectors.shape[1]:
            raise ShapeError(f"{kind}: expected a vector for each of {n:,} ids, got an array of shape {vectors.shape}")
        if biases is not None and biases.shape != (n,):
            raise ShapeError(f"{kind}: expected a bias for each of {n:,} ids, got an array of shape {biases.shape}")
        if not n:
            raise InputError(f"{kind}: expected ids, got none")
        if not np.isfinite(vectors).all() or not (biases is None or np.isfinite(biases).all()):
            raise InputError(f"{kind}: expected finite numbers in all vectors, got NaN or infinity")
        order = names.order()
        if not np.array_equal(order, np.arange(n)):
            names = Names(names.values.take(pa.array(order)), kind)
            vectors, biases = vectors[order], None if biases is None else biases[order]
        return Side(names, _type_of_ids(ids, names), vectors, biases)

    @staticmethod
    def from_files(kind: str, id_type: str, arrays: Mapping[str, Array]) -> Side:
        """Return the side from the arrays of ``to_files``; raise ValueError if their shapes or dtypes do not match."""
        prefix = f"{kind}_"
        side = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        names, factors, bias = names_from_arrays(side, kind), side["factors"], side.get("bias")
        if factors.ndim != 2 or factors.dtype != np.float32 or len(factors) != len(names):
            raise ValueError(f"{kind}s: {len(names)} ids, but factors of shape {factors.shape}, {factors.dtype}")
        if bias is not None and (bias.shape != (len(names),) or bias.dtype != np.float32):
            raise ValueError(f"{kind}s: {len(names)} ids, but biases of shape {bias.shape}, {bias.dtype}")
        return Side(names, pa.type_for_alias(id_type), factors, bias)

    def to_files(self, kind: str) -> dict[str, Array]:
        """Return the arrays by the names of their files, which begin with ``kind``: "user" or "item"."""
        arrays = {"factors": self.factors, **name_arrays(self.names)}
        if self.bias is not None:
            arrays["bias"] = self.bias
        return {f"{kind}_{name}": array for name, array in arrays.items()}


def _type_of_ids(ids: Any, names: Names) -> pa.DataType:
    """Return the type of the ids in DataFrames: the type of an array of signed integers, else int64 or string."""
    if not names.are_integers:
        return pa.string()
    array_type = ids.type if isinstance(ids, (pa.Array, pa.ChunkedArray)) else getattr(ids, "dtype", None)
    if array_type is None:
        return pa.int64()
    id_type = array_type if isinstance(array_type, pa.DataType) else pa.from_numpy_dtype(array_type)
    return id_type if pa.types.is_signed_integer(id_type) else pa.int64()


def _id_types(content: Any) -> dict[str, str]:
    """Return the types of users' and items' ids; raise KeyError or ValueError for types not in ``ID_TYPES``."""
    types = {kind: content[kind] for kind in SIDES}
    if not set(types.values()) <= set(ID_TYPES):
        raise ValueError(f"types of ids: expected {' or '.join(ID_TYPES)}, got {types}")
    return types


class MatrixFactors(ArrayModel):
    """The factors of a trained ``MatrixFactorization``; picklable.

    A rating is predicted as p . q, with the vectors p of the user and q of the item; with biases, as p . q + mean +
    b_user + b_item. All values are float32, and all methods round a prediction alike, to the last bit.

    Attributes:
        users, items: the ids, sequences in ascending order.
        userFactors, itemFactors: the vectors, float32, shapes (users, rank) and (items, rank).
        userBias, itemBias: the biases, float32, shapes (users,) and (items,); None: the model has no biases.
        mean: the mean rating; 0 without biases.

    Example::

        factors = MatrixFactors.load("models/films")
        factors.recommend(17, 10)  # [(item, rating), ...]
        factors.predict([17, 17], [3, 5])
    """

    _MODEL_CLASS = "ps2.algorithms.recommendation.MatrixFactorizationModel"
    _FILES = ModelFiles(
        "ps2.factors.v1",
        "a matrix factorization",
        {f"{kind}_factors": "f" for kind in SIDES},
        {"ids": _id_types, "mean": float},
        {f"{kind}_{name}": type_code for kind in SIDES for name, type_code in {"bias": "f", **NAME_ARRAYS}.items()},
    )

    def __init__(  # noqa: PLR0913 - most arguments are keywords
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
            ShapeError: the vectors of users and of items have different lengths.
            InputError: only users or only items have biases, or products of vectors exceed float32's range.
        """
        self._sides = (
            Side.from_arrays("user", users, userFactors, userBias),
            Side.from_arrays("item", items, itemFactors, itemBias),
        )
        self.mean = float(np.float32(mean))
        self._check()

    @staticmethod
    def of(fitted: FittedFactors, user_kind: pa.DataType, item_kind: pa.DataType) -> MatrixFactors:
        """Return the model of a training's result; ``user_kind`` and ``item_kind`` are the ids' types in DataFrames."""
        user = Side(Names(fitted.users.values, "user"), user_kind, fitted.user_factors, fitted.user_bias)
        item = Side(Names(fitted.items.values, "item"), item_kind, fitted.item_factors, fitted.item_bias)
        factors = MatrixFactors._of_sides(user, item, float(np.float32(fitted.mean)))
        factors._check()
        return factors

    @staticmethod
    def _of_sides(user: Side, item: Side, mean: float) -> MatrixFactors:
        factors = object.__new__(MatrixFactors)
        factors._sides, factors.mean = (user, item), mean
        return factors

    def fitted(self) -> FittedFactors:
        """Return the factors as the result of a training, with which another training can start."""
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
        max_user, max_item = (float(np.abs(matrix).max()) for matrix in self.extended())
        if not max_user * max_item * self._user_vectors.shape[1] < MAX_PRODUCT:
            raise InputError(
                f"factors: expected vectors whose products are below {MAX_PRODUCT:g}, got elements up to "
                f"{max_user:g} and {max_item:g}"
            )

    def __repr__(self) -> str:
        biases = ", with biases" if self.hasBiases else ""
        return f"MatrixFactors(users={len(self.users):,}, items={len(self.items):,}, rank={self.rank}{biases})"

    @property
    def user(self) -> Side:
        """The ids, vectors and biases of the users."""
        return self._sides[0]

    @property
    def item(self) -> Side:
        """The ids, vectors and biases of the items."""
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
        """The number of factors in a vector."""
        return int(self.userFactors.shape[1])

    @property
    def hasBiases(self) -> bool:
        """Whether predictions add the mean and biases."""
        return self.user.bias is not None

    @property
    def is_light(self) -> bool:
        """Whether Spark may pickle the model with a task's function. Never: it is broadcast."""
        return False

    def _arrays_to_write(self) -> dict[str, Array]:
        return {**self.user.to_files("user"), **self.item.to_files("item")}

    def _values_to_write(self) -> dict[str, Any]:
        return {"ids": {"user": str(self.user.id_type), "item": str(self.item.id_type)}, "mean": self.mean}

    @classmethod
    def _make(cls, arrays: dict[str, Any], values: dict[str, Any]) -> MatrixFactors:
        user, item = (Side.from_files(kind, values["ids"][kind], arrays) for kind in SIDES)
        if user.factors.shape[1] != item.factors.shape[1] or (user.bias is None) != (item.bias is None):
            raise ValueError(f"users and items do not match: {user.factors.shape} and {item.factors.shape}")
        return MatrixFactors._of_sides(user, item, values["mean"])

    def predict(self, users: Any, items: Any) -> Float32s:
        """Predict the rating of each pair, float32, shape (n,); NaN if the user or the item is unknown.

        Args:
            users, items: the ids of each pair: Arrow or NumPy arrays, or sequences, of equal length.

        Raises:
            InputError: ids are of another type.
            ShapeError: there are not as many users as items.
        """
        positions = self.users.positions(users), self.items.positions(items)
        if len(positions[0]) != len(positions[1]):
            raise ShapeError(f"items: expected {len(positions[0]):,}, as many as users, got {len(positions[1]):,}")
        return self.ratings(*positions)

    def ratings(self, users: Int64s, items: Int64s) -> Float32s:
        """Like ``predict``, for positions in ``users`` and ``items``; -1: unknown."""
        return pair_products(*self.extended(), users, items)

    def recommend(self, user: Any, k: int = 10, exclude: Iterable[Any] = ()) -> list[tuple[Any, float]]:
        """Return the k items with the largest predicted ratings for a user, and the ratings, the largest first.

        Of equal ratings, the larger id comes first.

        Args:
            k: the number of items, at least 1; all items if there are fewer.
            exclude: items to omit, such as those that the user has rated; unknown items are ignored.

        Raises:
            InputError: the user is unknown, or an id is of another type.
            ConfigError: k is below 1.
        """
        return self._named(self.item, *self._best_for(self.user, user, k, exclude))

    def recommendUsers(self, item: Any, k: int = 10, exclude: Iterable[Any] = ()) -> list[tuple[Any, float]]:
        """Like ``recommend``, with users and items swapped: the users with the largest ratings for an item."""
        return self._named(self.user, *self._best_for(self.item, item, k, exclude))

    def similarItems(self, item: Any, k: int = 10) -> list[tuple[Any, float]]:
        """Return the items with the largest cosine similarities of their vectors to the item's, and the similarities.

        Raises:
            InputError: the item is unknown.
            ConfigError: k is below 1.
        """
        return self._similar(self.item, self._item_units, item, k)

    def similarUsers(self, user: Any, k: int = 10) -> list[tuple[Any, float]]:
        """Like ``similarItems``, for users."""
        return self._similar(self.user, self._user_units, user, k)

    def best(
        self, places: Int64s, k: int, for_users: bool, excluded: Excluded | None = None
    ) -> tuple[Float32s, Int64s]:
        """Return the best items for the users at the positions ``places``, or users for items: ``Candidates.best``."""
        check_k(k)
        if for_users:
            return self._item_candidates.best(self._user_vectors[places], k, excluded)
        return self._user_candidates.best(self._item_candidates.vectors[places], k, excluded)

    def _best_for(self, side: Side, id: Any, k: int, exclude: Iterable[Any]) -> tuple[Float32s, Int64s]:
        """Return the scores and positions of the best k of the other side for an id of ``side``."""
        check_k(k)
        other = self.item if side is self.user else self.user
        positions = other.names.positions(exclude)
        excluded = Excluded.from_pairs(np.zeros(len(positions), np.int64), positions, 1)
        scores, best = self.best(np.array([side.names.position(id)]), k, side is self.user, excluded)
        chosen = best[0] >= 0
        return scores[0][chosen], best[0][chosen]

    def _similar(self, side: Side, units: Candidates, id: Any, k: int) -> list[tuple[Any, float]]:
        check_k(k)
        position = side.names.position(id)
        scores, positions = units.best(units.vectors[position : position + 1], k + 1)
        chosen = np.flatnonzero(positions[0] != position)[:k]
        return self._named(side, scores[0][chosen], positions[0][chosen])

    @staticmethod
    def _named(side: Side, scores: Float32s, positions: Int64s) -> list[tuple[Any, float]]:
        return list(zip(side.names.named(positions), scores.astype(float).tolist(), strict=True))

    def export(self, path: str) -> Export:
        """Write the vectors to a folder, from which ``ps2.serving.Scorer`` and ``ps2 serve`` recommend items.

        A running scorer takes the new export at its next refresh. Each export has all vectors.

        Args:
            path: a folder, or any fsspec URL.

        Raises:
            RecoveryError: the files cannot be written. The previous export remains usable.
        """
        users, items = self.extended()
        dense = {**named_vectors("user", self.users, users), **named_vectors("item", self.items, items)}
        width = users.shape[1]
        content = Content(np.empty(0, np.int64), lambda keys: np.empty((len(keys), width), np.float32), dense=dense)
        return write_export(path, Description("factors", width), content)

    def exportVectors(self, path: str, form: str = "parquet", side: str = "item") -> None:
        """Write ids and vectors for an index or a database, such as Faiss, Milvus or PostgreSQL with pgvector.

        Inner products of users' and items' vectors are the predictions: those with biases have two elements more (see
        ``extended``). An existing file is replaced.

        Args:
            path: a local path, or an fsspec URL.
            form: "parquet": a file with the columns id and vector, a list of float32; "pgvector": a CSV file for
                PostgreSQL's COPY, with lines such as ``17,"[0.5,-1.25]"``; "npy": a folder with ``vectors.npy``,
                float32 of shape (n, d), and ``ids.npy``, int64 or strings of shape (n,).
            side: "item" or "user".

        Raises:
            ConfigError: the form or the side is unknown.
            InputError: an id has a NUL, which PostgreSQL does not store.
            RecoveryError: the file system reports an error.
        """
        if side not in SIDES:
            raise ConfigError(f"side: expected {' or '.join(SIDES)}, got {side!r}")
        index = SIDES.index(side)
        export_vectors(path, form, self._sides[index].names, self.extended()[index])

    def extended(self) -> tuple[Float32s, Float32s]:
        """Return vectors of users and of items whose dot products are the predictions.

        Without biases, these are the factors. Biases add two elements: (p, mean + b_user, 1) and (q, 1, b_item).
        """
        return self._user_vectors, self._item_candidates.vectors

    @cached_property
    def _user_vectors(self) -> Float32s:
        factors, bias = self.user.factors, self.user.bias
        if bias is None:
            return factors
        return np.column_stack([factors, bias + np.float32(self.mean), np.ones_like(bias)])

    @cached_property
    def _item_candidates(self) -> Candidates:
        factors, bias = self.item.factors, self.item.bias
        return Candidates(factors if bias is None else np.column_stack([factors, np.ones_like(bias), bias]))

    @cached_property
    def _user_candidates(self) -> Candidates:
        return Candidates(self._user_vectors)

    @cached_property
    def _user_units(self) -> Candidates:
        return Candidates(_normalize(self.user.factors))

    @cached_property
    def _item_units(self) -> Candidates:
        return Candidates(_normalize(self.item.factors))

    def __getstate__(self) -> dict[str, Any]:
        return {"_sides": self._sides, "mean": self.mean}


def check_k(k: Any) -> None:
    """Raise ConfigError unless k is an integer above 0."""
    if not is_whole(k) or k < 1:
        raise ConfigError(f"k: expected an integer, at least 1, got {k!r}")


def _normalize(vectors: Float32s) -> Float32s:
    """Return the vectors divided by their Euclidean norms; zero vectors do not change."""
    norms = norms_of(vectors)
    return np.ascontiguousarray(vectors / np.where(norms > 0, norms, 1.0)[:, None], np.float32)
