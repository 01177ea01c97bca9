"""Fleet, vectors, trainings and events as the live page shows them."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field

import pytest

from ps2.dashboard.event_log import EventLog
from ps2.dashboard.fleet_view import (
    MAX_MATRICES,
    MAX_SERVERS,
    REQUESTED_S,
    CatalogMatrix,
    ServerHealth,
    ServerReports,
    fleet_view,
    operation_views,
    vectors_view,
)
from ps2.dashboard.snapshot import to_json
from ps2.dashboard.training_log import TrainingLog
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.rpc.server_status import MatrixStatus
from ps2.server.engine import Engine
from ps2.server.servicer import server_status


def status(uptime_s=1.0, server_id="a", matrices=(), **numbers):
    """Return a server's status with these numbers."""
    created = server_status(
        Engine(1 << 20, allow_udf=False).shared,
        [],
        server_id=server_id,
        uptime_s=uptime_s,
        connections=0,
        backup="",
        num_out_of_sync=0,
    )
    for name, value in {"matrices": tuple(matrices), **numbers}.items():
        object.__setattr__(created, name, value)
    return created


class Reports(ServerReports):
    """Reports on a clock that the test moves."""

    def __init__(self):
        self.now = 100.0
        super().__init__(lambda: self.now)


def test_rates_when_a_server_reports_twice_then_are_per_second():
    reports = Reports()
    reports.add(0, status(10.0, bytes_in=1000, lock_wait_s=0.5))
    reports.add(0, status(12.0, bytes_in=5000, lock_wait_s=1.5))
    (server,) = fleet_view([ServerHealth(0, "a", "h:1", 0.1, None)], reports.all(), reports.now).shown
    assert (server.bytes_in_per_s, server.lock_wait) == (2000, 0.5)


def test_rates_when_the_process_is_another_one_then_begin_anew():
    reports = Reports()
    reports.add(0, status(10.0, bytes_in=1000))
    reports.add(0, status(1.0, "b", bytes_in=10))
    (server,) = fleet_view([ServerHealth(0, "b", "h:1", 0.1, None)], reports.all(), reports.now).shown
    assert server.bytes_in_per_s is None


def test_reports_when_nobody_looks_any_more_then_are_not_wanted():
    reports = Reports()
    assert not reports.are_requested
    reports.request()
    assert reports.are_requested
    reports.now += REQUESTED_S
    assert not reports.are_requested


@pytest.mark.parametrize(
    ("why", "silent_s", "is_recoverable", "state"),
    [
        (None, 0.1, True, "running"),
        (None, 3.0, True, "silent"),
        ("gone", 3.0, True, "recovering"),
        ("gone", 3.0, False, "lost"),
    ],
)
def test_server_when_looked_at_then_has_one_state(why, silent_s, is_recoverable, state):
    health = ServerHealth(0, "a", "h:1", silent_s, why, is_recoverable)
    assert fleet_view([health], {}, 0.0, silent_after_s=2.5).shown[0].state == state


def test_servers_when_they_are_many_then_lost_ones_are_shown():
    health = [ServerHealth(i, f"{i}", f"h:{i}", 0.1, "gone" if i == 999 else None) for i in range(1000)]
    fleet = fleet_view(health, {}, 0.0)
    assert (fleet.servers, fleet.running, len(fleet.shown)) == (1000, 999, MAX_SERVERS)
    assert fleet.shown[-1].index == 999


def test_operations_when_summed_then_the_slowest_comes_first():
    @dataclass
    class Done:
        name: str
        count: int
        seconds: float
        failures: int = 0
        keys: int = 0

    reports = Reports()
    for index in range(2):
        reports.add(index, status(10.0, operations=(Done("pull", 10, 1.0), Done("adam", 1, 5.0))))
        reports.add(index, status(12.0, operations=(Done("pull", 30, 2.0), Done("adam", 1, 5.0))))
    (adam, pull), left_out = operation_views(reports.all().values())
    assert (adam.name, adam.seconds, adam.busy) == ("adam", 10.0, 0.0)
    assert (pull.count, pull.per_s, pull.busy) == (60, 20.0, 1.0)
    assert left_out == 0


