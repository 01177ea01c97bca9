"""One side of trained factors, all users or all items, and its files: NumPy arrays beside pyspark's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ps2.algorithms.frame.array_files import read_array
from ps2.array_types import Float32s
from ps2.data.ids import Names
from ps2.data.plain_arrays import as_array
from ps2.errors import InputError, ShapeError

Array = npt.NDArray[Any]

KINDS = ("int8", "int16", "int32", "int64", "string")


@dataclass(frozen=True, eq=False)
class Side:
    """All users, or all items.

    Attributes:
        names: the ids, ascending: integers by value, strings by their UTF-8 bytes.
        kind: the type of the ids in DataFrames: one of ``KINDS``.
        factors: the vectors, shape (n, rank), C-contiguous.
        bias: shape (n,); None: the model has no biases.
    """

    names: Names
    kind: pa.DataType
    factors: Float32s
    bias: Float32s | None

    def __len__(self) -> int:
        return len(self.names)

    def ids(self, positions: Array) -> pa.Array:
        """Return the ids at some positions, in the type that they have in DataFrames."""
        return self.names.values.take(pa.array(positions)).cast(self.kind)

    @staticmethod
    def from_arrays(what: str, ids: Any, factors: npt.ArrayLike, bias: npt.ArrayLike | None) -> Side:
        """Sort one side by id.

        Args:
            what: "user" or "item".
            ids: integers or strings, distinct, in any order; of an Arrow or NumPy array, the type is kept.

        Raises:
            InputError: the ids are of another type, or one is repeated; a number is not finite.
            ShapeError: there is not one vector, and one bias, for each id.
        """
        names = ids if isinstance(ids, Names) else Names.from_values(ids, what)
        vectors, n = np.ascontiguousarray(as_array(what, factors), np.float32), len(names)
        biases = None if bias is None else np.ascontiguousarray(as_array(what, bias), np.float32)
        if vectors.ndim != 2 or len(vectors) != n or not vectors.shape[1]:
            raise ShapeError(f"{what}: expected a vector for each of {n:,} ids, got an array of shape {vectors.shape}")
        if biases is not None and biases.shape != (n,):
            raise ShapeError(f"{what}: expected a bias for each of {n:,} ids, got an array of shape {biases.shape}")
        if not n:
            raise InputError(f"{what}: expected ids, got none")
        if not np.isfinite(vectors).all() or not (biases is None or np.isfinite(biases).all()):
            raise InputError(f"{what}: expected finite numbers in all vectors, got NaN or infinity")
        if names.are_integers:
            order = np.argsort(names.values.to_numpy(), kind="stable")
        else:
            order = np.asarray(pc.sort_indices(names.values))
        if not np.array_equal(order, np.arange(n)):
            names = Names(names.values.take(pa.array(order)), what)
            vectors, biases = vectors[order], None if biases is None else biases[order]
        return Side(names, _kind(ids, names), vectors, biases)

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of the files, by name."""
        arrays: dict[str, Array] = {"factors.npy": self.factors}
        if self.bias is not None:
            arrays["bias.npy"] = self.bias
        if self.names.are_integers:
            return {**arrays, "ids.npy": self.names.values.to_numpy()}
        # All ids in UTF-8, concatenated, and the end of each.
        ids = self.names.values.cast(pa.large_string())
        _, offsets, text = ids.buffers()
        bounds = np.frombuffer(offsets, np.int64)[ids.offset : ids.offset + len(ids) + 1]
        data = np.frombuffer(text, np.uint8)[bounds[0] : bounds[-1]] if bounds[-1] else np.empty(0, np.uint8)
        return {**arrays, "names.npy": data, "ends.npy": bounds[1:] - bounds[0]}

    @staticmethod
    def read(url: str, what: str, kind: str, files: Mapping[str, Any]) -> Side:
        """Read the files of ``arrays``; raise ValueError if they do not go together."""
        if kind not in KINDS:
            raise ValueError(f"ids of {what}s: expected one of {', '.join(KINDS)}, got {kind!r}")
        factors = read_array(url, f"{what}_factors.npy", files)
        bias = read_array(url, f"{what}_bias.npy", files) if f"{what}_bias.npy" in files else None
        if kind != "string":
            ids = pa.array(read_array(url, f"{what}_ids.npy", files))
        else:
            ids = _read_texts(*(read_array(url, f"{what}_{part}.npy", files) for part in ("names", "ends")))
        if factors.ndim != 2 or factors.dtype != np.float32 or len(factors) != len(ids):
            raise ValueError(f"{what}s: {len(ids)} ids, and factors of shape {factors.shape} and type {factors.dtype}")
        if bias is not None and (bias.shape != (len(ids),) or bias.dtype != np.float32):
            raise ValueError(f"{what}s: {len(ids)} ids, and biases of shape {bias.shape} and type {bias.dtype}")
        return Side(Names(ids, what), pa.type_for_alias(kind), factors, bias)


def _read_texts(text: Array, ends: Array) -> pa.Array:
    offsets = np.append(0, ends).astype(np.int64)
    if np.any(np.diff(offsets) < 0) or offsets[-1] != len(text):
        raise ValueError("ids and their ends do not match")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text, np.uint8))]
    array = pa.Array.from_buffers(pa.large_string(), len(ends), buffers)
    array.validate(full=True)
    return array.cast(pa.string())


def _kind(ids: Any, names: Names) -> pa.DataType:
    """Return the type of ids in DataFrames: the type of an array, else int64 or string."""
    if not names.are_integers:
        return pa.string()
    array_type = ids.type if isinstance(ids, (pa.Array, pa.ChunkedArray)) else getattr(ids, "dtype", None)
    if array_type is None:
        return pa.int64()
    kind = array_type if isinstance(array_type, pa.DataType) else pa.from_numpy_dtype(array_type)
    return kind if pa.types.is_signed_integer(kind) else pa.int64()
