"""The named axes of an operation's arrays. By them, clients divide a call among partitions, and join the answers.

Along the axis "slots", an array has one entry for each slot (column or key) of the call; along "columns", one for each
column of the shard; along "block", one for each row of the matrix. All arrays of a call have the same length along any
other axis.
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
        axes: the names of the axes. An integer is a fixed length; "" is an axis whose length is not known in advance.
        by: for a ragged array, the name of the array with the number of entries for each position of the axis; None:
            one entry per position.
    """

    axes: tuple[Axis, ...]
    by: str | None = None


# Axes and shape of arrays, by name.
Shapes = Mapping[str, tuple[Along, tuple[int, ...]]]


def along(*axes: Axis, by: str | None = None) -> Along:
    """Declare the axes of an operand or an answer: ``Annotated[Values, along("slots", "k")]``."""
    return Along(axes, by)


@dataclass(frozen=True)
class Answer:
    """Describes an array that an operation returns; ``dtype`` None: the dtype of the matrix."""

    axes: tuple[Axis, ...]
    dtype: np.dtype[Any] | None


def operand_axes(name: str, annotations: Sequence[Any]) -> Along:
    """Return an operand's axes: the annotated axes, else "slots" for slots, else an axis with the operand's name."""
    annotated = (annotation for annotation in annotations if isinstance(annotation, Along))
    return next(annotated, Along((SLOTS if SLOTS in annotations else name,)))


def read_answers(hint: Any) -> tuple[Answer, ...]:
    """Return the descriptions of the arrays that a function returns, from its return annotation; () for a scalar."""
    if hint in (None, types.NoneType, float, int):
        return ()
    if get_origin(hint) is tuple:
        return tuple(answer for item in get_args(hint) for answer in read_answers(item))
    axes, array = Along(("",)), hint
    if not isinstance(hint, types.GenericAlias):  # Annotated, or an alias of it
        array, *annotations = get_args(hint) or (hint,)
        axes = next((annotation for annotation in annotations if isinstance(annotation, Along)), axes)
    # NDArray[T] is ndarray[shape, dtype[T]]; since NumPy 2.5 its only argument is T.
    *_, dtype_hint = get_args(array)
    dtype = get_args(dtype_hint)[0] if get_args(dtype_hint) else dtype_hint
    return (Answer(axes.axes, None if dtype is Any else np.dtype(dtype)),)


def lengths(call: str, arrays: Shapes, known: Mapping[str, int]) -> dict[str, int]:
    """Return the length of each named axis of a call's arrays; ``known``: lengths that are fixed; ``call``: its name.

    Raises ShapeError if an array has the wrong number of dimensions, or two arrays differ along an axis.
    """
    lengths, source = dict(known), dict.fromkeys(known, "the call")
    for name, (along, shape) in arrays.items():
        if along.by is not None:
            if len(shape) != 1:
                raise ShapeError(f"{call}: {name}: expected one dimension, got shape {shape}")
            continue
        if len(shape) != len(along.axes):
            axes = ", ".join(map(str, along.axes))
            raise ShapeError(f"{call}: {name}: expected shape ({axes}), got {shape}")
        for axis, length in zip(along.axes, shape, strict=True):
            expected = axis if isinstance(axis, int) else lengths.get(axis, length)
            if length != expected:
                source_text = "" if isinstance(axis, int) else f" as {source[axis]} has"
                raise ShapeError(f"{call}: {name}: expected {expected} along {axis!r}{source_text}, got {length}")
            if isinstance(axis, str) and axis not in lengths:
                lengths[axis], source[axis] = length, name
    return lengths
