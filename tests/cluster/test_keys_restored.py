"""Managed keys go on from a checkpoint, or from a file, with their values, ticks and counts."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV, PS2Context
from ps2.client.matrix import DCVMatrix
from ps2.errors import StaleMarkError

KEYS = np.arange(300) * 10**15
POLICY = {"admitAfter": 2, "expireAfterS": 100, "clock": "event", "init": "normal", "layout": "column"}


def touch(m, keys):
    m.add(columns=keys, values=np.ones((len(keys), m.rows)))


def found(m, since=None):
    """Each changed key with its values."""
    return {key: row.tolist() for keys, rows in m.changed(since) for key, row in zip(keys.tolist(), rows, strict=True)}


def lived():
    """A matrix at time 90: keys 0..99 were touched at 0, 100..199 at 60, and 200..299 wait since 60."""
    m = DCV.sparse(2**62, 2, name="clicks", **POLICY).matrix()
    for keys in (KEYS[:200], KEYS[:200]):
        touch(m, keys)
    m.advance(60)
    touch(m, KEYS[100:])
    m.advance(90)
    return m


def check_lived(m, before):
    """The matrix goes on as if nothing had happened to it."""
    assert found(m) == before
    touch(m, KEYS[200:250])
    assert m.keyStatus().active == 250
    m.advance(110)
    assert m.expire() == 100
    assert sorted(found(m)) == KEYS[100:250].tolist()
    m.advance(170)
    assert m.expire() == 100
    assert sorted(found(m)) == KEYS[200:250].tolist()
    assert m.keyStatus().waiting == 0


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint, the changed keys at its time, and a mark."""
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    with PS2Context.getOrCreate(servers=2, checkpointDir=folder) as ps:
        m = lived()
        mark = m.mark()
        ps.checkpoint()
        return folder, found(m), mark


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_restore_when_servers_differ_then_keys_live_on(saved, servers):
    folder, before, mark = saved
    with PS2Context.getOrCreate(servers=servers, restore=folder) as ps:
        m = ps.vector("clicks").matrix()
        with pytest.raises(StaleMarkError, match="read all keys"):
            m.removed(mark)
        check_lived(m, before)


def test_load_when_saved_then_keys_live_on(tmp_path):
    with PS2Context.getOrCreate(servers=2):
        m = lived()
        m.save(str(tmp_path))
        before = found(m)
        check_lived(DCVMatrix.load(str(tmp_path)), before)
