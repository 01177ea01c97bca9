"""What the page shows: one immutable snapshot of fleet and run, as plain data. Times are seconds, sizes bytes."""

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
        state: "running", "silent" (no sign of life for longer than usual), "recovering" (lost, and being brought back)
            or "lost".
        reason: why it is lost; "".
        silent_s: since its last sign of life.
        requests_per_s, bytes_in_per_s, bytes_out_per_s: between its last two reports.
        lock_wait: seconds that requests waited for locks of shards, in each second.
        waiting: requests that wait for a lock now.
        copies_bytes: of other servers' shards.
        behind: its shards whose copies are not up to date.
        node: of its container; "".
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
    """All servers in sums, and those that the table shows: the ones that are not running first.

    Attributes:
        running: number of servers in that state.
        states: number of servers by state.
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
        names: of its vectors, the first ones; ``named`` is how many have a name.
        rows: in use; ``reserved`` counts those that exist.
        bytes: on all servers; None: its servers have not said.
        keys: with a slot, of a sparse matrix; else None.
        partitions: number of them on each server, by index; of the first servers, if there are very many.
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
        matrices, rows, bytes: in all.
        found: number of matrices that the search has found; all of them without one.
        begin: number of the first one shown.
        servers: of the fleet.
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
        per_s: runs in each second, between the last two reports.
        busy: seconds spent in it in each second, on all servers together.
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
    """What happened to lost servers."""

    servers: tuple[int, ...]
    source: str
    rolled_back: bool
    seconds: float
    bytes: int
    text: str


@dataclass(frozen=True)
class Bar:
    """Consecutive clocks of one worker, drawn as one: ``parts`` are seconds, in the order of ``ROW_ORDER``.

    Attributes:
        began_s: since the run began.
        clock: the last of them.
        outside: between loops, or reading rows.
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
        clock: that it is in, or was last in.
        behind: clocks behind the furthest worker.
        state: "working", "wait" (for others), "onClock" (for the driver's function), "no task" or "returned".
        why: what it waits for; "".
        since_s: when the state began, in seconds since the run began.
        clocks: that it has ended; a repeated one counts again.
        parts: seconds by category (``ps2.run.accounting``).
        busy_s: of a recent clock, without waiting; None before the first one.
        slowdown: that, over the median of all workers.
        failures: attempts that have failed.
        bars: its recent past; none if the chart does not show it.
        log: URL of its executor's log; "": Spark does not say.
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
        seconds: since it began.
        finished: clocks that all workers have finished, from the first clock on.
        per_s: clocks of all workers in each second, lately.
        left_s: seconds until all have done the clocks of their loops, at this pace; None: it is not known.
        parts: seconds of all workers by category, and of what nobody measured.
        window_s: that the chart shows, up to ``seconds``.
        states: number of workers by state.
        shown: the workers of table and chart.
        stragglers: ranks whose clocks take much longer than others'.
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
        unit, objective: the family's words for a step, and for what it minimises.
        left_s: seconds until the last step, if all take as long as those before; None: not known.
        state: "reading", "training", "done", or the error that ended it.
        numbers: further values of this kind of training, as of the last step.
        series: objective, validation, seconds of a step, and the further values.
        value: of the objective, after the last step; ``validation`` likewise.
        step_s: that the last step took.
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
    """A run or a fit that is over, or under way (``seconds`` is None then)."""

    kind: str
    name: str
    at_s: float
    seconds: float | None
    outcome: str
    detail: str


@dataclass(frozen=True)
class EventView:
    """Something that happened: ``kind`` is "lost", "recovery", "retry", "checkpoint" or "warning"."""

    at_s: float
    kind: str
    text: str


@dataclass(frozen=True)
class Snapshot:
    """All that the page shows.

    Attributes:
        fleet_id: of the coordinator; another one is another fleet.
        at_s: time of the snapshot, since the epoch of Unix.
        where: host and process that it is of.
        note: what the page cannot know, if anything.
        dropped_events: number of events that are not shown, as they are older.
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
    """Return a view as JSON; numbers that JSON does not have are null."""
    return json.dumps(_plain(view), separators=(",", ":"), allow_nan=False).encode(errors="backslashreplace")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return value
