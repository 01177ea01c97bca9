"""The content of the live page: an immutable snapshot of fleet and run, sent as JSON.

Times are in seconds, sizes in bytes. Fields ``at_s`` are seconds since 1970.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class ServerView:
    """One server. Fields are None until the server has reported their values.

    Attributes:
        state: "running", "silent" (no heartbeat for longer than usual), "recovering" (lost, and being replaced) or
            "lost".
        reason: the reason why the server is lost; "": it is not lost.
        silent_s: the time since its last heartbeat.
        uptime_s: the time since its start.
        memory_bytes, memory_limit_bytes: the memory of its arrays, and the limit of this memory.
        rss_bytes: the resident memory of its process.
        requests_per_s, bytes_in_per_s, bytes_out_per_s: the rates between its last two reports.
        lock_wait: the average number of requests that waited for a lock between the last two reports.
        waiting: the number of requests that wait for a lock now.
        failed: the number of failed requests.
        connections: the number of open connections.
        copies_bytes: the size of its copies of other servers' shards.
        backup: the address of the server with the copies of its shards, or "".
        behind: the number of its shards whose copies are not up to date.
        node: the node of its container; "": it runs in no container.
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
    """Sums over all servers, and the servers in the table.

    Attributes:
        servers: the number of servers.
        running: the number of running servers.
        states: the number of servers by state.
        shown: the servers in the table, by index. If there are too many, running servers are omitted.
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
        id: the matrix's number in hexadecimal.
        names: the first names of its vectors.
        named: the number of its named vectors.
        kind: "dense" or "sparse".
        dim: the number of columns.
        rows: the number of rows in use.
        reserved: the number of all rows.
        bytes: the size on all servers; None: its servers have not reported.
        keys: the number of a sparse matrix's keys with a slot; None for a dense matrix.
        partitions: the number of partitions on each server, by index, for the first 128 servers.
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
    """A page of the table of matrices, in descending order of size.

    Attributes:
        matrices, rows, bytes: totals over all matrices.
        found: the number of matrices that match the search text.
        begin: the index of the first matrix on the page.
        servers: the number of servers of the fleet.
        shown: the matrices on the page.
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
        seconds, mean_s: the total time, and the mean time of an execution.
        keys: the total number of keys.
        per_s: the executions per second between the last two reports.
        busy: the seconds per second that all servers together have spent in it between the last two reports.
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
    """A complete checkpoint; see ``ps2.coordinator.checkpoints.Checkpoint``. ``at_s`` is the time of its end."""

    path: str
    number: int
    step: int | None
    bytes: int
    pause_s: float
    seconds: float
    at_s: float


@dataclass(frozen=True)
class RecoveryView:
    """A recovery of lost servers; see ``ps2.coordinator.recovery.Recovery``. ``text`` describes it in a sentence."""

    servers: tuple[int, ...]
    source: str
    rolled_back: bool
    seconds: float
    bytes: int
    text: str


@dataclass(frozen=True)
class Bar:
    """Consecutive clocks of one worker, which the chart shows as one bar.

    Attributes:
        began_s: the start, in seconds since the run began.
        clock: the last of the clocks.
        clocks: the number of clocks.
        parts: the seconds by category, in the order of ``ROW_ORDER``.
        outside: True for time outside of clocks: between loops, or while the worker reads rows.
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
        behind: the number of clocks by which it is behind the fastest worker.
        state: "working", "wait" (for other workers), "onClock" (for the driver's function), "no task" or "returned".
        why: the reason for waiting; "": it does not wait.
        since_s: the start of the state, in seconds since the run began.
        clocks: the number of clocks that it has finished; a repeated clock counts again.
        parts: the seconds by category (``ps2.run.timeline``).
        busy_s: the mean duration of recent clocks without waiting; None before the first clock.
        slowdown: ``busy_s`` divided by its median over all workers.
        failures: the number of failed attempts of its task.
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
    """The values of a chart, and their steps or clocks (``at``), downsampled to a few hundred points."""

    name: str
    at: Numbers
    values: Numbers


@dataclass(frozen=True)
class RunView:
    """A run: the current one, or the last one.

    Attributes:
        number: the number of the run in this driver, from 0.
        discipline: BSP, SSP or ASP, as text.
        seconds: the time since it began.
        finished: all workers have finished the clocks before this one.
        first: the first clock.
        furthest: the clock of the fastest worker.
        per_s: the recent rate: clocks of all workers per second.
        left_s: the estimated seconds until the end of all loops; None: unknown.
        parts: the seconds of all workers by category; the last entry is the unmeasured time.
        window_s: the duration that the chart shows, up to now.
        states: the number of workers by state.
        shown: the workers in the table and the chart.
        stragglers: the ranks whose clocks take much longer than the median.
        rollbacks: the number of rollbacks of the fleet during the run.
        series: the values that workers have logged.
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
        name: the estimator.
        unit, objective: the family's names of a step and of the objective, such as "iteration" and "loss".
        step: the last finished step.
        steps: the maximum number of steps.
        left_s: the estimated seconds until the last step; None: unknown.
        bytes: the data sent to and received from servers.
        state: "reading", "training", "done", or the error that ended it.
        params: names and values of the estimator's params.
        numbers: names and values of the family's further metrics after the last step.
        series: charts of objective, validation, seconds of a step, and the family's metrics.
        value, validation: the objective after the last step, on the training rows and on the validation rows.
        step_s: the duration of the last step.
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
    """A run or a fit. ``seconds`` is its duration; None: it is in progress."""

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
        at_s: the time of the snapshot.
        where: the host and the process that made the snapshot.
        operations_left_out: the number of operations that are not shown.
        note: a text that explains missing content, or "".
        dropped_events: the number of older events that are not shown.
        took_s: the time that the snapshot took.
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
    """Return a dataclass of this module as JSON; NaN and infinity become null."""
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
