"""Convert names, such as words or the ids of users, to arrays for a model's files: integers, or strings in UTF-8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.data.ids import Names

Array = npt.NDArray[Any]

# The arrays, each with its ``dtype.kind``. Integers are in ``ids``. Strings are in ``names``, the concatenated bytes of
# all strings, and ``ends``, the byte offset at which each string ends.
NAME_ARRAYS = {"ids": "i", "names": "u", "ends": "i"}

# The array of an export that holds the vectors of names, after "user_" or "item_".
VECTORS = "vectors"


def name_arrays(names: Names) -> dict[str, Array]:
    """Return the arrays of ``NAME_ARRAYS`` that hold these names."""
    if names.are_integers:
        return {"ids": names.values.to_numpy()}
    strings = names.values.cast(pa.large_string())
    _, offsets_buffer, bytes_buffer = strings.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    text = np.frombuffer(bytes_buffer, np.uint8)[offsets[0] : offsets[-1]] if offsets[-1] else np.empty(0, np.uint8)
    return {"names": text, "ends": offsets[1:] - offsets[0]}


def named_vectors(kind: str, names: Names, vectors: Array) -> dict[str, Array]:
    """Return the arrays of an export that hold names and their vectors; ``kind``: "user" or "item"."""
    return {f"{kind}_{name}": array for name, array in {VECTORS: vectors, **name_arrays(names)}.items()}


def vectors_from_arrays(kind: str, arrays: Mapping[str, Array]) -> tuple[Names, Array]:
    """Return the names and vectors of ``named_vectors``; raise ValueError if arrays are missing or do not match."""
    own = {name.removeprefix(f"{kind}_"): array for name, array in arrays.items() if name.startswith(f"{kind}_")}
    names, vectors = names_from_arrays(own, kind), own.get(VECTORS)
    if vectors is None or vectors.ndim != 2 or vectors.dtype != np.float32 or not 0 < len(vectors) == len(names):
        raise ValueError(f"{kind}: expected a vector for each of {len(names):,} ids")
    return names, vectors


def names_from_arrays(arrays: Mapping[str, Array], kind: str) -> Names:
    """Return the names of ``name_arrays``; raise ValueError if arrays are missing. ``kind``: a word for messages."""
    if "ids" in arrays:
        return Names(pa.array(arrays["ids"]), kind)
    if not {"names", "ends"} <= arrays.keys():
        raise ValueError("expected files of the names, got none")
    text, offsets = arrays["names"], np.append(0, arrays["ends"]).astype(np.int64)
    if np.any(np.diff(offsets) < 0) or offsets[-1] != len(text):
        raise ValueError("the ends of names do not match their text")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text, np.uint8))]
    values = pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)
    values.validate(full=True)
    return Names(values.cast(pa.string()), kind)
