"""Servers that are killed (-9) while keys come and go: with copies nothing changes, with checkpoints all rolls back."""

from __future__ import annotations

import numpy as np
import pytest
from faults import processes

from ps2 import DCV, PS2Context
from ps2.errors import RolledBack

STEPS, KILLED_AT = 30, (8, 19)
POLICY = {"admitAfter": 2, "expireAfterS": 5, "maxKeys": 600, "clock": "event", "init": "normal", "seed": 3}

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def keys_of(step):
    return np.unique(np.random.default_rng(step).zipf(1.3, 400) % 2000) * 10**14


def run_step(m, step):
    keys = keys_of(step)
    m.add(columns=keys, values=np.full((keys.size, 2), step + 1.0))
    m.advance(float(step + 1))
    m.expire()


def state(m):
    held = {key: row.tolist() for keys, rows in m.changed() for key, row in zip(keys.tolist(), rows, strict=True)}
    return held, m.keyStatus()


@pytest.fixture(scope="module")
def undisturbed():
    """What two servers hold after all steps."""
    with PS2Context.getOrCreate(servers=2):
        m = DCV.sparse(2**62, 2, "float64", layout="column", **POLICY).matrix()
        for step in range(STEPS):
            run_step(m, step)
        held, status = state(m)
        assert status.expired > 100
        assert status.waiting > 10
        return held, status


def test_keys_when_servers_with_copies_are_killed_then_same(undisturbed, until):
    with PS2Context.getOrCreate(servers=2, replicas=1) as ps:
        m = DCV.sparse(2**62, 2, "float64", layout="column", **POLICY).matrix()
        for step in range(STEPS):
            if step in KILLED_AT:
                until(
                    lambda: all(ps._coordinator.fleet.control.status(a).behind == 0 for a in ps.servers),
                    "copies are in step",
                    60,
                )
                processes.kill(processes.servers_of(ps)[step % 2])
            run_step(m, step)
        assert len(ps.recoveries) == len(KILLED_AT)
        assert state(m) == undisturbed


def test_keys_when_all_roll_back_to_checkpoint_then_same(undisturbed, tmp_path):
    with PS2Context.getOrCreate(servers=2, checkpointDir=str(tmp_path), checkpointEverySteps=4) as ps:
        m = DCV.sparse(2**62, 2, "float64", layout="column", **POLICY).matrix()
        kill_at, back = list(KILLED_AT), 0
        while ps.nextStep < STEPS:
            try:
                with ps.step() as step:
                    if kill_at and step == kill_at[0]:
                        kill_at.pop(0)
                        processes.kill(processes.servers_of(ps)[step % 2])
                    run_step(m, step)
            except RolledBack:
                back += 1
        assert back == len(KILLED_AT)
        assert state(m) == undisturbed
