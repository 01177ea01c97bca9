"""LIBSVM text to arrays: ``label index:value index:value ... # comment``, one row a line.

A compiled scanner finds the tokens and reads indices and most numbers. The numbers that it cannot round exactly (more
than 15 or so digits, large exponents) go to Arrow's C++ parser together, so every number is correctly rounded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.errors import DTypeError, InputError
from ps2.ops.kernels import kernel

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
BytesArray = npt.NDArray[np.uint8]

MAX_INDEX = 2**63 - 1
# Bounds the scanner's scratch arrays to a few times this, however long the input is.
BATCH_BYTES = 8 * 2**20
# A longer token is cut in messages.
SHOWN_BYTES = 40

_EXACT, _INEXACT, _BAD = 0, 1, 2
_FINE, _BAD_LABEL, _BAD_FEATURE, _REPEATED_INDEX = 0, 1, 2, 3
_EXACT_MANTISSA = 2**53
_MANTISSA_DIGITS = 18
_MAX_EXPONENT = 10**6
# 10**22 is the largest power of ten that a float64 holds exactly.
_POWERS = np.array([float(f"1e{power}") for power in range(23)])
_NOT_FINITE = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_INTEGER = re.compile(rb"[+-]?[0-9]+")


@dataclass(frozen=True, eq=False)
class Block:
    """Labelled sparse rows in compressed form: row ``i`` holds entries ``indptr[i]`` to ``indptr[i + 1]``.

    Attributes:
        labels: float64, shape (n,), as written in the text.
        indptr: int64, shape (n + 1,).
        indices: int64, shape (nnz,): zero-based global feature numbers, unique within a row, in the text's order.
        values: float32 or float64, shape (nnz,).
    """

    labels: Float64Array
    indptr: Int64Array
    indices: Int64Array
    values: npt.NDArray[Any]


class MalformedLine(InputError):
    """A line is not LIBSVM text.

    Attributes:
        line: its position among the lines given, counted from 0.
        reason: what was expected and what came.
    """

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line} (counted from 0): {reason}")
        self.line = line
        self.reason = reason

    # Exceptions are pickled by their args, which hold the whole text; a Spark task must be able to send this one home.
    def __reduce__(self) -> tuple[type[MalformedLine], tuple[int, str]]:
        return type(self), (self.line, self.reason)


def parse(lines: Iterable[bytes], *, values_dtype: str = "float32") -> Block:
    """Parse LIBSVM text lines with one-based indices.

    Blank lines and lines with only a comment give no row. Line ends (also Windows') may be there or not. Indices may
    come in any order.

    Args:
        lines: one row each, ASCII.
        values_dtype: "float32" or "float64".

    Returns:
        A Block with zero-based indices.

    Raises:
        MalformedLine: a line breaks the format, repeats an index, or holds a number that is not finite in its dtype.
        DTypeError: ``values_dtype`` is something else.
    """
    if values_dtype not in ("float32", "float64"):
        raise DTypeError(f"values_dtype: expected 'float32' or 'float64', got {values_dtype!r}")
    dtype = np.dtype(values_dtype)
    labels, lengths = [np.empty(0)], [np.zeros(1, np.int64)]
    indices, values = [np.empty(0, np.int64)], [np.empty(0, dtype)]
    first_line = 0
    for batch in _batches(lines):
        part = _parse_batch(batch, first_line, dtype)
        labels.append(part.labels)
        lengths.append(np.diff(part.indptr))
        indices.append(part.indices)
        values.append(part.values)
        first_line += len(batch)
    indptr = np.cumsum(np.concatenate(lengths), dtype=np.int64)
    return Block(np.concatenate(labels), indptr, np.concatenate(indices), np.concatenate(values))


def _batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Scan(NamedTuple):
    """What the scanner found: the rows before the first malformed line, and that line's fault."""

    labels: Float64Array
    row_lines: Int64Array  # the line of each row
    indptr: Int64Array
    indices: Int64Array
    values: Float64Array
    inexact: Int64Array  # (k, 3): slot in values (or ~row for a label), begin and end of the number in the text
    fault: int
    line: int
    begin: int  # the token at fault, or the line that repeats an index
    end: int


def _parse_batch(batch: list[bytes], first_line: int, dtype: np.dtype[Any]) -> Block:
    """Parse lines that fit in memory together; ``first_line`` is the number of the first."""
    text = b"".join(batch)
    ends = np.cumsum(np.fromiter(map(len, batch), np.int64, len(batch)))
    scan = _Scan(*_scan(np.frombuffer(text, np.uint8), ends, text.count(b":")))
    if len(scan.inexact):
        _fill_inexact(scan, text)
    with np.errstate(over="ignore"):
        values = scan.values.astype(dtype)
    _check_finite(scan, values, batch, first_line)
    if scan.fault:
        reason = _explain(scan.fault, text[scan.begin : scan.end])
        raise MalformedLine(first_line + scan.line, reason)
    return Block(scan.labels, scan.indptr, scan.indices, values)


def _fill_inexact(scan: _Scan, text: bytes) -> None:
    """Let Arrow parse the numbers that the scanner left open."""
    slots, spans = scan.inexact[:, 0], np.ascontiguousarray(scan.inexact[:, 1:]).ravel()
    # Begin and end of every token, in order, are valid string offsets: the even strings are the tokens, and what lies
    # between them the odd ones.
    strings = pa.LargeStringArray.from_buffers(len(spans) - 1, pa.py_buffer(spans), pa.py_buffer(text))
    tokens = strings.take(pa.array(np.arange(0, len(spans), 2)))
    numbers = tokens.cast(pa.float64()).to_numpy(zero_copy_only=False)
    of_label = slots < 0
    scan.labels[~slots[of_label]] = numbers[of_label]
    scan.values[slots[~of_label]] = numbers[~of_label]


def _check_finite(scan: _Scan, values: npt.NDArray[Any], batch: list[bytes], first_line: int) -> None:
    """Raise MalformedLine at the first row with a number beyond its dtype."""
    bad_rows = np.flatnonzero(~np.isfinite(scan.labels))
    bad_slots = np.flatnonzero(~np.isfinite(values))
    row = int(bad_rows[0]) if len(bad_rows) else len(scan.labels)
    name, dtype, token = "label", "float64", 0
    if len(bad_slots):
        row_of_slot = int(np.searchsorted(scan.indptr, bad_slots[0], side="right")) - 1
        if row_of_slot < row:
            row = row_of_slot
            name, dtype, token = "value", str(values.dtype), 1 + int(bad_slots[0] - scan.indptr[row])
    if row < len(scan.labels):
        line = int(scan.row_lines[row])
        came = _show(batch[line].split(b"#")[0].split()[token])
        raise MalformedLine(first_line + line, f"{name}: expected a finite {dtype}, got {came}")


def _explain(fault: int, token: bytes) -> str:
    """Word a fault of the scanner; ``token`` is the text at fault."""
    came = _show(token)
    if fault == _BAD_LABEL:
        if b":" in token:
            return f"label: expected a number before the first feature, got the feature {came}"
        return f"label: expected {_expected_number(token)}, got {came}"
    if fault == _REPEATED_INDEX:
        counts = Counter(int(feature.split(b":")[0]) for feature in token.split(b"#")[0].split()[1:])
        return f"index: expected each index once in a row, got {max(counts, key=counts.__getitem__)} again"
    index, colon, value = token.partition(b":")
    if not colon:
        return f"feature: expected index:value, got {came} without ':'"
    if not _INTEGER.fullmatch(index):
        return f"index: expected an integer, got {_show(index)} in {came}"
    # Compared by length first: Python refuses to convert thousands of digits.
    digits = index.lstrip(b"+-").lstrip(b"0")
    if index.startswith(b"-") or not digits:
        return f"index: expected at least 1, got {_show(index)}"
    if len(digits) > len(str(MAX_INDEX)) or int(digits) > MAX_INDEX:
        return f"index: expected at most {MAX_INDEX}, got {_show(index)}"
    return f"value: expected {_expected_number(value)}, got {_show(value)} in {came}"


def _expected_number(token: bytes) -> str:
    return "a finite number" if _NOT_FINITE.fullmatch(token) else "a number"


def _show(token: bytes) -> str:
    cut = token if len(token) <= SHOWN_BYTES else token[:SHOWN_BYTES] + b"..."
    return repr(cut.decode("ascii", "backslashreplace"))


@kernel
def _digit(text: BytesArray, position: int) -> Any:
    """Read one byte as a digit; the result lies outside 0 to 9 if it is none."""
    return np.int64(text[position]) - 48


@kernel
def _read_index(text: BytesArray, begin: int, end: int) -> int:
    """Read a one-based index; 0 if there is none from 1 to MAX_INDEX."""
    position = begin + 1 if begin < end and text[begin] == 43 else begin
    if position == end:
        return 0
    index = 0
    while position < end:
        digit = _digit(text, position)
        if digit < 0 or digit > 9 or index > (MAX_INDEX - digit) // 10:
            return 0
        index = index * 10 + digit
        position += 1
    return index


@kernel
def _read_exponent(text: BytesArray, begin: int, end: int) -> tuple[bool, int]:
    """Read what follows 'e'; the flag says whether it is an exponent. A huge one is cut at _MAX_EXPONENT."""
    position = begin
    negative = False
    if position < end and (text[position] == 43 or text[position] == 45):
        negative = text[position] == 45
        position += 1
    if position == end:
        return False, 0
    exponent = 0
    while position < end:
        digit = _digit(text, position)
        if digit < 0 or digit > 9:
            return False, 0
        exponent = min(exponent * 10 + digit, _MAX_EXPONENT)
        position += 1
    return True, -exponent if negative else exponent


@kernel
def _scale(mantissa: int, exponent: int) -> tuple[int, float]:
    """Compute mantissa * 10**exponent where one correctly rounded operation does it (Clinger 1990, section 5)."""
    if mantissa == 0:
        return _EXACT, 0.0
    if mantissa > _EXACT_MANTISSA or exponent < -22 or exponent > 22:
        return _INEXACT, 0.0
    if exponent < 0:
        return _EXACT, np.float64(mantissa) / _POWERS[-exponent]
    return _EXACT, np.float64(mantissa) * _POWERS[exponent]


@kernel
def _read_number(text: BytesArray, begin: int, end: int) -> tuple[int, float]:
    """Read a decimal number; the first result is _EXACT, _INEXACT (well formed, value left open) or _BAD."""
    position = begin
    negative = False
    if position < end and (text[position] == 43 or text[position] == 45):
        negative = text[position] == 45
        position += 1
    mantissa, exponent, digits, significant = 0, 0, 0, 0
    point = False
    while position < end:
        digit = _digit(text, position)
        if 0 <= digit <= 9:
            digits += 1
            if significant > 0 or digit > 0:
                significant += 1
            if significant <= _MANTISSA_DIGITS:
                mantissa = mantissa * 10 + digit
                exponent -= point
        elif text[position] == 46 and not point:
            point = True
        else:
            break
        position += 1
    if digits == 0:
        return _BAD, 0.0
    if position < end:
        if text[position] != 69 and text[position] != 101:
            return _BAD, 0.0
        fine, written = _read_exponent(text, position + 1, end)
        if not fine:
            return _BAD, 0.0
        exponent += written
    if significant > _MANTISSA_DIGITS:
        return _INEXACT, 0.0
    status, number = _scale(mantissa, exponent)
    return status, -number if negative else number


@kernel
def _repeats(indices: Int64Array) -> bool:
    """Say whether an index occurs twice."""
    increasing = True
    for position in range(1, len(indices)):
        if indices[position] <= indices[position - 1]:
            increasing = False
            break
    if increasing:
        return False
    ordered = np.sort(indices)
    return bool(np.any(ordered[1:] == ordered[:-1]))


@kernel
def _is_blank(char: int) -> bool:
    return char == 32 or 9 <= char <= 13


@kernel
def _next_token(text: BytesArray, position: int, end: int) -> tuple[int, int, int]:
    """Find the next token: its begin, end (the same if there is none) and first ':' (or end)."""
    while position < end and _is_blank(text[position]):
        position += 1
    begin = position
    colon = -1
    while position < end and not _is_blank(text[position]) and text[position] != 35:
        if text[position] == 58 and colon < 0:
            colon = position
        position += 1
    return begin, position, colon if colon >= 0 else position


@kernel
def _scan(text: BytesArray, ends: Int64Array, max_features: int) -> tuple[Any, ...]:
    """Scan lines that end at ``ends``; returns the fields of _Scan."""
    labels, row_lines = np.empty(len(ends)), np.empty(len(ends), np.int64)
    indptr = np.zeros(len(ends) + 1, np.int64)
    indices, values = np.empty(max_features, np.int64), np.empty(max_features)
    inexact = np.empty((max_features + len(ends), 3), np.int64)
    rows, count, open_numbers, complete = 0, 0, 0, 0
    fault, line, begin, end = _FINE, 0, 0, 0
    for line in range(len(ends)):
        line_begin = ends[line - 1] if line > 0 else 0
        begin, end, colon = _next_token(text, line_begin, ends[line])
        if begin == end:
            continue
        status, number = _read_number(text, begin, end)
        if status == _BAD:
            fault = _BAD_LABEL
            break
        labels[rows], row_lines[rows] = number, line
        if status == _INEXACT:
            inexact[open_numbers] = ~rows, begin + (text[begin] == 43), end
            open_numbers += 1
        begin, end, colon = _next_token(text, end, ends[line])
        while begin < end:
            index = _read_index(text, begin, colon)
            status, number = _read_number(text, colon + 1, end)
            if index == 0 or status == _BAD:
                fault = _BAD_FEATURE
                break
            indices[count], values[count] = index - 1, number
            if status == _INEXACT:
                inexact[open_numbers] = count, colon + 1 + (text[colon + 1] == 43), end
                open_numbers += 1
            count += 1
            begin, end, colon = _next_token(text, end, ends[line])
        if fault == _FINE and _repeats(indices[indptr[rows] : count]):
            fault, begin, end = _REPEATED_INDEX, line_begin, ends[line]
        if fault != _FINE:
            break
        rows, complete = rows + 1, open_numbers
        indptr[rows] = count
    count = indptr[rows]
    matrix = indptr[: rows + 1], indices[:count], values[:count]
    return labels[:rows], row_lines[:rows], *matrix, inexact[:complete], fault, line, begin, end
