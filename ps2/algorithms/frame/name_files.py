"""Names, such as words or the ids of users, as arrays of a model's files: integers, or texts in UTF-8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.data.ids import Names

Array = npt.NDArray[Any]

# The arrays, each with NumPy's letter of its kind of dtype. Integers are ``ids``. Texts are ``names``, the bytes of all
# texts, and ``ends``, the end of each text.
NAME_ARRAYS = {"ids": "i", "names": "u", "ends": "i"}


def name_arrays(names: Names) -> dict[str, Array]:
    """Return the arrays of ``NAME_ARRAYS`` that hold these names."""
    if names.are_integers:
        return {"ids": names.values.to_numpy()}
    texts = names.values.cast(pa.large_string())
    _, offsets, text = texts.buffers()
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(text, np.uint8)[bounds[0] : bounds[-1]] if bounds[-1] else np.empty(0, np.uint8)
    return {"names": data, "ends": bounds[1:] - bounds[0]}


def names_from_arrays(arrays: Mapping[str, Array], what: str) -> Names:
    """Return the names that such arrays hold; raise ValueError if arrays are missing or do not match."""
    if "ids" in arrays:
        return Names(pa.array(arrays["ids"]), what)
    if not {"names", "ends"} <= arrays.keys():
        raise ValueError("expected files of the names, got none")
    text, offsets = arrays["names"], np.append(0, arrays["ends"]).astype(np.int64)
    if np.any(np.diff(offsets) < 0) or offsets[-1] != len(text):
        raise ValueError("the ends of names do not match their text")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text, np.uint8))]
    values = pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)
    values.validate(full=True)
    return Names(values.cast(pa.string()), what)
