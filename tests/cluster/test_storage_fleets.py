"""``save`` and ``load`` across fleets: with servers that die."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from ps2 import DCV, PS2Context
from ps2.client.network import FleetNetwork
from ps2.errors import LostError
from ps2.rpc.control import ServerControl
from ps2.storage import folders

pytestmark = pytest.mark.usefixtures("leaves_nothing")

VALUES = np.arange(1.0, 3001.0)
KEYS = np.arange(3000) * 2**40 + 3


def kill(ps, index):
    ps._coordinator.fleet.launcher._children[index].kill()


def statuses(ps):
    transport = FleetNetwork(ps._coordinator.token)
    try:
        return [ServerControl(transport).status(address) for address in ps.servers]
    finally:
        transport.close()


def save_both(folder):
    DCV.dense(VALUES.size, dtype="float64").push(VALUES).save(str(folder / "dense"))
    DCV.sparse(2**60, dtype="int64").push(VALUES.astype(np.int64), KEYS).save(str(folder / "sparse"))


def check_both(dense, sparse):
    assert np.array_equal(dense.pull(), VALUES)
    keys, values = sparse.pull()
    assert np.array_equal(keys, KEYS)
    assert np.array_equal(values, VALUES)


def load_both(folder):
    return DCV.load(str(folder / "dense")), DCV.load(str(folder / "sparse"))


def test_load_and_save_when_servers_with_copies_die_then_whole(tmp_path, until):
    with PS2Context.getOrCreate(servers=2, replicas=1) as ps:
        save_both(tmp_path)
        loaded = load_both(tmp_path)
        kill(ps, 0)
        check_both(*loaded)
        until(lambda: all(not member.behind for member in statuses(ps)), "all shards have copies again")
        killing = threading.Timer(0.01, kill, (ps, 1))
        killing.start()
        loaded = load_both(tmp_path)
        save_both(tmp_path)
        killing.join()
        check_both(*loaded)
        check_both(*load_both(tmp_path))
        assert [recovery.source for recovery in ps.recoveries] == ["replica", "replica"]
    for kind in ("dense", "sparse"):
        names = [file.name for *_, file in folders.read_manifest(str(tmp_path / kind)).files()]
        assert sorted(os.listdir(tmp_path / kind)) == sorted(["manifest.json", *names])


def test_save_and_load_when_server_is_lost_then_lost_error(tmp_path):
    with PS2Context.getOrCreate(servers=2) as ps:
        save_both(tmp_path)
        vector = DCV.dense(VALUES.size).fill(1)
        before = sorted(os.listdir(tmp_path / "dense"))
        kill(ps, 0)
        for use in (lambda: vector.save(str(tmp_path / "dense")), lambda: load_both(tmp_path)):
            with pytest.raises(LostError, match="server 0"):
                use()
    assert sorted(os.listdir(tmp_path / "dense")) == before
    with PS2Context.getOrCreate(servers=1):
        check_both(*load_both(tmp_path))
