"""Columns are grouped, ascending and distinct, and values find their way there and back; what comes again is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.client import keysets
from ps2.client.keysets import ServerKeySets, SplitCache, split, split_blocks
from ps2.errors import OutOfRangeError
from ps2.matrix.key_policy import KeyPolicy
from ps2.matrix.partition import MatrixSpec, assign_owners, partition_bounds, partition_of
from ps2.matrix.route import Route
from ps2.protocol.messages import Keys, Operation, Request, key_digest

specs = st.builds(MatrixSpec, dim=st.integers(1, 60), rows=st.just(1), align=st.integers(1, 7)) | st.just(
    MatrixSpec(60, 1, kind="sparse")
)
MANY = np.arange(0, 60_000, 7)


def routed(spec, count):
    bounds = partition_bounds(spec, count)
    return Route(1, bounds, tuple(f"s{owner}" for owner in assign_owners(len(bounds) - 1, count)))


@st.composite
def splits(draw):
    """A spec, columns in any order, and their split."""
    spec = draw(specs)
    columns = np.array(draw(st.lists(st.integers(0, spec.dim - 1), max_size=30)), dtype=np.int64)
    if draw(st.booleans()):
        columns = np.unique(columns)
    route = routed(spec, draw(st.integers(1, 5)))
    return spec, route, columns, split(spec, route, columns)


# -- split -----------------------------------------------------------------------------------------------------------


@given(splits())
def test_split_when_grouped_then_each_is_ascending_and_distinct(found):
    spec, route, columns, parts = found
    owners = partition_of(spec, route.bounds, columns)
    for partition, where, keys in parts.key_sets():
        assert parts.columns[where].tolist() == sorted(set(columns[owners == partition].tolist()))
        assert keys.columns.tolist() == parts.columns[where].tolist()
    assert sum(keys.count for *_, keys in parts.key_sets()) == len(set(columns.tolist()))


@given(splits())
def test_split_when_values_are_spread_then_columns_get_their_own(found):
    _, _, columns, parts = found
    assert parts.to_caller_order(parts.columns).tolist() == columns.tolist()
    both = np.stack([parts.columns, -parts.columns])
    assert parts.to_caller_order(both).tolist() == [columns.tolist(), (-columns).tolist()]


@given(splits())
def test_split_when_values_are_summed_then_duplicates_add_up(found):
    _, _, columns, parts = found
    values = np.arange(1.0, columns.size + 1)
    expected = [values[columns == column].sum() for column in parts.columns]
    assert parts.sum_duplicates(values).tolist() == expected


@given(splits())
def test_split_when_last_is_asked_then_is_last_given(found):
    _, _, columns, parts = found
    values = np.arange(columns.size)
    assert parts.last_duplicates(values).tolist() == [values[columns == column][-1] for column in parts.columns]


def test_split_when_columns_ascend_then_nothing_is_copied():
    spec, columns = MatrixSpec(10, 1), np.arange(10)
    parts = split(spec, routed(spec, 3), columns)
    assert parts.order is None
    assert np.shares_memory(parts.columns, columns)


@given(splits())
def test_blocks_when_grouped_then_duplicates_stay_in_order(found):
    spec, route, columns, _ = found
    parts = split_blocks(spec, route, columns)
    owners = partition_of(spec, route.bounds, columns)
    for partition, where, _ in parts.key_sets():
        assert parts.columns[where].tolist() == columns[owners == partition].tolist()
    assert sum(keys.count for *_, keys in parts.key_sets()) == columns.size
    assert (parts.order is None) == (np.diff(owners) >= 0).all()


def test_split_when_there_are_many_keys_then_groups_are_bounded(monkeypatch):
    monkeypatch.setattr(keysets, "GROUP_KEYS", 100)
    spec = MatrixSpec(1000, 1)
    parts = split(spec, routed(spec, 2), np.arange(1000))
    assert [(group.partition, group.end - group.begin) for group in parts.groups] == [(0, 100)] * 5 + [(1, 100)] * 5


@pytest.mark.parametrize("cut", ["split", "split_blocks"])
def test_split_when_keys_live_then_groups_are_smaller(cut):
    plain = MatrixSpec(2**60, 1, kind="sparse")
    managed, route, cache = replace(plain, key_policy=KeyPolicy(2)), routed(plain, 1), SplitCache()
    for spec, most in ((plain, keysets.GROUP_KEYS), (managed, keysets.GROUP_MANAGED_KEYS)) * 2:
        parts = getattr(cache, cut)(spec, route, np.arange(100_000))
        assert max(group.end - group.begin for group in parts.groups) == min(most, 100_000)


@pytest.mark.parametrize(("columns", "said"), [([0, 10], r"index 10 \(at position 1\)"), ([0, 1, -1], "index -1")])
def test_split_when_column_is_out_of_range_then_error_names_it(columns, said):
    spec = MatrixSpec(10, 1)
    with pytest.raises(OutOfRangeError, match=said + r".* is outside \[0, 10\)"):
        split(spec, routed(spec, 2), np.array(columns))


# -- what comes again ------------------------------------------------------------------------------------------------


SPEC = MatrixSpec(70_000, 1)
ROUTE = routed(SPEC, 2)


def test_cache_when_columns_repeat_then_groups_are_named(monkeypatch):
    monkeypatch.setattr(keysets, "MAX_INLINE_BYTES", 1000)
    cache = SplitCache()
    digests = [[group.digest for group in cache.split(SPEC, ROUTE, MANY).groups] for _ in range(3)]
    parts = split(SPEC, ROUTE, MANY)
    assert digests[0] == [None, None]
    assert digests[1] == digests[2] == [key_digest(keys.columns) for *_, keys in parts.key_sets()]


def test_cache_when_columns_repeat_twice_then_computes_nothing():
    cache = SplitCache()
    cache.split(SPEC, ROUTE, MANY)
    assert cache.split(SPEC, ROUTE, MANY) is cache.split(SPEC, ROUTE, MANY.copy())


def test_cache_when_caller_changes_array_then_entry_stays():
    cache, mine = SplitCache(), MANY.copy()
    cache.split(SPEC, ROUTE, mine)
    known = cache.split(SPEC, ROUTE, mine)
    mine += 1
    assert known.columns.tolist() == MANY.tolist()
    assert cache.split(SPEC, ROUTE, mine).columns.tolist() == mine.tolist()


def test_cache_when_partitioning_differs_then_split_does_too():
    cache = SplitCache()
    for route in (ROUTE, routed(SPEC, 3)):
        for _ in range(3):
            parts = cache.split(SPEC, route, MANY)
        assert len(parts.groups) == len(route.addresses)


def test_cache_when_full_then_the_oldest_goes():
    cache = SplitCache(limit_bytes=3 * MANY.nbytes)
    for shift in (0, 1, 2, 3):
        for _ in range(2):
            cache.split(SPEC, ROUTE, MANY + shift)
    assert cache._bytes <= 3 * MANY.nbytes
    assert len(cache._splits) == 3


def a_request(columns=MANY, digest=b"d" * 16):
    keys = Keys(columns.size, columns, digest)
    return Request((Operation("gather", 1, 0, (0,), keys=keys), Operation("sum", 1, 0, (0,))))


def test_known_keys_when_server_was_told_then_sends_hash_alone():
    known = ServerKeySets()
    assert known.shorten(a_request()).operations[0].keys.columns is MANY
    known.add(a_request())
    assert known.shorten(a_request()).operations[0].keys == Keys(MANY.size, None, b"d" * 16)


def test_known_keys_when_server_did_not_know_then_resends_keys():
    known = ServerKeySets()
    known.add(a_request())
    known.forget(a_request())
    assert known.shorten(a_request()).operations[0].keys.columns is MANY


def test_known_keys_when_they_have_no_name_then_they_always_go():
    known, request = ServerKeySets(), a_request(digest=None)
    known.add(request)
    assert known.shorten(request).operations[0].keys.columns is MANY


def test_known_keys_when_many_then_oldest_is_forgotten(monkeypatch):
    monkeypatch.setattr(keysets, "MAX_KNOWN_SETS", 2)
    known = ServerKeySets()
    for letter in (b"a", b"b", b"c"):
        known.add(a_request(digest=letter * 16))
    sent = [known.shorten(a_request(digest=letter * 16)).operations[0].keys.columns for letter in (b"a", b"b", b"c")]
    assert [columns is None for columns in sent] == [False, True, True]
