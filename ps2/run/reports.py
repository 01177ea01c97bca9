"""Small results of workers, merged by rank for ``onClock``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.errors import UsageError, WorkerError
from ps2.protocol.journal_file import PendingReports
from ps2.protocol.plain_data import decode, encode
from ps2.rpc.run_control import Report

MERGES = ("sum", "max", "concat")
Array = npt.NDArray[Any]


def report(clock: int, value: object, merge: str) -> Report:
    """Return a report that can be merged.

    Raises:
        UsageError: the value is not a number, an array, or a dict of these; or the merge is unknown.
        LimitError: the value takes more than 64 MB.
    """
    if merge not in MERGES:
        raise UsageError(f"report: merge: expected one of {', '.join(map(repr, MERGES))}, got {merge!r}")
    parts = value.items() if isinstance(value, dict) else [(None, value)]
    for key, part in parts:
        is_number = isinstance(part, (bool, int, float, np.number, np.bool_))
        if not is_number and not isinstance(part, np.ndarray) and not (merge == "concat" and isinstance(part, list)):
            name = "report" if key is None else f"report[{key!r}]"
            also = ", or a list" if merge == "concat" else ""
            raise UsageError(
                f"{name}: expected a number or a NumPy array{also}, got {type(part).__name__} {part!r:.80}"
            )
    return Report(clock, merge, encode("report", value))


class ReportLog:
    """What workers reported, by clock and then by rank, until ``onClock`` has returned for the clock."""

    def __init__(self) -> None:
        self._reports: dict[int, dict[int, Sequence[Report]]] = {}

    def note(self, rank: int, reports: Sequence[Report], called: int) -> None:
        """Keep a worker's reports. An attempt that repeats a clock replaces its reports.

        Args:
            called: the first clock for which ``onClock`` has not returned; earlier reports are dropped.
        """
        by_clock: dict[int, list[Report]] = {}
        for one in reports:
            by_clock.setdefault(one.clock, []).append(one)
        for clock, mine in by_clock.items():
            if clock >= called:
                self._reports.setdefault(clock, {})[rank] = mine

    def of(self, clock: int) -> dict[int, Sequence[Report]]:
        return dict(self._reports.get(clock, {}))

    def drop(self, clock: int) -> None:
        self._reports.pop(clock, None)

    def since(self, clock: int) -> dict[int, dict[int, Sequence[Report]]]:
        """Return the reports of a clock and of all later ones."""
        return {of: dict(mine) for of, mine in self._reports.items() if of >= clock}

    def go_on(self, pending: PendingReports) -> None:
        """Take over the reports that an earlier driver's ``onClock`` has not received."""
        for rank, clock, merge, value in pending.reports:
            mine = self._reports.setdefault(clock, {}).get(rank, ())
            self._reports[clock][rank] = [*mine, Report(clock, merge, value)]

    def restore(self, reports: Mapping[int, Mapping[int, Sequence[Report]]]) -> None:
        self._reports = {clock: dict(mine) for clock, mine in reports.items()}


def merged(clock: int, reports: Mapping[int, Sequence[Report]]) -> list[Any]:
    """Merge the reports of a clock: the first reports of all ranks, then the second ones, and so on.

    Raises:
        WorkerError: reports do not fit each other; names the ranks.
    """
    most = max((len(mine) for mine in reports.values()), default=0)
    return [
        _merged(clock, {rank: reports[rank][number] for rank in sorted(reports) if number < len(reports[rank])})
        for number in range(most)
    ]


def _merged(clock: int, reports: Mapping[int, Report]) -> Any:
    first, merge = next(iter(reports.items()))
    values = {}
    for rank, one in reports.items():
        if one.merge != merge.merge:
            raise _differ(clock, first, rank, f"merge={merge.merge!r}", f"merge={one.merge!r}")
        values[rank] = decode(one.value)
    begun = values[first]
    if not isinstance(begun, dict):
        return _merge(clock, merge.merge, values)
    for rank, value in values.items():
        if not isinstance(value, dict) or list(value) != list(begun):
            raise _differ(clock, first, rank, _form(begun), _form(value))
    return {key: _merge(clock, merge.merge, {rank: value[key] for rank, value in values.items()}) for key in begun}


def _merge(clock: int, merge: str, values: Mapping[int, Any]) -> Any:
    first, begun = next(iter(values.items()))
    for rank, value in values.items():
        if not _fits(merge, begun, value):
            raise _differ(clock, first, rank, _form(begun), _form(value))
    parts = list(values.values())
    if merge == "concat":
        return _concatenated(parts)
    if not isinstance(begun, np.ndarray):
        return reduce(add, parts, 0) if merge == "sum" else _largest(parts)
    if merge == "max":
        return np.maximum.reduce(parts)
    return _sum(clock, parts)


def _concatenated(parts: list[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate([np.atleast_1d(part) for part in parts])
    return [item for part in parts for item in part] if isinstance(parts[0], list) else parts


def _largest(parts: list[Any]) -> Any:
    """Return the largest number, or NaN if there is one, as NumPy does."""
    return next((part for part in parts if part != part), max(parts))


def _sum(clock: int, parts: list[Array]) -> Array:
    """Add arrays in float64, or exactly in 64-bit integers."""
    if parts[0].dtype.kind == "f":
        return reduce(add, parts, np.zeros(parts[0].shape))
    wide = np.dtype(np.uint64 if parts[0].dtype == np.uint64 else np.int64)
    total: Array = np.zeros(parts[0].shape, wide)
    for part in parts:
        before, part = total, part.astype(wide)
        total = before + part
        wrapped = total < before if wide == np.uint64 else ((before ^ total) & (part ^ total)) < 0
        if wrapped.any():
            raise WorkerError(f"report: clock {clock}: the sum of the workers' reports does not fit {wide}")
    return total


def _fits(merge: str, begun: Any, value: Any) -> bool:
    if not isinstance(begun, np.ndarray) or not isinstance(value, np.ndarray):
        return (isinstance(begun, (int, float)) and isinstance(value, (int, float))) or type(value) is type(begun)
    shapes = (begun.shape[1:], value.shape[1:]) if merge == "concat" else (begun.shape, value.shape)
    return value.dtype == begun.dtype and shapes[0] == shapes[1]


def _form(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    return f"a dict of {', '.join(map(repr, value))}" if isinstance(value, dict) else type(value).__name__


def _differ(clock: int, first: int, rank: int, begun: str, found: str) -> WorkerError:
    return WorkerError(
        f"report: clock {clock}: expected of rank {rank} what rank {first} reported, {begun}, got {found}"
    )
