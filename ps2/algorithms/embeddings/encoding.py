"""Encode sentences of words as sentences of word numbers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ps2.array_types import Int32s, Int64s
from ps2.data.names import Names


def numbered(lists: pa.Array, words: Names) -> tuple[Int32s, Int64s]:
    """Return the numbers of all words in the vocabulary, and how many of them each sentence has."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    places = words.positions(lists.values[offsets[0] : offsets[-1]])
    known = places >= 0
    before = np.append(0, np.cumsum(known))
    return places[known].astype(np.int32), np.diff(before[offsets - offsets[0]])


def cut(lengths: Int64s, longest: int) -> Int64s:
    """Split sentences at a maximum length; return the bounds of the pieces.

    Args:
        lengths: of the sentences.
        longest: maximum length of a piece.
    """
    pieces = -(-lengths // longest)
    begins = np.append(0, np.cumsum(lengths))
    first = np.repeat(np.append(0, np.cumsum(pieces))[:-1], pieces)
    within = np.arange(pieces.sum()) - first
    return np.append(np.repeat(begins[:-1], pieces) + within * longest, begins[-1])
