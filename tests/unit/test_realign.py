"""A vector moved out of its matrix: values, cuts and keys are the same, and the memory of the other rows goes."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV
from ps2.algorithms.linear import model
from ps2.algorithms.linear.model import Weights
from ps2.algorithms.linear.plan import Problem
from ps2.client import realign
from ps2.client.realign import move_to_own_matrix
from ps2.errors import LimitError
from tests.fakes import FleetInProcess, installed, session_over

DIM = 3000
KEYS = np.random.default_rng(0).permutation(DIM) * 2**30
VALUES = np.arange(DIM) - 5.0


@pytest.fixture
def fleet():
    fleet = FleetInProcess(servers=3)
    with installed(session_over(fleet)):
        yield fleet


@pytest.fixture(params=["dense", "sparse"])
def trained(request, fleet):
    """A vector among 31 rows."""
    if request.param == "dense":
        return DCV.dense(DIM, 31, "float64", align=3).derive().push(VALUES)
    return DCV.sparse(DIM * 2**30, 31, "float64").derive().push(VALUES, KEYS)


def pulled(vector):
    return vector.pull(KEYS if vector.isSparse else None).tolist()


def lasting(fleet):
    return sum(status.bytes for engine in fleet.engines.values() for status in engine.matrices())


def test_vector_when_moved_then_is_same_and_uses_memory_of_one(fleet, trained, monkeypatch):
    monkeypatch.setattr(realign, "WINDOW_BYTES", 8 * 700)
    monkeypatch.setattr(realign, "WINDOW_KEYS", 700)
    before, bounds = lasting(fleet), trained._route.bounds
    alone = move_to_own_matrix(trained)
    assert pulled(alone) == VALUES.tolist()
    assert (alone._spec.rows, alone._route.bounds) == (1, bounds)
    # The index of a sparse vector's keys stays.
    assert lasting(fleet) < (before / 30 if not alone.isSparse else before / 5)


def test_vector_when_moved_while_sparse_then_keeps_active_keys(fleet):
    few = DCV.sparse(2**40, 31, "float32").derive().push([1.0, 0.0], [7, 9])
    keys, values = move_to_own_matrix(few).pull()
    assert (keys.tolist(), values.tolist()) == ([7, 9], [1.0, 0.0])


def test_model_when_servers_lack_memory_to_move_then_stays(fleet, trained, monkeypatch, caplog):
    monkeypatch.setattr(model, "MAX_IN_DRIVER", 1)
    for engine in fleet.engines.values():
        engine.memory.limit_bytes = engine.memory.used_bytes
    before = lasting(fleet)
    with pytest.raises(LimitError):
        move_to_own_matrix(trained)
    kept = Weights.from_servers(Problem("logistic", trained.dim), trained, np.zeros(1))
    assert (kept.weight, pulled(kept.weight), lasting(fleet)) == (trained, VALUES.tolist(), before)
    assert "have no room to move it" in caplog.text
