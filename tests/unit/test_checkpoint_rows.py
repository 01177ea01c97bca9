"""A checkpoint holds the rows in use, all of them and no others."""

from __future__ import annotations

import pytest

from ps2.coordinator import master as masters
from ps2.coordinator.checkpoints import Checkpoints, to_load
from ps2.errors import RecoveringError
from ps2.matrix.partition import MatrixSpec
from ps2.protocol.messages import Request, RequestId
from ps2.rpc.control import ServerControl
from ps2.server.loading import CheckpointLoader
from tests.checkpoints import op
from tests.fakes import FleetInProcess

DIM, ROWS = 10_000, 31
SPEC = MatrixSpec(DIM, ROWS, dtype="float64")
# Headers of .npy files, and the ids that were applied.
BESIDE_BYTES = 2000


class CallsBeforeCopy(FleetInProcess):
    """Servers that call something while a checkpoint is frozen."""

    def __init__(self):
        super().__init__(2)
        self.master.id = "run"
        self.before_copy = lambda: None

    def call(self, address, method, message, reply, timeout_s):
        if method == "Server/Copy":
            self.before_copy()
        return super().call(address, method, message, reply, timeout_s)

    def fill(self, matrix, row, value):
        for partition, address in enumerate(self.addresses):
            fill = op("fill", matrix, partition, row, value=float(value))
            self.engines[address].execute(Request((fill,), RequestId(f"fill {row} {value}", partition)))


@pytest.fixture
def fleet():
    return CallsBeforeCopy()


@pytest.fixture
def checkpoints(fleet, tmp_path):
    return Checkpoints(fleet.master, ServerControl(fleet), str(tmp_path), 1)


def loaded(fleet, newest):
    """Let every server read its shards again; return the first value of each row."""
    (entry,) = fleet.master.entries()
    for index, address in enumerate(fleet.addresses):
        loading = CheckpointLoader(fleet.engines[address])
        loading.load(newest.path, [to_load(newest.manifest, entry, index)], ids=True)
        loading.activate()
    return {row: value for row, value in enumerate(shard_of(fleet, entry.id).array[:, 0].tolist()) if value}


def shard_of(fleet, matrix):
    return fleet.engines[fleet.addresses[0]].shards()[matrix, 0]


def test_take_when_one_of_many_rows_is_in_use_then_costs_one(fleet, checkpoints):
    fleet.master.new_matrix(SPEC)
    created = checkpoints.take(None, None, 0)
    assert 8 * DIM < created.nbytes < 8 * DIM + BESIDE_BYTES


def test_take_when_rows_were_freed_and_taken_then_keeps_used(fleet, checkpoints):
    matrix = fleet.master.new_matrix(SPEC).id
    rows = fleet.master.take_rows(matrix, 4)
    for row in (0, *rows):
        fleet.fill(matrix, row, row + 1)
    fleet.master.free_rows(matrix, [rows[1]])
    checkpoints.take(None, None, 0)
    assert loaded(fleet, checkpoints.newest) == {0: 1.0, rows[0]: 2.0, rows[2]: 4.0, rows[3]: 5.0}


def test_take_rows_when_checkpoint_is_copying_then_refused(fleet, checkpoints, monkeypatch):
    """Else its rows would be in use, and in no file."""
    monkeypatch.setattr(masters, "CHANGE_TIMEOUT_S", 0.01)
    matrix, refused = fleet.master.new_matrix(SPEC).id, []

    def take():
        with pytest.raises(RecoveringError, match="no matrix can change while a server is restored"):
            fleet.master.take_rows(matrix, 1)
        refused.append(True)

    fleet.before_copy = take
    checkpoints.take(None, None, 0)
    assert refused == [True, True]
    assert list(fleet.master.take_rows(matrix, 1)) == [1]
