"""Workers' reports of a clock (``worker.report``), merged in the order of ranks for ``onClock``. Pure."""

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
    """Return a report; raise UsageError if its value cannot be merged."""
    if merge not in MERGES:
        raise UsageError(f"report: merge: expected one of {', '.join(map(repr, MERGES))}, got {merge!r}")
    items = value.items() if isinstance(value, dict) else [(None, value)]
    for key, item in items:
        is_number = isinstance(item, (bool, int, float, np.number, np.bool_))
        if not is_number and not isinstance(item, np.ndarray) and not (merge == "concat" and isinstance(item, list)):
            name = "report" if key is None else f"report[{key!r}]"
            lists = ", or a list" if merge == "concat" else ""
            raise UsageError(
                f"{name}: expected a number or a NumPy array{lists}, got {type(item).__name__} {item!r:.80}"
            )
    return Report(clock, merge, encode("report", value))


class ReportLog:
    """The workers' reports by clock and then by rank, kept until ``onClock`` has returned for the clock."""

    def __init__(self) -> None:
        self._reports: dict[int, dict[int, Sequence[Report]]] = {}

    def add(self, rank: int, reports: Sequence[Report], called: int) -> None:
        """Store a worker's reports of clocks from ``called`` on. Reports of a repeated clock replace the old ones."""
        by_clock: dict[int, list[Report]] = {}
        for report in reports:
            by_clock.setdefault(report.clock, []).append(report)
        for clock, clock_reports in by_clock.items():
            if clock >= called:
                self._reports.setdefault(clock, {})[rank] = clock_reports

    def clock_reports(self, clock: int) -> dict[int, Sequence[Report]]:
        return dict(self._reports.get(clock, {}))

    def drop(self, clock: int) -> None:
        self._reports.pop(clock, None)

    def since(self, clock: int) -> dict[int, dict[int, Sequence[Report]]]:
        """Return the reports of a clock and of all later clocks."""
        return {key: dict(by_rank) for key, by_rank in self._reports.items() if key >= clock}

    def resume(self, pending: PendingReports) -> None:
        """Add the reports that an earlier driver's ``onClock`` has not received."""
        for rank, clock, merge, value in pending.reports:
            earlier = self._reports.setdefault(clock, {}).get(rank, ())
            self._reports[clock][rank] = [*earlier, Report(clock, merge, value)]

    def restore(self, reports: Mapping[int, Mapping[int, Sequence[Report]]]) -> None:
        self._reports = {clock: dict(by_rank) for clock, by_rank in reports.items()}


def merge_reports(clock: int, reports: Mapping[int, Sequence[Report]]) -> list[Any]:
    """Merge the reports of a clock: the first reports of all ranks, then the second ones, and so on."""
    count = max((len(rank_reports) for rank_reports in reports.values()), default=0)
    return [
        _merge_by_rank(clock, {rank: reports[rank][number] for rank in sorted(reports) if number < len(reports[rank])})
        for number in range(count)
    ]


def _merge_by_rank(clock: int, reports: Mapping[int, Report]) -> Any:
    first, first_report = next(iter(reports.items()))
    merge, values = first_report.merge, {}
    for rank, report in reports.items():
        if report.merge != merge:
            raise _difference(clock, first, rank, f"merge={merge!r}", f"merge={report.merge!r}")
        values[rank] = decode(report.value)
    first_value = values[first]
    if not isinstance(first_value, dict):
        return _merge(clock, merge, values)
    for rank, value in values.items():
        if not isinstance(value, dict) or list(value) != list(first_value):
            raise _difference(clock, first, rank, _describe(first_value), _describe(value))
    return {key: _merge(clock, merge, {rank: value[key] for rank, value in values.items()}) for key in first_value}


def _merge(clock: int, merge: str, values: Mapping[int, Any]) -> Any:
    first, first_value = next(iter(values.items()))
    for rank, value in values.items():
        if not _are_mergeable(merge, first_value, value):
            raise _difference(clock, first, rank, _describe(first_value), _describe(value))
    parts = list(values.values())
    if merge == "concat":
        return _concatenated(parts)
    if not isinstance(first_value, np.ndarray):
        return reduce(add, parts, 0) if merge == "sum" else _largest(parts)
    if merge == "max":
        return np.maximum.reduce(parts)
    return _sum(clock, parts)


def _concatenated(parts: list[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate([np.atleast_1d(part) for part in parts])
    return [item for part in parts for item in part] if isinstance(parts[0], list) else parts


def _largest(parts: list[Any]) -> Any:
    """Return the largest number, or NaN if a number is NaN, as NumPy does."""
    return next((part for part in parts if part != part), max(parts))


def _sum(clock: int, parts: list[Array]) -> Array:
    """Add arrays of floats in float64, and arrays of integers exactly in 64 bits."""
    if parts[0].dtype.kind == "f":
        return reduce(add, parts, np.zeros(parts[0].shape))
    dtype = np.dtype(np.uint64 if parts[0].dtype == np.uint64 else np.int64)
    total: Array = np.zeros(parts[0].shape, dtype)
    for part in parts:
        previous, part = total, part.astype(dtype)
        total = previous + part
        overflows = total < previous if dtype == np.uint64 else ((previous ^ total) & (part ^ total)) < 0
        if overflows.any():
            raise WorkerError(f"report: clock {clock}: the sum of the workers' reports does not fit {dtype}")
    return total


def _are_mergeable(merge: str, first_value: Any, value: Any) -> bool:
    if not isinstance(first_value, np.ndarray) or not isinstance(value, np.ndarray):
        return (isinstance(first_value, (int, float)) and isinstance(value, (int, float))) or type(value) is type(
            first_value
        )
    shapes = (first_value.shape[1:], value.shape[1:]) if merge == "concat" else (first_value.shape, value.shape)
    return value.dtype == first_value.dtype and shapes[0] == shapes[1]


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    return f"a dict of {', '.join(map(repr, value))}" if isinstance(value, dict) else type(value).__name__


def _difference(clock: int, first: int, rank: int, expected: str, value: str) -> WorkerError:
    return WorkerError(
        f"report: clock {clock}: rank {rank} differs from rank {first}: expected {expected}, got {value}"
    )
