"""Kernels of hashing: they turn texts, integers and pairs of keys into keys, and all fields' pairs into rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float32s, Int32s, Int64s
from ps2.data.xxh3_kernels import Bytes, xxh3
from ps2.ops.kernels import kernel

ONE = np.uint64(1)
# Digits of the longest int64, and its sign.
LONGEST = 20


@kernel
def keys_of_texts(text: Bytes, ends: Any, seed: np.uint64) -> Int64s:
    """Return the key of each text.

    Args:
        text: all texts, one after the other.
        ends: the n + 1 bounds of the texts, int32 or int64.
    """
    keys = np.empty(ends.size - 1, np.int64)
    for i in range(keys.size):
        keys[i] = np.int64(xxh3(text, int(ends[i]), int(ends[i + 1] - ends[i]), seed) >> ONE)
    return keys


@kernel
def keys_of_integers(numbers: Int64s, seed: np.uint64) -> Int64s:
    """Return the keys of numbers' decimal texts."""
    keys = np.empty(numbers.size, np.int64)
    text = np.empty(LONGEST, np.uint8)
    for i in range(keys.size):
        rest = np.uint64(-numbers[i]) if numbers[i] < 0 else np.uint64(numbers[i])
        begin = LONGEST
        while True:
            begin -= 1
            tenth = rest // np.uint64(10)
            text[begin] = 48 + (rest - tenth * np.uint64(10))
            rest = tenth
            if rest == 0:
                break
        if numbers[i] < 0:
            begin -= 1
            text[begin] = 45
        keys[i] = np.int64(xxh3(text, begin, LONGEST - begin, seed) >> ONE)
    return keys


@kernel
def keys_of_crosses(parts: npt.NDArray[np.int64], seed: np.uint64) -> Int64s:
    """Return the key of each row of keys, shape (n, parts)."""
    keys = np.empty(parts.shape[0], np.int64)
    text = parts.view(np.uint8).reshape(-1)
    length = 8 * parts.shape[1]
    for i in range(keys.size):
        keys[i] = np.int64(xxh3(text, i * length, length, seed) >> ONE)
    return keys


@kernel
def write_pairs(
    keys: Int64s, values: Float32s, lengths: Int64s, field: int, next_pair: Int64s, to: tuple[Int64s, Float32s, Int32s]
) -> None:
    """Write a field's pairs into their rows, and advance ``next_pair``, the position of each row's next pair."""
    to_keys, to_values, to_fields = to
    pair = 0
    for row in range(lengths.size):
        begin = next_pair[row]
        for i in range(lengths[row]):
            to_keys[begin + i] = keys[pair]
            to_values[begin + i] = values[pair] if values.size else np.float32(1)
            to_fields[begin + i] = field
            pair += 1
        next_pair[row] = begin + lengths[row]
