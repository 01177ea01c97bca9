"""Exports of embedding tables on real servers, read without them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ps2 import EmbeddingTable, batch
from ps2.errors import UsageError
from ps2.serving import Scorer
from ps2.storage.exports import read_manifest

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")

K = 5


def trained(keys, **how):
    """Return a table with a step at each key."""
    table = EmbeddingTable(K, "adagrad", lr=0.5, zeroColumns=1, **how)
    step(table, keys)
    return table


def step(table, keys):
    table.push(keys, np.random.default_rng(2).normal(size=(len(keys), K)).astype(np.float32))


@pytest.fixture
def keys():
    return np.random.default_rng(0).integers(0, 2**63 - 1, 3000)


def test_export_when_read_then_equals_pull(ps, keys, tmp_path):
    table = trained(keys)
    export = table.export(str(tmp_path))
    expected = np.concatenate([keys[::7], np.arange(20)])  # the last ones have their initial weights
    result, present = Scorer(str(tmp_path)).lookUp(expected.reshape(-1, 1))
    np.testing.assert_array_equal(result, table.pull(expected.reshape(-1, 1)))
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


def test_delta_when_read_then_equals_pull(ps, keys, tmp_path):
    table = trained(keys)
    first = table.export(str(tmp_path))
    scorer = Scorer(str(tmp_path))
    new = np.arange(10)
    step(table, np.concatenate([keys[:100], new]))
    table.matrix.remove(keys[100:150])
    second = table.export(str(tmp_path), since=first)
    assert (second.full, second.keys, second.removed) == (False, 110, 50)
    scorer.refresh()
    expected = np.concatenate([keys, new])
    result, present = scorer.lookUp(expected)
    np.testing.assert_array_equal(result, table.pull(expected))
    assert not present[100:150].any()
    assert present.sum() == 2960


def test_delta_when_a_removed_key_came_back_then_it_is_there(ps, keys, tmp_path):
    table = trained(keys)
    table.export(str(tmp_path))
    table.matrix.remove(keys[:1])
    step(table, keys[:1])
    delta = table.export(str(tmp_path), since="last")
    assert (delta.full, delta.keys, delta.removed) == (False, 1, 1)
    np.testing.assert_array_equal(Scorer(str(tmp_path)).vectors(keys[:2]), table.pull(keys[:2]))


def test_delta_when_nothing_changed_then_is_empty(ps, keys, tmp_path):
    table = trained(keys)
    table.export(str(tmp_path))
    delta = table.export(str(tmp_path), since="last")
    assert (delta.full, delta.keys, delta.removed, delta.number) == (False, 0, 0, 2)


def test_delta_when_keys_expired_then_they_are_gone(ps, keys, tmp_path):
    table = trained(keys, expireAfterS=60, clock="event")
    table.export(str(tmp_path))
    table.matrix.advance(50)
    step(table, keys[:20])
    table.matrix.advance(100)
    table.matrix.expire()
    delta = table.export(str(tmp_path), since="last")
    assert (delta.full, delta.keys, delta.removed) == (False, 20, 2980)
    assert Scorer(str(tmp_path)).lookUp(keys)[1].tolist() == [True] * 20 + [False] * 2980


def test_delta_when_the_table_was_loaded_then_all_keys(ps, keys, tmp_path):
    table = trained(keys)
    table.export(str(tmp_path / "export"))
    table.save(str(tmp_path / "save"))
    table.free()
    source = read_manifest(str(tmp_path / "export")).newest.source
    again = EmbeddingTable.load(str(tmp_path / "save"))
    manifest = tmp_path / "export" / "manifest.json"
    other = source | {"matrix": f"{again.matrix.number:x}"}  # as after a restart of the fleet
    manifest.write_text(manifest.read_text().replace(source["matrix"], other["matrix"]))
    full = again.export(str(tmp_path / "export"), since="last")
    assert (full.full, full.keys) == (True, 3000)
    assert "loaded" in full.reason


def test_export_while_others_push_then_the_next_delta_has_all(ps, keys, tmp_path):
    table = trained(keys)
    ended = threading.Event()

    def push():
        rng = np.random.default_rng(3)
        while not ended.is_set():
            step(table, rng.choice(keys, 50, replace=False))

    pushing = threading.Thread(target=push)
    pushing.start()
    for number in range(5):
        table.export(str(tmp_path), since="last" if number else None)
    ended.set()
    pushing.join()
    table.export(str(tmp_path), since="last")
    np.testing.assert_array_equal(Scorer(str(tmp_path)).vectors(keys), table.pull(keys))


def test_export_when_keys_are_folded_then_refused(ps, tmp_path):
    with pytest.raises(UsageError, match="hashBits"):
        EmbeddingTable(K, hashBits=8).export(str(tmp_path))


def test_export_when_in_a_batch_then_refused(ps, tmp_path):
    table = EmbeddingTable(K)
    with pytest.raises(UsageError, match="cannot be part of a batch"), batch():
        table.export(str(tmp_path))
