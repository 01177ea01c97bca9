"""What the driver tells of its fleet: ``ps.status()``, ``ps.vectors()``, and vectors by their names."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from ps2 import DCV, PS2Context
from ps2.errors import ConfigError, NotFoundError


@pytest.fixture
def weight(ps):
    vector = DCV.dense(1000, dtype="float64", name="weight").fill(1)
    yield vector
    vector.free()


def test_vectors_when_some_have_names_then_lists_these(ps, weight):
    weight.derive(name="velocity")
    DCV.dense(5)
    result = ps.vectors()
    ps.vector("velocity").free()
    assert [(info.name, info.kind, info.dim, info.row, info.bytes) for info in result] == [
        ("velocity", "dense", 1000, 1, 8000),
        ("weight", "dense", 1000, 0, 8000),
    ]


def test_status_when_printed_then_shows_servers_and_names(ps, weight):
    status = ps.status()
    assert [server.address for server in status.servers] == ps.servers
    assert [matrix.names for matrix in status.matrices if matrix.names] == [["weight"]]
    assert all(text in str(status) for text in (ps.servers[0], "1,000", "weight", "fill"))


def test_status_when_a_server_died_then_names_it():
    with PS2Context.getOrCreate(servers=2) as ps:
        os.kill(ps._coordinator.fleet.launcher.pids()[1], signal.SIGKILL)
        lost = ps.servers[1]
        states = {server.address: server.state for server in ps.status().servers}
    assert states[lost] == "unreachable"
    assert sorted(states.values()) == ["running", "unreachable"]


def test_dense_when_reused_then_values_stay(weight):
    again = DCV.dense(1000, dtype="float64", name="weight", reuse=True)
    assert again.sum() == DCV.existing("weight").sum() == 1000


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: DCV.dense(10, dtype="float64", name="weight", reuse=True), "dim=1000, got dim=10"),
        (lambda: DCV.dense(1000, name="weight", reuse=True), "dtype=float64, got dtype=float32"),
        (lambda: DCV.sparse(1000, dtype="float64", name="weight", reuse=True), "kind=dense, got kind=sparse"),
        (
            lambda: DCV.dense(10, dtype="float64", layout="column", name="weight", reuse=True),
            "'weight' exists with dim=1000, layout=row, got dim=10, layout=column",
        ),
        (lambda: DCV.dense(1000, reuse=True), "got name=None"),
    ],
)
def test_dense_when_the_existing_one_differs_then_says_how(weight, make, match):
    with pytest.raises(ConfigError, match=match):
        make()


def test_dense_when_threads_race_to_reuse_then_one_vector(weight):
    start = Barrier(8)

    def make(number):
        start.wait(60)
        return DCV.dense(100, name="raced", reuse=True).add(number)

    with ThreadPoolExecutor(8) as threads:
        created = list(threads.map(make, range(8)))
    assert len({(vector._matrix, vector._row) for vector in created}) == 1
    assert DCV.existing("raced").sum() == 100 * sum(range(8))
    created[0].free()


def test_existing_when_there_is_none_then_lists_names(weight):
    with pytest.raises(NotFoundError, match="no vector 'bias'; expected one of weight"):
        DCV.existing("bias")


def test_repr_when_named_then_shows_name_and_layout(weight):
    assert repr(weight).startswith("DCV('weight', dense, dim=1000, float64, layout='row', matrix=")
