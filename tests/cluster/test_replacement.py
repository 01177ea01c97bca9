"""Servers that die, with something to get their shards back from, and without."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ps2 import DCV, PS2Conf, PS2Context
from ps2.cli.processes import ServerProcesses
from ps2.config import new_token, write_token
from ps2.coordinator.supervisor import Supervisor
from ps2.errors import ConfigError, LostError, RecoveryError, RolledBack, UsageError
from ps2.launched_fleets import ServerOptions, claim
from ps2.processes import ProcessId
from tests.ports import free_port, is_listening

pytestmark = pytest.mark.usefixtures("leaves_nothing")

VALUES = np.arange(1000.0)
# Server 0 of two has the first half.
FIRST = slice(0, 500)


def kill(ps, *indices):
    for index in indices:
        ps._coordinator.fleet.launcher._children[index].kill()


def test_server_when_it_dies_unrecoverably_then_calls_say_why():
    with PS2Context.getOrCreate(servers=2) as ps:
        weight = DCV.dense(1000, dtype="float64").push(VALUES)
        kill(ps, 0)
        with pytest.raises(
            LostError,
            match=r"there is no checkpoint from which its shards could be restored: server 0 .*ended by SIGKILL",
        ):
            weight.pull()
        with pytest.raises(LostError, match="server 0"):
            DCV.dense(10)


def test_server_when_it_dies_then_lost_changes_are_counted(tmp_path, until):
    with PS2Context.getOrCreate(servers=2, checkpointDir=str(tmp_path)) as ps:
        weight = DCV.dense(1000, dtype="float64").push(VALUES)
        ps.checkpoint(step=4)
        younger = weight.derive().fill(3)
        for _ in range(5):
            weight.add(1)
        member = ps._coordinator.fleet.master.registry._membership.members[0]
        until(lambda: member.mutations == 7, "the server has told of its mutations in a heartbeat")
        kill(ps, 0)
        result = weight.pull()
        assert np.array_equal(result[FIRST], VALUES[FIRST])
        assert np.array_equal(result[500:], VALUES[500:] + 5)
        assert younger.nnz() == 500
        (recovery,) = ps.recoveries
        assert (recovery.servers, recovery.source, recovery.step) == ((0,), "checkpoint", 4)
        assert recovery.mutationsLost == 6
        assert recovery.zeros == (f"rows [{younger._row}] of matrix {weight._matrix:x}",)
        assert recovery.mixed


def test_server_when_newest_checkpoint_is_bad_then_uses_previous(tmp_path):
    with PS2Context.getOrCreate(servers=2, checkpointDir=str(tmp_path)) as ps:
        weight = DCV.dense(1000, dtype="float64").push(VALUES)
        ps.checkpoint(step=1)
        weight.add(1)
        spoiled = ps.checkpoint(step=2)
        for file in (tmp_path / spoiled.path).glob("*.npy"):
            file.write_bytes(file.read_bytes()[:100])
        kill(ps, 0)
        assert np.array_equal(weight.pull()[FIRST], VALUES[FIRST])
        assert ps.recoveries[0].step == 1


def test_server_when_all_checkpoints_are_bad_then_calls_say_so(tmp_path):
    with PS2Context.getOrCreate(servers=2, checkpointDir=str(tmp_path)) as ps:
        weight = DCV.dense(1000, dtype="float64").push(VALUES)
        spoiled = ps.checkpoint()
        for file in (tmp_path / spoiled.path).iterdir():
            file.unlink()
        kill(ps, 0)
        with pytest.raises(LostError, match=r"(?s)no checkpoint can be read: .*server 0"):
            weight.pull()
        with pytest.raises(RecoveryError, match="server 0: ended by SIGKILL"):
            ps.checkpoint()


def test_checkpoints_when_another_run_writes_beside_then_stay(tmp_path):
    runs = []
    for _ in range(2):
        with PS2Context.getOrCreate(servers=1, checkpointDir=str(tmp_path), conf=PS2Conf(keep=1)) as ps:
            DCV.dense(10)
            ps.checkpoint()
            runs.append(Path(ps.checkpoint().path))
    assert sorted(tmp_path.iterdir()) == runs
    assert [run.name.split("-")[1] for run in runs] == ["00000002", "00000004"]


def test_servers_when_replica_pair_dies_then_checkpoint_serves(tmp_path):
    with PS2Context.getOrCreate(servers=3, replicas=1, checkpointDir=str(tmp_path)) as ps:
        weight = DCV.dense(999, dtype="float64").push(VALUES[:999])
        ps.checkpoint()
        kill(ps, 0, 1)
        assert np.array_equal(weight.pull(), VALUES[:999])
        assert ps.recoveries[-1].source == "checkpoint"
        weight.add(1)
        assert np.array_equal(weight.pull(), VALUES[:999] + 1)


@pytest.mark.parametrize("replicas", [0, 1])
def test_recoveries_when_new_server_answered_then_report_it(tmp_path, monkeypatch, replicas):
    report = Supervisor._describe

    def takes_long(*arguments):
        time.sleep(1.0)
        return report(*arguments)

    monkeypatch.setattr(Supervisor, "_describe", takes_long)
    with PS2Context.getOrCreate(servers=2, replicas=replicas, checkpointDir=str(tmp_path)) as ps:
        weight = DCV.dense(999, dtype="float64").push(VALUES[:999])
        ps.checkpoint()
        kill(ps, 0)
        assert np.array_equal(weight.pull(), VALUES[:999])
        assert [recovery.source for recovery in ps.recoveries] == ["replica" if replicas else "checkpoint"]


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_server_when_copies_are_partial_then_checkpoint_serves(tmp_path, has_checkpoint):
    with PS2Context.getOrCreate(servers=2, replicas=1, checkpointDir=str(tmp_path)) as ps:
        weight = DCV.dense(1000, dtype="float64").push(VALUES)
        if has_checkpoint:
            ps.checkpoint()
        # Copies that were never sent: what a server leaves that dies while it sends them.
        address = ps.servers[1]
        ps._coordinator.fleet.control.free_matrix(address, weight._matrix)
        entry = ps._coordinator.fleet.master.entries()[0]
        ps._coordinator.fleet.control.create_matrix(address, entry.id, entry.spec, entry.partitions_of(0), copies=True)
        ps._coordinator.fleet.control.create_matrix(address, entry.id, entry.spec, entry.partitions_of(1))
        kill(ps, 0)
        if has_checkpoint:
            assert np.array_equal(weight.pull()[FIRST], VALUES[FIRST])
            assert ps.recoveries[0].source == "checkpoint"
        else:
            with pytest.raises(LostError, match="the copies of its shards were incomplete, and there is no check"):
                weight.pull()


def test_servers_when_all_roll_back_then_driver_is_told_once(tmp_path):
    with PS2Context.getOrCreate(servers=2, checkpointDir=str(tmp_path), conf=PS2Conf(recover="consistent")) as ps:
        weight = DCV.dense(1000, dtype="float64").push(VALUES)
        ps.checkpoint(step=4)
        weight.add(1)
        kill(ps, 1)
        with pytest.raises(RolledBack) as caught:
            weight.pull()
        assert caught.value.step == ps.nextStep == 4
        assert np.array_equal(weight.pull(), VALUES)


def test_timed_checkpoints_when_steps_then_made_at_step_ends(tmp_path, until):
    with PS2Context.getOrCreate(servers=1, checkpointDir=str(tmp_path), checkpointEveryS=0.2) as ps:
        DCV.dense(10)
        until(lambda: ps._coordinator.fleet.checkpoints.newest is not None, "one is made in a bare loop", 30)
        with ps.step():
            assert not ps._coordinator.steps.can_resume(ps._coordinator.fleet.checkpoints.newest.path)
            ends_s = time.monotonic() + 0.2
            until(lambda: time.monotonic() > ends_s, "the next one is due", 30)
        with ps.step():
            newest = ps._coordinator.fleet.checkpoints.newest
            assert newest.manifest.step == 1
            assert ps._coordinator.steps.can_resume(newest.path)


def test_step_when_rolled_back_then_raises_over_other_failures(tmp_path, until):
    with PS2Context.getOrCreate(servers=2, checkpointDir=str(tmp_path), checkpointEverySteps=2) as ps:
        weight = DCV.dense(1000, dtype="float64")
        finished, messages = [], []
        while ps.nextStep < 6:
            try:
                with ps.step() as t:
                    if t == 3 and not ps.recoveries:
                        kill(ps, 0)
                        until(lambda: ps.recoveries, "the server is back", 60)
                        raise ValueError("because of it")
                    weight.add(1)
                    finished.append(t)
            except RolledBack as back:
                messages.append((back.step, type(back.__cause__)))
        assert messages == [(2, ValueError)]
        assert finished == [0, 1, 2, 2, 3, 4, 5]
        assert np.array_equal(weight.pull(), np.full(1000, 6.0))


def test_step_when_its_number_is_none_or_they_nest_then_refused():
    with PS2Context.getOrCreate(servers=1) as ps:
        for number in (-1, "x", True):
            with pytest.raises(ConfigError, match="step: expected an integer >= 0"), ps.step(number):
                pass
        with ps.step(), pytest.raises(UsageError, match="steps do not nest"), ps.step():
            pass
        assert ps.nextStep == 1


def test_attached_server_when_restarted_then_gets_its_shards(tmp_path, monkeypatch, until):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    token = tmp_path / "token"
    write_token(token, new_token())
    options = ServerOptions(tuple(addresses), 1 << 30, exit_with_parent=True)
    servers = ServerProcesses(claim("ads", ProcessId.from_pid(os.getpid()), token, options=options), options)
    try:
        for index in range(2):
            servers.start(index)
        killed = servers.fleet.servers[0].process
        until(lambda: all(is_listening(address) for address in addresses), "the servers listen", 60)
        with PS2Context.getOrCreate(fleet=addresses, tokenFile=str(token), checkpointDir=str(tmp_path / "c")) as ps:
            weight = DCV.dense(1000, dtype="float64").push(VALUES)
            ps.checkpoint()
            killed.send(signal.SIGKILL)
            until(lambda: not killed.alive(), "it is dead")
            pulled = []
            waiting = threading.Thread(target=lambda: pulled.append(weight.pull()))
            waiting.start()
            servers.start(0)
            waiting.join(60)
            assert np.array_equal(pulled[0], VALUES)
            assert "restarted" in ps.recoveries[0].reason
            DCV.dense(10, name="left").fill(2)
            with pytest.raises(UsageError, match=r"namespace .default. of this fleet has a driver"):
                _another_driver(addresses, token)
        # A driver that has ended in order leaves nothing, names least of all.
        with PS2Context.getOrCreate(fleet=addresses, tokenFile=str(token)):
            assert DCV.dense(10, name="left").sum() == 0
    finally:
        servers.stop()


def _another_driver(addresses, token):
    running, PS2Context._active = PS2Context._active, None
    try:
        PS2Context.getOrCreate(fleet=addresses, tokenFile=str(token))
    finally:
        PS2Context._active = running
