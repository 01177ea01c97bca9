"""``ps2.load_numpy``: what was saved, as arrays, when there are no servers."""

from __future__ import annotations

import numpy as np
import pytest

import ps2
from ps2 import DCV
from ps2.errors import CheckpointCorruptError, CheckpointMissingError
from ps2.storage import folders
from tests.fakes import FleetInProcess, installed, session_over

DIM = 1000
VALUES = np.arange(1.0, DIM + 1)
KEYS = np.arange(DIM)[::-1] * 2**40 + 3


@pytest.fixture
def fleet(monkeypatch):
    monkeypatch.setattr("ps2.storage.arrays.BLOCK_BYTES", 512)
    with installed(session_over(FleetInProcess(3))):
        yield


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_load_numpy_when_saved_then_as_pulled(fleet, tmp_path, kind, dtype):
    vector = DCV.dense(DIM, dtype=dtype) if kind == "dense" else DCV.sparse(2**63, dtype=dtype)
    vector.push(VALUES.astype(dtype), KEYS if vector.isSparse else None).save(str(tmp_path))
    result, expected = ps2.load_numpy(str(tmp_path)), vector.pull()
    assert isinstance(result, tuple) == vector.isSparse
    for one, other in zip(np.atleast_2d(result), np.atleast_2d(expected), strict=True):
        assert (one.dtype, one.tolist()) == (other.dtype, other.tolist())


@pytest.mark.parametrize("layout", ["row", "column"])
def test_load_numpy_when_a_matrix_was_saved_then_its_shape(fleet, tmp_path, layout):
    matrix, rows = DCV.dense(DIM, 4, "float64", layout=layout).matrix(), np.outer(np.arange(4), VALUES)
    matrix.add(np.arange(4), rows).save(str(tmp_path))
    assert np.array_equal(ps2.load_numpy(str(tmp_path)), rows)


def test_load_numpy_when_a_sparse_matrix_then_keys_by_rows(fleet, tmp_path):
    matrix, blocks = DCV.sparse(2**60, 2, "float32", layout="column").matrix(), np.stack([VALUES, -VALUES], axis=1)
    matrix.push(columns=KEYS, values=blocks).save(str(tmp_path))
    keys, values = ps2.load_numpy(str(tmp_path))
    assert np.array_equal(keys, KEYS[::-1])
    assert np.array_equal(values, blocks[::-1].T)


def test_load_numpy_when_a_file_has_changed_then_names_it(fleet, tmp_path):
    DCV.dense(DIM).save(str(tmp_path))
    *_, file = folders.read_manifest(str(tmp_path)).files()[0]
    (tmp_path / file.name).write_bytes(b"\1" * file.nbytes)
    with pytest.raises(CheckpointCorruptError, match=file.name):
        ps2.load_numpy(str(tmp_path))


def test_load_numpy_when_there_is_no_save_then_says_so(tmp_path):
    with pytest.raises(CheckpointMissingError, match="expected a folder with a checkpoint"):
        ps2.load_numpy(str(tmp_path / "weight"))
