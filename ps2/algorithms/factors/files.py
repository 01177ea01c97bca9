"""Files of trained factors: a folder of NumPy arrays beside the metadata that pyspark writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.frame.array_files import read_array, reading, write_arrays
from ps2.array_types import Float32s

Array = npt.NDArray[Any]

FORMAT = "ps2.factors.v1"
KINDS = ("int8", "int16", "int32", "int64", "string")


@dataclass(frozen=True, eq=False)
class SideContent:
    """Users or items.

    Attributes:
        ids: int64 or strings, ascending, distinct.
        kind: type of the ids in DataFrames: one of ``KINDS``.
        factors: float32, shape (n, rank).
        bias: float32, shape (n,); None: there are no biases.
    """

    ids: pa.Array
    kind: str
    factors: Float32s
    bias: Float32s | None


@dataclass(frozen=True, eq=False)
class FactorsContent:
    """Content of the files.

    Attributes:
        mean: the mean rating; 0 without biases.
    """

    user: SideContent
    item: SideContent
    mean: float


def write_factors(url: str, content: FactorsContent) -> dict[str, Any]:
    """Write factors; return their entry in the metadata.

    Raises:
        RecoveryError: the file system refuses.
    """
    sides = {"user": content.user, "item": content.item}
    arrays = {f"{name}_{part}": array for name, side in sides.items() for part, array in _arrays(side).items()}
    kinds = {name: side.kind for name, side in sides.items()}
    return {"format": FORMAT, "ids": kinds, "mean": content.mean, "files": write_arrays(url, arrays)}


def read_factors(path: str, url: str, content: Any) -> FactorsContent:
    """Read factors.

    Args:
        path: the user's name of them, for errors.
        content: the entry that ``write_factors`` returned.

    Raises:
        UsageError: the format is of an unknown version.
        CheckpointCorruptError: the files do not match the metadata.
    """
    with reading(path, content, FORMAT, "a matrix factorization"):
        sides = [_read(url, name, content["ids"][name], content["files"]) for name in ("user", "item")]
        user, item = sides
        if user.factors.shape[1] != item.factors.shape[1] or (user.bias is None) != (item.bias is None):
            raise ValueError(f"users and items do not go together: {user.factors.shape} and {item.factors.shape}")
        return FactorsContent(user, item, float(content["mean"]))


def _arrays(side: SideContent) -> dict[str, Array]:
    arrays: dict[str, Array] = {"factors.npy": side.factors}
    if side.bias is not None:
        arrays["bias.npy"] = side.bias
    if pa.types.is_integer(side.ids.type):
        return {**arrays, "ids.npy": side.ids.to_numpy()}
    # All ids in UTF-8, concatenated, and the end of each.
    ids = side.ids.cast(pa.large_string())
    _, offsets, text = ids.buffers()
    bounds = np.frombuffer(offsets, np.int64)[ids.offset : ids.offset + len(ids) + 1]
    data = np.frombuffer(text, np.uint8)[bounds[0] : bounds[-1]] if bounds[-1] else np.empty(0, np.uint8)
    return {**arrays, "names.npy": data, "ends.npy": bounds[1:] - bounds[0]}


def _read(url: str, name: str, kind: str, files: Any) -> SideContent:
    if kind not in KINDS:
        raise ValueError(f"ids of {name}s: expected one of {', '.join(KINDS)}, got {kind!r}")
    factors = read_array(url, f"{name}_factors.npy", files)
    bias = read_array(url, f"{name}_bias.npy", files) if f"{name}_bias.npy" in files else None
    if kind != "string":
        ids = pa.array(read_array(url, f"{name}_ids.npy", files))
    else:
        ids = _texts(*(read_array(url, f"{name}_{part}.npy", files) for part in ("names", "ends")))
    if factors.ndim != 2 or factors.dtype != np.float32 or len(factors) != len(ids):
        raise ValueError(f"{name}s: {len(ids)} ids, and factors of shape {factors.shape} and type {factors.dtype}")
    if bias is not None and (bias.shape != (len(ids),) or bias.dtype != np.float32):
        raise ValueError(f"{name}s: {len(ids)} ids, and biases of shape {bias.shape} and type {bias.dtype}")
    return SideContent(ids, kind, factors, bias)


def _texts(text: Array, ends: Array) -> pa.Array:
    offsets = np.append(0, ends).astype(np.int64)
    if np.any(np.diff(offsets) < 0) or offsets[-1] != len(text):
        raise ValueError("ids and where they end do not go together")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text, np.uint8))]
    array = pa.Array.from_buffers(pa.large_string(), len(ends), buffers)
    array.validate(full=True)
    return array.cast(pa.string())
