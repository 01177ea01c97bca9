"""The calls of a checkpoint, through the messages of the contract."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.errors import LimitError, RecoveryError, UsageError
from ps2.matrix.partition import HASH_SPACE, MatrixSpec, Partition
from ps2.protocol.messages import Request, RequestId
from ps2.rpc.control import Activation, ServerControl
from ps2.storage.manifest import LoadMatrix
from tests.checkpoints import op
from tests.fakes import FleetInProcess

SPEC = MatrixSpec(2**62, 2, dtype="float64", kind="sparse")
WHOLE = (Partition(0, 0, HASH_SPACE),)
HALVES = (Partition(0, 0, HASH_SPACE // 2), Partition(1, HASH_SPACE // 2, HASH_SPACE))
KEYS = np.arange(1, 1000) * 2**40
TIMEOUT_S = 30.0


@pytest.fixture
def fleet():
    fleet = FleetInProcess(2)
    fleet.engines[fleet.addresses[0]].create_matrix(1, SPEC, WHOLE)
    put = op("scatter", 1, 0, 1, arrays=[KEYS, KEYS * 0.5])
    fleet.engines[fleet.addresses[0]].execute(Request((put,), RequestId("s", 0)))
    return fleet


@pytest.fixture
def control(fleet):
    return ServerControl(fleet)


def saved(control, address, folder):
    control.freeze(address, "c", TIMEOUT_S)
    copied = control.copy(address, "c", {1: [0, 1]})
    assert copied.nbytes == KEYS.size * (2 + 1) * 8
    return control.write(address, "c", str(folder))


def test_saved_server_when_loaded_by_another_then_repartitions(fleet, control, tmp_path):
    first, second = fleet.addresses
    shards = saved(control, first, tmp_path)
    control.load(second, str(tmp_path), [LoadMatrix(1, SPEC, HALVES, SPEC, tuple(shards), (0, 1))], ids=True)
    assert fleet.engines[second].shards() == {}
    control.route_version = 1
    control.activate(second, Activation("coordinator", loaded=True))
    engine = fleet.engines[second]
    result = sum(shard.row(1).sum() for shard in engine.shards().values())
    assert (len(engine.shards()), result) == (2, KEYS.sum() * 0.5)


def test_freeze_when_another_is_under_way_then_caller_learns_it(fleet, control):
    control.freeze(fleet.addresses[0], "c", TIMEOUT_S)
    with pytest.raises(UsageError, match="'c' is frozen on this server"):
        control.freeze(fleet.addresses[0], "d", TIMEOUT_S)
    control.discard(fleet.addresses[0], "c")
    control.freeze(fleet.addresses[0], "d", TIMEOUT_S)
    control.discard(fleet.addresses[0], "d")


def test_load_when_server_memory_is_too_small_then_caller_learns(fleet, control, tmp_path):
    first, second = fleet.addresses
    shards = saved(control, first, tmp_path)
    fleet.engines[second].memory.limit_bytes = 1000
    with pytest.raises(LimitError, match="server's limit of 1,000"):
        control.load(second, str(tmp_path), [LoadMatrix(1, SPEC, WHOLE, SPEC, tuple(shards), (0, 1))], ids=True)


def test_activate_when_nothing_was_loaded_then_caller_learns_it(fleet, control):
    control.route_version = 1
    with pytest.raises(RecoveryError, match="has loaded no checkpoint"):
        control.activate(fleet.addresses[1], Activation("coordinator", loaded=True))
