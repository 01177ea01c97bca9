"""Two drivers with one folder for their checkpoints: neither writes into, nor removes, what is the other's."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ps2.coordinator.checkpoints import Checkpoints, Newest
from ps2.errors import ConfigError
from ps2.matrix.partition import MatrixSpec
from ps2.rpc.control import ServerControl
from ps2.storage import folders
from tests.fakes import FleetInProcess


class Driver:
    """A driver with a fleet and one matrix of its own."""

    def __init__(self, run, root, keep=1):
        fleet = FleetInProcess(2)
        fleet.master.id = self.run = run
        self.matrix = fleet.master.new_matrix(MatrixSpec(10, 1)).id
        self.checkpoints = Checkpoints(fleet.master, ServerControl(fleet), str(root), keep)

    def take(self):
        return self.checkpoints.take(None, None, 0)

    def newest_matrices(self):
        """What the checkpoint that it would roll back to holds, now."""
        path = self.checkpoints.newest.path
        assert all(file.problem is None for file in folders.verify(path))
        return [matrix.id for matrix in folders.read_manifest(path).matrices]


def test_checkpoint_when_its_place_is_empty_then_config_error():
    with pytest.raises(ConfigError, match="expected a path or a URL, got ''"):
        Driver("a", "").take()


@pytest.fixture
def two(tmp_path):
    return Driver("a", tmp_path), Driver("b", tmp_path)


def in_step(monkeypatch):
    """Let two drivers look at the folder at the same time, so that they see the same."""
    find, together = folders.find, threading.Barrier(2)

    def find_together(url):
        result = find(url)
        together.wait(30)
        return result

    monkeypatch.setattr(folders, "find", find_together)


def test_take_when_two_drivers_pick_same_number_then_both_stay(two, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        in_step(patch)
        for _ in range(3):
            created = list(pool.map(Driver.take, two))
    assert [checkpoint.number for checkpoint in created] == [3, 3]
    for driver in two:
        assert driver.newest_matrices() == [driver.matrix]
    assert {(result.number, result.run) for result in folders.find(str(tmp_path))} == {(3, "a"), (3, "b")}


def test_take_when_other_driver_has_some_then_number_is_greater(two, tmp_path):
    first, second = two
    first.take()
    second.take()
    assert [second.take().number, first.take().number] == [3, 4]
    assert [(result.number, result.run) for result in folders.find(str(tmp_path))] == [(3, "b"), (4, "a")]
    assert folders.newest(str(tmp_path)) == first.checkpoints.newest.path


@pytest.mark.parametrize("slash", ["", "/"])
def test_take_when_resumed_from_other_driver_then_that_one_stays(tmp_path, slash):
    """The other may be alive, or a third have begun with the same."""
    other, mine = Driver("a", tmp_path, keep=3), Driver("b", tmp_path)
    Driver("z", tmp_path).take()
    for _ in range(3):
        other.take()
    begun = other.checkpoints.newest.path
    mine.checkpoints.resume_from(Newest(begun, folders.read_manifest(begun), {}), f"{tmp_path}{slash}")
    other.take()
    for _ in range(3):
        mine.take()
    left = [(result.number, result.run) for result in folders.find(str(tmp_path))]
    assert left == [(1, "z"), (4, "a"), (5, "a"), (8, "b")]
