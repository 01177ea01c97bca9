"""A snapshot of more than a page can show: 1,000 servers, 10,000 matrices, 500 workers."""

from __future__ import annotations

from functools import cache

from ps2.dashboard.fleet_view import CatalogMatrix, ServerHealth, fleet_view, operation_views, vectors_view
from ps2.dashboard.run_view import RunWatcher
from ps2.dashboard.snapshot import EventView, HistoryView, Snapshot
from ps2.matrix.partition import MatrixSpec
from ps2.rpc.run_control import ClockTimes, Logged
from ps2.run.clocks import Clocks
from ps2.run.state import RunState

SERVERS, MATRICES, WORKERS = 1000, 10_000, 500


class _Silent:
    def clock_due(self):
        pass

    def logged(self, rank, metric):
        pass

    def failed(self):
        pass


@cache
def many_of_all():
    health = [ServerHealth(i, f"id{i}", f"host{i}.example:7070", 0.3, None) for i in range(SERVERS)]
    spec = MatrixSpec(1_000_000, 4)
    owners = range(SERVERS)
    held = [
        CatalogMatrix(i, spec, 3, owners, [f"matrix {i}, vector {row}" for row in range(3)]) for i in range(MATRICES)
    ]
    run = RunState(WORKERS, Clocks(WORKERS, 0), _Silent())
    for rank in range(WORKERS):
        lease = run.leases.new(rank, rank, lambda: None)
        run.leases.grant(lease)
        for clock in range(20):
            times = ClockTimes(clock, 0.4 * clock, 0.2 + rank / 5000, 0.05, 0.02, 0.03)
            run.record(lease, clock + 1, [Logged("loss", 1 / (1 + clock), clock)], times)
    watcher = RunWatcher(run, 0)
    watcher.view()
    return Snapshot(
        fleet_id="many",
        at_s=1.8e9,
        version="0",
        where="here",
        fleet=fleet_view(health, {}, 0.0),
        vectors=vectors_view(held, SERVERS, {}),
        operations=operation_views([])[0],
        operations_left_out=0,
        run=watcher.view(),
        history=tuple(HistoryView("run", f"work {i}", 1.8e9 - i, 2.0, "done", "") for i in range(50)),
        events=tuple(EventView(1.8e9 - i, "warning", "something " * 30) for i in range(100)),
        dropped_events=400,
    )
