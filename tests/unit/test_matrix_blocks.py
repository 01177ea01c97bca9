"""Blocks of matrices with layout "column", over the network: against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV
from ps2.client.keysets import GROUP_BYTES

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")

DIM, K = 20_000, 70


@pytest.mark.parametrize("beside", [-1, 0, 1])
@pytest.mark.parametrize(("make", "dtype"), [(DCV.dense, "float32"), (DCV.sparse, "int32")])
def test_blocks_when_they_fill_a_request_or_nearly_then_numpy(ps, make, dtype, beside):
    k, dim = 1000, 2000
    random = np.random.default_rng(2)
    columns = random.integers(0, dim, GROUP_BYTES // (4 * k) + beside)
    values = random.integers(-(1 << 20), 1 << 20, (columns.size, k)).astype(dtype)
    m = make(dim, k, dtype, layout="column").matrix()
    m.add(columns=columns, values=values)
    expected = np.zeros((dim, k), dtype)
    np.add.at(expected, columns, values)
    out = np.ones_like(values)
    assert m.pull(columns=columns, out=out) is out
    assert np.array_equal(out, expected[columns])
    m.free()


@pytest.mark.parametrize("make", [DCV.dense, DCV.sparse])
def test_blocks_when_columns_are_unsorted_then_matches_numpy(ps, make):
    random = np.random.default_rng(0)
    columns = random.integers(0, DIM, 30_000)
    values = random.integers(-9, 9, (columns.size, K)).astype(np.float32)
    m = make(DIM, K, layout="column").matrix()
    for _ in range(3):
        m.add(columns=columns, values=values)
    expected = np.zeros((DIM, K), np.float32)
    np.add.at(expected, columns, 3 * values)
    assert np.array_equal(m.pull(columns=columns), expected[columns])


def test_row_when_saved_and_loaded_then_is_that_of_the_blocks(ps, tmp_path):
    vector = DCV.dense(DIM, 3, layout="column")
    values = np.random.default_rng(1).random((DIM, 2), np.float32)
    vector.push(values[:, 0])
    vector.derive().push(values[:, 1]).save(str(tmp_path / "saved"))
    assert np.array_equal(DCV.load(str(tmp_path / "saved")).pull(), values[:, 1])
