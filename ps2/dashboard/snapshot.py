"""The content of the page: an immutable snapshot of fleet and run. Times are in seconds, sizes in bytes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class ServerView:
    """One server. Its numbers are None until it has reported.

    Attributes:
        state: "running", "silent" (no heartbeat for longer than usual), "recovering" (lost, and being replaced) or
            "lost".
        reason: the reason for the loss of the server, or "".
        silent_s: the time since its last heartbeat.
        requests_per_s, bytes_in_per_s, bytes_out_per_s: the rates between its last two reports.
        lock_wait: the seconds per second for which requests waited for locks of shards, summed over requests.
        waiting: the number of requests that wait for a lock now.
        failed: the number of failed requests.
        copies_bytes: the size of its copies of other servers' shards.
        backup: the address of the server with the copies of its shards, or "".
        behind: the number of its shards whose copies are not up to date.
        node: the node of its container, or "".
    """

    index: int
    address: str
    state: str
    reason: str
    silent_s: float
    uptime_s: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    rss_bytes: int | None = None
    requests_per_s: float | None = None
    bytes_in_per_s: float | None = None
    bytes_out_per_s: float | None = None
    lock_wait: float | None = None
    waiting: int | None = None
    failed: int | None = None
    connections: int | None = None
    copies_bytes: int | None = None
    backup: str = ""
    behind: int = 0
    node: str = ""


@dataclass(frozen=True)
class FleetView:
    """Sums over all servers, and the servers that the table shows, those that are not running first.

    Attributes:
        running: the number of running servers.
        states: the number of servers by state.
    """

    servers: int
    running: int
    memory_bytes: int
    memory_limit_bytes: int
    requests_per_s: float
    bytes_in_per_s: float
    bytes_out_per_s: float
    lock_wait: float
    copies_bytes: int
    states: dict[str, int]
    shown: tuple[ServerView, ...]


@dataclass(frozen=True)
class MatrixView:
    """One matrix.

    Attributes:
        names: the first names of its vectors; ``named`` is the number of all names.
        rows: the number of rows in use; ``reserved`` counts all rows.
        bytes: the size on all servers; None: its servers have not reported.
        keys: the number of a sparse matrix's keys with a slot; else None.
        partitions: the number of partitions on each server, by index; only the first servers, if there are very many.
    """

    id: str
    names: tuple[str, ...]
    named: int
    kind: str
    layout: str
    dtype: str
    dim: int
    rows: int
    reserved: int
    bytes: int | None
    keys: int | None
    partitions: tuple[int, ...]


@dataclass(frozen=True)
class VectorsView:
    """A page of the table of matrices, the largest first.

    Attributes:
        matrices, rows, bytes: totals over all matrices.
        found: the number of matrices that match the search; without a search, all.
        begin: the number of the first matrix on the page.
        servers: the number of servers in the fleet.
    """

    servers: int
    matrices: int
    rows: int
    bytes: int
    found: int
    begin: int
    shown: tuple[MatrixView, ...]


@dataclass(frozen=True)
class OperationView:
    """One operation, summed over all servers since they started.

    Attributes:
        per_s: the executions per second between the last two reports.
        busy: the seconds spent in it per second, on all servers together.
    """

    name: str
    count: int
    failures: int
    seconds: float
    mean_s: float
    keys: int
    per_s: float
    busy: float


@dataclass(frozen=True)
class CheckpointView:
    """A checkpoint that is complete."""

    path: str
    number: int
    step: int | None
    bytes: int
    pause_s: float
    seconds: float
    at_s: float


@dataclass(frozen=True)
class RecoveryView:
    """A recovery of lost servers."""

    servers: tuple[int, ...]
    source: str
    rolled_back: bool
    seconds: float
    bytes: int
    text: str


@dataclass(frozen=True)
class Bar:
    """Consecutive clocks of one worker, drawn as one bar.

    Attributes:
        began_s: the beginning, in seconds since the run began.
        clock: the last clock; ``clocks`` is their number.
        parts: the seconds by category, in the order of ``ROW_ORDER``.
        outside: True for the time between loops, or for reading rows.
    """

    began_s: float
    clock: int
    clocks: int
    parts: Numbers
    outside: bool


@dataclass(frozen=True)
class WorkerView:
    """One worker.

    Attributes:
        clock: its current or last clock.
        behind: the number of clocks behind the furthest worker.
        state: "working", "wait" (for others), "onClock" (for the driver's function), "no task" or "returned".
        why: the reason for waiting, or "".
        since_s: the beginning of the state, in seconds since the run began.
        clocks: the number of clocks that it has finished; a repeated clock counts again.
        parts: the seconds by category (``ps2.run.timeline``).
        busy_s: the seconds of a recent clock without waiting; None before the first one.
        slowdown: ``busy_s`` divided by the median of all workers.
        failures: the number of failed attempts.
        bars: its recent clocks; empty if the chart does not show the worker.
        log: the URL of its executor's log; "": unknown.
    """

    rank: int
    clock: int
    behind: int
    state: str
    why: str
    since_s: float
    clocks: int
    parts: Numbers
    busy_s: float | None
    slowdown: float | None
    failures: int
    bars: tuple[Bar, ...] = ()
    log: str = ""


@dataclass(frozen=True)
class Series:
    """Numbers by step or clock, thinned to a few hundred points."""

    name: str
    at: Numbers
    values: Numbers


@dataclass(frozen=True)
class RunView:
    """A run: the current one, or the last one.

    Attributes:
        seconds: the time since it began.
        finished: the number of clocks that all workers have finished, counted from the first clock.
        per_s: the recent rate of clocks of all workers, per second.
        left_s: the seconds until the ends of all loops, at this rate; None: unknown.
        parts: the seconds of all workers by category; the last entry is the unmeasured time.
        window_s: the length of the chart, which ends at ``seconds``.
        states: the number of workers by state.
        shown: the workers in the table and the chart.
        stragglers: the ranks whose clocks take much longer than others'.
    """

    number: int
    workers: int
    discipline: str
    seconds: float
    is_over: bool
    finished: int
    first: int
    furthest: int
    per_s: float
    left_s: float | None
    parts: Numbers
    window_s: float
    states: dict[str, int]
    shown: tuple[WorkerView, ...]
    stragglers: tuple[int, ...]
    rollbacks: int
    series: tuple[Series, ...]


@dataclass(frozen=True)
class TrainingView:
    """A training: the current one, or the last one.

    Attributes:
        unit, objective: the family's words for a step and for the objective.
        left_s: the seconds until the last step, at the mean time of the steps so far; None: unknown.
        state: "reading", "training", "done", or the error that ended it.
        numbers: the family's own metrics after the last step.
        series: the objective, validation, seconds of a step, and the family's metrics.
        value: the objective after the last step; ``validation`` likewise.
        step_s: the seconds of the last step.
    """

    name: str
    unit: str
    objective: str
    step: int
    steps: int
    seconds: float
    left_s: float | None
    rows_per_s: float | None
    bytes: int
    state: str
    params: tuple[tuple[str, str], ...]
    numbers: tuple[tuple[str, float], ...]
    series: tuple[Series, ...]
    value: float | None = None
    validation: float | None = None
    step_s: float | None = None


@dataclass(frozen=True)
class HistoryView:
    """A run or a fit. ``seconds`` is None if it is under way."""

    kind: str
    name: str
    at_s: float
    seconds: float | None
    outcome: str
    detail: str


@dataclass(frozen=True)
class EventView:
    """An event: ``kind`` is "lost", "recovery", "retry", "checkpoint", "worker" or "warning"."""

    at_s: float
    kind: str
    text: str


@dataclass(frozen=True)
class Snapshot:
    """The page's content.

    Attributes:
        fleet_id: the coordinator's id, which identifies the fleet.
        at_s: the time of the snapshot, in seconds since the Unix epoch.
        where: the host and the process of the snapshot.
        note: a text about missing content, or "".
        dropped_events: the number of older events that are not shown.
    """

    fleet_id: str
    at_s: float
    version: str
    where: str
    fleet: FleetView
    vectors: VectorsView
    operations: tuple[OperationView, ...]
    operations_left_out: int
    note: str = ""
    replicas: int = 0
    checkpoints: tuple[CheckpointView, ...] = ()
    recoveries: tuple[RecoveryView, ...] = ()
    run: RunView | None = None
    training: TrainingView | None = None
    history: tuple[HistoryView, ...] = ()
    events: tuple[EventView, ...] = ()
    dropped_events: int = 0
    took_s: float = field(default=0.0, compare=False)


def to_json(view: Any) -> bytes:
    """Return a view as JSON, with null for NaN and infinity."""
    return json.dumps(_plain(view), separators=(",", ":"), allow_nan=False).encode(errors="backslashreplace")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value