def held(id, names=(), dim=100, kind="dense"):
    return CatalogMatrix(id, MatrixSpec(dim, 2, kind=kind), 1, (0, 1), names)


def test_vectors_when_they_are_10000_then_are_paged_and_found():
    matrices = [held(i, [f"vector {i}"], dim=100 + i) for i in range(10_000)]
    first = vectors_view(matrices, 2, {})
    assert (first.matrices, first.found, len(first.shown)) == (10_000, 10_000, MAX_MATRICES)
    assert first.shown[0].names == ("vector 9999",)
    second = vectors_view(matrices, 2, {}, begin=MAX_MATRICES)
    assert second.shown[0].names == ("vector 9899",)
    assert vectors_view(matrices, 2, {}, begin=1_000_000).begin == 9_900
    assert [one.names for one in vectors_view(matrices, 2, {}, find="TOR 777").shown][-1] == ("vector 777",)


def test_sparse_vector_when_servers_report_then_has_its_keys():
    reports, one = Reports(), held(5, kind="sparse")
    assert vectors_view([one], 2, {}).shown[0].bytes is None
    for index in range(2):
        result = MatrixStatus(5, one.spec, 1, 800, 7, (Partition(index, 0, 1),))
        reports.add(index, status(matrices=[result]))
    (matrix,) = vectors_view([one], 2, reports.all()).shown
    assert (matrix.bytes, matrix.keys, matrix.partitions) == (1600, 14, (1, 1))


@dataclass
class Words:
    step: str = "tree"
    objective: str = "loss"


@dataclass
class Step:
    number: int
    objective: float
    seconds: float
    rows: int = 100
    bytes: int = 8
    validation: float | None = None
    metrics: dict = field(default_factory=dict)
    words: Words = field(default_factory=Words)


def test_training_when_steps_come_then_has_series_and_time_left():
    log = TrainingLog()
    with log.training("GBT", 10, {"maxIter": 10}) as note:
        assert log.current().state == "reading"
        for number in range(1, 5):
            note(Step(number, 1.0 / number, 2.0 * number, validation=0.5, metrics={"leaves": 3.0 * number}))
        view = log.current()
    assert (view.unit, view.step, view.left_s, view.state) == ("tree", 4, 12.0, "training")
    series = {one.name: one for one in view.series}
    assert series["objective"].values == (1.0, 0.5, 0.333333, 0.25)
    assert series["seconds of a step"].values == (2.0, 2.0, 2.0)
    assert series["leaves"].values == (3.0, 6.0, 9.0, 12.0)
    assert view.params == (("maxIter", "10"),)
    assert (log.current().state, log.current().left_s) == ("done", None)


def test_training_when_the_fleet_rolls_back_then_later_steps_go():
    log = TrainingLog()
    with log.training("LR", 10, {}) as note:
        for number in (1, 2, 3, 2):
            note(Step(number, float(number), float(number)))
    assert log.current().series[0].at == (1, 2)


def test_training_when_it_fails_then_history_says_why():
    log = TrainingLog()
    with pytest.raises(ValueError, match="too large"), log.training("LR", 10, {}):
        raise ValueError("lr is too large\nand more")
    assert log.history()[0].outcome == "ValueError: lr is too large"


@pytest.mark.parametrize("handlers", [0, 1])
def test_warning_when_logged_then_is_an_event_and_said_once(handlers, capsys, monkeypatch):
    logger = logging.getLogger("ps2")
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler()] if handlers else [])
    events = EventLog()
    events.open()
    try:
        logging.getLogger("ps2.coordinator.supervisor").warning("server %d is back", 1)
        logging.getLogger("ps2.coordinator").info("all is well")
    finally:
        events.close()
    ((event,), before) = events.newest(10)
    assert (event.kind, event.text, before) == ("recovery", "server 1 is back", 0)
    assert capsys.readouterr().err == "server 1 is back\n"
    assert events not in logger.handlers


def test_numbers_when_json_has_none_of_them_then_are_null():
    assert json.loads(to_json({"a": (float("nan"), float("inf"), 1.5)})) == {"a": [None, None, 1.5]}
