"""A DCVMatrix in files: the servers write all rows, and those of another fleet read them."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV, DCVMatrix, PS2Context
from ps2.errors import CheckpointMissingError, UsageError

K, DIM = 3, 1001
KEYS = np.arange(DIM) * 10**6
VALUES = np.random.default_rng(0).integers(-99, 99, (K, DIM))


def dense(dtype="float64", **options):
    return DCV.dense(DIM, K, dtype, **options).matrix().push(range(K), VALUES)


def sparse(dtype="float32", **options):
    return DCV.sparse(2**40, K, dtype, **options).matrix().add(range(K), VALUES, KEYS)


def blocks(make, **options):
    columns = KEYS if make is DCV.sparse else np.arange(DIM)
    return (
        make(2**40 if make is DCV.sparse else DIM, K, "int32", layout="column")
        .matrix()
        .add(columns=columns, values=VALUES.T)
    )


FORMS = {
    "dense": (lambda: dense(align=7), lambda m: m.pull(range(K))),
    "sparse": (sparse, lambda m: m.pull(range(K), KEYS)),
    "dense blocks": (lambda: blocks(DCV.dense), lambda m: m.pull(columns=range(DIM)).T),
    "sparse blocks": (lambda: blocks(DCV.sparse), lambda m: m.pull(columns=KEYS).T),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a saved matrix of each form, of three servers."""
    folder = tmp_path_factory.mktemp("matrices")
    with PS2Context.getOrCreate(servers=3):
        for form, (make, _) in FORMS.items():
            make().save(str(folder / form))
    return folder


@pytest.fixture(scope="module")
def other(saved):
    with PS2Context.getOrCreate(servers=2) as ps:
        yield ps


@pytest.mark.parametrize("form", FORMS)
def test_load_when_servers_differ_then_matrix_is_the_same(saved, other, form):
    loaded = DCVMatrix.load(str(saved / form))
    assert loaded.rows == K
    assert np.array_equal(FORMS[form][1](loaded), VALUES)


def test_save_when_there_is_an_older_one_then_it_is_replaced(other, tmp_path):
    matrix = dense()
    matrix.save(str(tmp_path / "m"))
    matrix.add([1], np.ones((1, DIM))).save(str(tmp_path / "m"))
    assert np.array_equal(DCVMatrix.load(str(tmp_path / "m")).pull([1]), VALUES[[1]] + 1)


def test_loaded_matrix_when_handle_is_gone_then_rows_are_freed(saved, other):
    loaded = DCVMatrix.load(str(saved / "dense"))
    matrix = loaded._first._matrix
    assert matrix in other._coordinator.fleet.master._catalog.ids()
    del loaded
    DCV.dense(1).sum()
    assert matrix not in other._coordinator.fleet.master._catalog.ids()


def test_load_when_a_vector_is_asked_for_then_usage_error(saved, other):
    with pytest.raises(UsageError, match="expected a save of one vector, but this save has 3 rows"):
        DCV.load(str(saved / "dense"))


def test_load_when_there_is_nothing_then_missing(other, tmp_path):
    with pytest.raises(CheckpointMissingError):
        DCVMatrix.load(str(tmp_path / "nothing"))
