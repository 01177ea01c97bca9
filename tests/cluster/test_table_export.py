"""Exports of embedding tables on real servers, read without them."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import EmbeddingTable, batch
from ps2.errors import UsageError
from ps2.serving import Scorer

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")

K = 5


def trained(keys, **how):
    """Return a table with a step at each key."""
    table = EmbeddingTable(K, "adagrad", lr=0.5, zeroColumns=1, **how)
    table.push(keys, np.random.default_rng(2).normal(size=(len(keys), K)).astype(np.float32))
    return table


@pytest.fixture
def keys():
    return np.random.default_rng(0).integers(0, 2**63 - 1, 3000)


def test_export_when_read_then_equals_pull(ps, keys, tmp_path):
    table = trained(keys)
    export = table.export(str(tmp_path))
    wanted = np.concatenate([keys[::7], np.arange(20)])  # the last ones have their initial weights
    found, present = Scorer(str(tmp_path)).lookUp(wanted.reshape(-1, 1))
    np.testing.assert_array_equal(found, table.pull(wanted.reshape(-1, 1)))
    assert present.sum() == len(keys[::7])
    assert (export.keys, export.number, export.full, export.reason) == (3000, 1, True, None)


def test_export_when_the_table_is_empty_then_initial(ps, tmp_path):
    table = EmbeddingTable(K, keys=100)
    table.export(str(tmp_path))
    np.testing.assert_array_equal(Scorer(str(tmp_path)).vectors([1, 2]), table.pull([1, 2]))


def test_delta_when_of_another_table_then_refused(ps, keys, tmp_path):
    trained(keys).export(str(tmp_path))
    with pytest.raises(UsageError, match="export 1 is of another table"):
        trained(keys).export(str(tmp_path), since="last")


def test_export_when_keys_are_folded_then_refused(ps, tmp_path):
    with pytest.raises(UsageError, match="hashBits"):
        EmbeddingTable(K, hashBits=8).export(str(tmp_path))


def test_export_when_in_a_batch_then_refused(ps, tmp_path):
    table = EmbeddingTable(K)
    with pytest.raises(UsageError, match="cannot be part of a batch"), batch():
        table.export(str(tmp_path))
