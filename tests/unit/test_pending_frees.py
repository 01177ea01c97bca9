"""Matrices and rows that servers could not be told to free: they are freed as soon as servers can."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from ps2 import DCV
from ps2.coordinator import pending_frees
from ps2.errors import StaleRouteError, UnavailableError
from tests.fakes import FleetInProcess, installed, session_over


class RefusesControl:
    """Passes everything on but calls of some methods, while there are ``left`` refusals; ``asked`` counts those."""

    def __init__(self, fleet, *methods, error=None):
        self.fleet, self.methods, self.left, self.asked = fleet, methods, 0, 0
        self.error = error or StaleRouteError(
            "this server has had no answer from its coordinator for 7.1 s, and may have been replaced"
        )

    def __getattr__(self, name):
        return getattr(self.fleet, name)

    def call(self, address, method, message, reply, timeout_s):
        if method.partition("/")[2] in self.methods:
            self.asked += 1
            if self.left:
                self.left -= 1
                raise self.error
        return self.fleet.call(address, method, message, reply, timeout_s)


@pytest.fixture(autouse=True)
def without_pause(monkeypatch):
    monkeypatch.setattr(pending_frees, "PAUSE_S", 0.0)


@pytest.fixture
def refusing():
    """A fleet, and what refuses the calls that free."""
    fleet = FleetInProcess(servers=2)
    gate = RefusesControl(fleet, "FreeMatrix", "UpdateRows")
    fleet.master._servers._transport = gate
    return gate


@pytest.fixture
def session(refusing):
    with installed(session_over(refusing.fleet)) as session:
        yield session


@pytest.fixture
def shards(refusing):
    """``shards()``: all that the servers hold."""
    return lambda: [shard for engine in refusing.engines.values() for shard in engine.shards().values()]


def test_matrix_when_servers_refuse_free_then_is_freed_later(refusing, session, shards, caplog):
    weight = DCV.dense(10)
    refusing.left = 2
    with caplog.at_level(logging.INFO):
        weight.free()
    assert len(shards()) == len(refusing.master.pending_frees) == 2
    refusing.master.catch_up()
    assert (len(shards()), len(refusing.master.pending_frees)) == (0, 0)
    assert not caplog.records


def test_rows_when_servers_refuse_to_retire_then_retired_later(refusing, session, shards):
    weight = DCV.dense(10, 2)
    other = weight.derive()
    refusing.left = 2
    other.free()
    assert not any(shard.unused for shard in shards())
    refusing.master.catch_up()
    assert [sorted(shard.unused) for shard in shards()] == [[1], [1]]
    weight.free()


def test_rows_when_handed_out_meanwhile_then_not_retired_later(refusing, session):
    weight = DCV.dense(10, 2)
    other = weight.derive()
    refusing.left = 2
    other.free()
    again = weight.derive().fill(3.0)
    refusing.master.catch_up()
    assert np.unique(again.pull()).tolist() == [3.0]
    assert not len(refusing.master.pending_frees)


def test_what_is_owed_when_its_server_is_replaced_then_forgotten(refusing, session):
    weight = DCV.dense(10)
    refusing.left = 2
    weight.free()
    for index, address in enumerate(refusing.addresses):
        refusing.master.registry.register(index, f"other-{index}", address)
    asked = refusing.asked
    refusing.master.catch_up()
    assert (refusing.asked, len(refusing.master.pending_frees)) == (asked, 0)


def test_releases_when_refused_again_then_ask_each_server_once(refusing, session):
    vectors = [DCV.dense(10) for _ in range(3)]
    refusing.left = 100
    for vector in vectors:
        vector.free()
    refusing.asked = 0
    refusing.master.catch_up()
    assert (refusing.asked, len(refusing.master.pending_frees)) == (2, 6)
    refusing.left = 0
    refusing.master.catch_up()
    assert not len(refusing.master.pending_frees)


def test_stage_rows_when_changes_are_paused_then_are_taken_later(refusing, session, shards, monkeypatch):
    monkeypatch.setattr("ps2.coordinator.master.CHANGE_TIMEOUT_S", 0.0)
    master, weight = refusing.master, DCV.dense(10)
    master._deferred_frees.add("app", 1, _late_row(master, weight))
    with master.block_changes():
        master.end_stages("app", 2, [])
        master.catch_up()
        assert len(shards()) == 2
    master.catch_up()
    assert not shards()


def _late_row(master, vector):
    from ps2.coordinator.call_deduplicator import DeferredFree

    entry = master._catalog.get(vector._matrix)
    return DeferredFree(vector._matrix, 0, entry.generations[0], orphan=False)


def test_dropped_rows_when_master_is_silent_then_keep_one_id():
    fleet = FleetInProcess()
    gate = RefusesControl(fleet, "FreeRows", error=UnavailableError("connection refused"))
    session = session_over(gate)
    session.retry = type(session.retry)(total_s=0.0, first_pause_s=0.001, longest_pause_s=0.001)
    with installed(session):
        weight = DCV.dense(10)
        matrix, ids = weight._matrix, []
        drop_rows = session._master.drop_rows
        session._master.drop_rows = lambda *told: (ids.append(told[-1].number), drop_rows(*told))
        del weight
        gate.left = 100
        with pytest.raises(UnavailableError):
            DCV.dense(10)
        gate.left = 0
        DCV.dense(10)
        assert matrix not in fleet.master._catalog.ids()
        assert len(ids) > 1
        assert len(set(ids)) == 1
