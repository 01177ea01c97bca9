"""Merges the answers of a call's parts in the way that its operation declares. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from ps2.client.keysets import SplitKeys
from ps2.errors import ShapeError
from ps2.matrix.partition import Partition
from ps2.ops.operands import COLUMNS, SLOTS, Axis
from ps2.ops.table import Array, Op
from ps2.protocol.messages import Keys, Result

ALL = slice(None)  # the slice of an axis along which the call is not cut


@dataclass(frozen=True)
class Part:
    """One of the operations that a call is cut into.

    Attributes:
        slots: the part's range of the call's columns, in the order of their split; None if the call names no columns.
        block: the part's range along the axis that the call may be cut along; None if there is no such axis.
        keys: the part's columns, if they are sent as a key set.
    """

    partition: Partition
    slots: slice | None
    block: slice | None
    keys: Keys | None

    def slice(self, axis: Axis, blocks: str | None) -> slice:
        """Return this part's range of an axis. ``blocks``: the operation's block axis; None if it has none."""
        if axis == SLOTS and self.slots is not None:
            return self.slots
        if axis == COLUMNS:
            return slice(self.partition.begin, self.partition.end)
        return self.block if axis == blocks and self.block is not None else ALL

    def length(self, axis: Axis, lengths: Mapping[str, int], blocks: str | None) -> int:
        """Return the length of this part's range of an axis; 0 if unknown."""
        if isinstance(axis, int):
            return axis
        window = self.slice(axis, blocks)
        return lengths.get(axis, 0) if window is ALL else window.stop - window.start


# The parts of a call with their results.
Answers = Sequence[tuple[Part, Result]]


def merged(op: Op, dtype: np.dtype[Any], lengths: Mapping[str, int], split: SplitKeys | None, parts: Answers) -> Any:
    """Merge the answers of all parts of a call.

    ``dtype``: the matrix's dtype, for answers that declare no dtype. ``lengths``: the total length of each known axis.
    """
    if not op.answers:
        return reduced(op, [result for _, result in parts])
    assembled = {
        index: _in_caller_order(op, index, dtype, lengths, split, parts)
        for index, answer in enumerate(op.answers)
        if SLOTS in answer.axes or COLUMNS in answer.axes
    }
    if len(assembled) == len(op.answers):
        merged = [assembled[index] for index in range(len(op.answers))]
    else:
        if op.reduce == "list":
            return [result.arrays[0] if len(op.answers) == 1 else result.arrays for _, result in parts]
        reduced_answers = _merged_blocks(op, dtype, lengths, parts)
        merged = [assembled.get(index, reduced_answers[index]) for index in range(len(op.answers))]
    return merged[0] if len(merged) == 1 else tuple(merged)


def reduced(op: Op, results: Sequence[Result]) -> Any:
    """Merge the scalar answers of a call's parts."""
    if op.reduce is None:
        return None
    values = [result.scalar for result in results if result.scalar is not None]
    if op.reduce == "list":
        return values
    if op.reduce == "concat":
        return np.array(values)
    if not values and op.reduce != "sum":
        raise _nothing_to_reduce(op)
    # For scalars, "best" means the largest.
    return float(np.sum(values) if op.reduce == "sum" else np.min(values) if op.reduce == "min" else np.max(values))


def _in_caller_order(
    op: Op, index: int, dtype: np.dtype[Any], lengths: Mapping[str, int], split: SplitKeys | None, parts: Answers
) -> Array:
    """Assemble an answer that has an axis of columns, in the caller's order."""
    axes = op.answers[index].axes
    empty = np.empty([0] * len(axes), op.answers[index].dtype or dtype)
    sample = next((result.arrays[index] for _, result in parts), empty)
    sample_lengths = {axis: length for axis, length in zip(axes, sample.shape, strict=True) if isinstance(axis, str)}
    out = np.empty(
        [axis if isinstance(axis, int) else {**sample_lengths, **lengths}[axis] for axis in axes], sample.dtype
    )
    for part, result in parts:
        out[tuple(part.slice(axis, op.blocks) for axis in axes)] = result.arrays[index]
    if SLOTS not in axes or split is None or split.order is None:
        return out
    positions = np.empty_like(split.order)
    positions[split.order] = np.arange(split.order.size)
    return out.take(positions, axis=axes.index(SLOTS))


def _merged_blocks(op: Op, dtype: np.dtype[Any], lengths: Mapping[str, int], parts: Answers) -> list[Array]:
    """Reduce the answers of each block over the partitions, then join the blocks."""
    if not parts:
        return [_empty_answer(op, index, dtype, lengths) for index in range(len(op.answers))]
    by_block: dict[int, list[tuple[Array, ...]]] = {}
    for part, result in parts:
        by_block.setdefault(0 if part.block is None else part.block.start, []).append(result.arrays)
    blocks = [_reduced(op, answers) for _, answers in sorted(by_block.items())]
    merged = []
    for index, answer in enumerate(op.answers):
        pieces = [block[index] for block in blocks]
        if len(pieces) == 1:
            merged.append(pieces[0])
        elif op.blocks in answer.axes:
            merged.append(np.concatenate(pieces, axis=answer.axes.index(op.blocks)))
        else:
            merged.append(_reduced(op, [(piece,) for piece in pieces])[0])
    return merged


def _reduced(op: Op, answers: Sequence[tuple[Array, ...]]) -> tuple[Array, ...]:
    if op.reduce == "best":
        return reduce(_better, answers)
    if op.reduce == "concat":
        return tuple(np.concatenate(pieces) for pieces in zip(*answers, strict=True))
    ufunc = {"sum": np.add, "max": np.maximum, "min": np.minimum, None: np.add}[op.reduce]
    return tuple(reduce(ufunc, pieces) for pieces in zip(*answers, strict=True))


def _better(a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, ...]:
    """Choose the row of ``a`` or ``b`` with the larger first value; ``a`` wins if both are equal or b's is NaN.

    The first value is that of the first array; with one array, its element 0 along the last axis.
    """
    score_a, score_b = a[0], b[0]
    if len(a) == 1:
        score_a, score_b = score_a[..., 0], score_b[..., 0]
    b_wins = (score_b > score_a) | (np.isnan(score_a) & ~np.isnan(score_b))
    return tuple(
        np.where(b_wins.reshape(b_wins.shape + (1,) * (x.ndim - b_wins.ndim)), y, x) for x, y in zip(a, b, strict=True)
    )


def _empty_answer(op: Op, index: int, dtype: np.dtype[Any], lengths: Mapping[str, int]) -> Array:
    """Return the answer of a call without parts."""
    answer = op.answers[index]
    shape = [axis if isinstance(axis, int) else lengths.get(axis, 0) for axis in answer.axes]
    if op.reduce in ("sum", "concat", None) or 0 in shape:
        return np.zeros(shape, answer.dtype or dtype)
    raise _nothing_to_reduce(op)


def _nothing_to_reduce(op: Op) -> ShapeError:
    return ShapeError(
        f"operation {op.name!r}: cannot take the {op.reduce} of no answers: the matrix or the arguments are empty"
    )
