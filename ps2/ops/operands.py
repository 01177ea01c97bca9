"""Axes of an operation's arrays. The client uses them to divide a call among partitions, and to join the answers.

Axes have names. Along "slots", an array has an entry for each slot (column or key) of the call; along "columns", one
for each column of the shard; along "block", one for each row of the matrix. The length along any other axis follows
from the call's arrays; it is the same for all arrays with this axis.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

import numpy as np
import numpy.typing as npt

from ps2.errors import ShapeError

Array = npt.NDArray[Any]
Axis = str | int

SLOTS = "slots"
COLUMNS = "columns"
BLOCK = "block"


@dataclass(frozen=True)
class Along:
    """The axes of an array, one for each dimension; made by ``along``.

    Attributes:
        axes: the names of the axes. A number is a fixed length; "" is a length that is not known in advance.
        by: the name of the array with the number of entries for each step along the axis; None: one entry per step.
    """

    axes: tuple[Axis, ...]
    by: str | None = None


Shapes = Mapping[str, tuple[Along, tuple[int, ...]]]


def along(*axes: Axis, by: str | None = None) -> Along:
    """Declare the axes of an operand or an answer: ``Annotated[Values, along("slots", "k")]``."""
    return Along(axes, by)


@dataclass(frozen=True)
class Answer:
    """An array that an operation returns; ``dtype`` None: the matrix's dtype."""

    axes: tuple[Axis, ...]
    dtype: np.dtype[Any] | None


def operand_axes(name: str, annotations: Sequence[Any]) -> Along:
    """Return an operand's axes: annotated axes, or else "slots" for slots, or an axis with the operand's name."""
    annotated = (note for note in annotations if isinstance(note, Along))
    return next(annotated, Along((SLOTS if SLOTS in annotations else name,)))


def read_answers(hint: Any) -> tuple[Answer, ...]:
    """Return the arrays that a function returns, from its return annotation; empty for a number or None."""
    if hint in (None, types.NoneType, float, int):
        return ()
    if get_origin(hint) is tuple:
        return tuple(answer for part in get_args(hint) for answer in read_answers(part))
    axes, array = Along(("",)), hint
    if not isinstance(hint, types.GenericAlias):  # Annotated, or an alias of it
        array, *annotations = get_args(hint) or (hint,)
        axes = next((note for note in annotations if isinstance(note, Along)), axes)
    # NDArray[T] is ndarray[shape, dtype[T]]; since NumPy 2.5 its only argument is T.
    *_, last = get_args(array)
    dtype = get_args(last)[0] if get_args(last) else last
    return (Answer(axes.axes, None if dtype is Any else np.dtype(dtype)),)


def lengths(where: str, arrays: Shapes, known: Mapping[str, int]) -> dict[str, int]:
    """Return the length of each axis of some arrays, given their axes and shapes by name, and ``known`` lengths.

    Raises ShapeError if an array has the wrong number of dimensions, or two arrays differ along an axis.
    """
    lengths, source = dict(known), dict.fromkeys(known, "the call")
    for name, (along, shape) in arrays.items():
        if along.by is not None:
            if len(shape) != 1:
                raise ShapeError(f"{where}: {name}: expected one dimension, got shape {shape}")
            continue
        if len(shape) != len(along.axes):
            axes = ", ".join(map(str, along.axes))
            raise ShapeError(f"{where}: {name}: expected shape ({axes}), got {shape}")
        for axis, length in zip(along.axes, shape, strict=True):
            expected = axis if isinstance(axis, int) else lengths.get(axis, length)
            if length != expected:
                source_text = "" if isinstance(axis, int) else f" as {source[axis]} has"
                raise ShapeError(f"{where}: {name}: expected {expected} along {axis!r}{source_text}, got {length}")
            if isinstance(axis, str) and axis not in lengths:
                lengths[axis], source[axis] = length, name
    return lengths
