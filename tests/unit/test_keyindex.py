"""The key index is a dict from keys to consecutive slots."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2.errors import OutOfRangeError
from ps2.matrix.partition import hash_bucket
from ps2.ops.keyindex import KeyIndex

LAST = 2**63 - 1

# Few small keys, so that they repeat, and any others.
keys = st.integers(0, 40) | st.integers(0, LAST) | st.integers(LAST - 5, LAST)
batches = st.lists(st.lists(keys, max_size=60), max_size=12)


def int64(values):
    return np.array(values, dtype=np.int64)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(batches, st.lists(keys, max_size=60))
def test_index_when_keys_are_inserted_then_agrees_with_a_dict(inserted, probes):
    index, model = KeyIndex(), {}
    for batch in inserted:
        assert index.count_absent(int64(batch)) == len(set(batch) - set(model))
        expected = [model.setdefault(key, len(model)) for key in batch]
        assert index.insert(int64(batch)).tolist() == expected
    assert len(index) == len(model)
    assert index.keys.tolist() == list(model)
    assert index.lookup(int64(probes)).tolist() == [model.get(key, -1) for key in probes]


def test_insert_when_keys_repeat_in_call_then_share_one_slot():
    assert KeyIndex().insert(int64([9, 4, 9, LAST, 4])).tolist() == [0, 1, 0, 2, 1]


def test_insert_when_the_index_grows_then_keeps_every_slot():
    index, expected = KeyIndex(), np.random.default_rng(0).permutation(100_000)
    for batch in np.array_split(expected, 37):
        index.insert(batch)
    np.testing.assert_array_equal(index.lookup(expected), np.arange(100_000))


def test_insert_when_given_saved_keys_then_restores_same_slots():
    index, restored = KeyIndex(), KeyIndex()
    index.insert(int64([7, 3, 5, 3]))
    restored.insert(index.keys)
    np.testing.assert_array_equal(restored.keys, index.keys)


def test_insert_when_a_key_is_negative_then_adds_nothing():
    index = KeyIndex()
    with pytest.raises(OutOfRangeError, match="key -1 is outside"):
        index.insert(int64([5, -1]))
    assert len(index) == 0


def test_lookup_when_keys_are_absent_then_allocates_nothing():
    index = KeyIndex()
    index.insert(np.arange(1000))
    before = index.nbytes
    index.lookup(np.arange(1000, 100_000))
    assert (index.nbytes, len(index)) == (before, 1000)


def test_lookup_when_a_key_is_negative_then_is_absent():
    index = KeyIndex()
    index.insert(np.arange(5))
    assert index.lookup(int64([-1, -5, -(2**63)])).tolist() == [-1, -1, -1]


def test_missing_when_keys_are_absent_then_adds_none():
    index = KeyIndex()
    assert (index.count_absent(int64([3, 1, 3])), len(index)) == (2, 0)


@pytest.mark.parametrize("added", [0, 7, 8, 9, 1000, 65_536])
def test_nbytes_after_when_keys_are_inserted_then_was_exact(added):
    index = KeyIndex()
    index.insert(int64([LAST]))
    promised = index.nbytes_after(added)
    index.insert(np.arange(added))
    assert index.nbytes == promised


def test_cells_when_keys_share_partition_then_do_not_cluster():
    keys = np.arange(2**18)
    index = KeyIndex()
    index.insert(keys[hash_bucket(keys) < 2**32 // 8])
    taken = index._cells[:, 1] >= 0
    starts = np.flatnonzero(np.diff(taken.astype(np.int8)) == 1).size
    # Random keys in a half full table come in runs of about three cells; clustered keys would come in far longer ones.
    assert taken.sum() / starts < 4


def test_keys_when_read_then_cannot_be_changed():
    index = KeyIndex()
    index.insert(int64([1]))
    with pytest.raises(ValueError, match="read-only"):
        index.keys[0] = 2
