"""A shard's arrays: what they count for, which rows are in use, and where a column or key is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2.errors import LimitError, NotFoundError, OutOfRangeError, UsageError
from ps2.matrix.partition import HASH_SPACE, MatrixSpec, Partition
from ps2.server import shard as shards
from ps2.server.memory import MemoryAccount
from ps2.server.shard import MIN_CAPACITY, Shard

PLENTY = 1 << 40


def keys(*numbers):
    return np.array(numbers, dtype=np.int64)


def dense(memory=None, rows=2, begin=10, end=20):
    return Shard(MatrixSpec(100, rows), Partition(1, begin, end), memory or MemoryAccount(PLENTY))


def sparse(memory=None, rows=2):
    spec = MatrixSpec(2**62, rows, dtype="float64", kind="sparse")
    return Shard(spec, Partition(0, 0, HASH_SPACE), memory or MemoryAccount(PLENTY))


def by_column(memory=None, rows=2):
    spec = MatrixSpec(2**62, rows, dtype="float64", kind="sparse", layout="column")
    return Shard(spec, Partition(0, 0, HASH_SPACE), memory or MemoryAccount(PLENTY))


def real_bytes(shard):
    return shard.array.nbytes + (0 if shard.index is None else shard.index.nbytes)


def test_blocks_when_keys_are_added_then_keep_values_contiguous():
    shard = by_column(rows=3)
    first = shard.slots(np.arange(50), create=True)
    shard.blocks[first] = np.arange(150).reshape(50, 3)
    shard.slots(np.arange(1000), create=True)
    assert shard.blocks.flags.c_contiguous
    assert np.array_equal(shard.blocks[first], np.arange(150).reshape(50, 3))
    assert not shard.blocks[50:].any()


def test_rows_when_layout_is_column_then_there_are_never_more():
    shard = by_column(rows=2)
    with pytest.raises(UsageError, match="cannot grow beyond its 2 rows, got 3"):
        shard.grow_rows(3)


def test_clear_free_when_no_row_is_named_then_clears_all():
    shard = sparse()
    shard.slots(np.arange(3), create=True)
    shard.array[:] = np.nan
    shard.clear_free([])
    assert np.isnan(shard.array[:, : shard.live]).all()
    assert not shard.array[:, shard.live :].any()


def test_contiguous_rows_when_action_fails_then_rows_stay():
    shard = by_column()
    shard.slots(np.arange(5), create=True)
    with pytest.raises(ZeroDivisionError), shard.contiguous_rows([0], write_back=True) as (row,):
        row[:] = 1 / (row.size - 5)
    assert not shard.row(0).any()


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [dense, sparse, by_column])
def test_shard_when_made_then_it_counts_what_its_arrays_take(make):
    memory = MemoryAccount(PLENTY)
    shard = make(memory)
    assert memory.used_bytes == shard.nbytes == real_bytes(shard)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 400)), max_size=8), st.integers(1, 5))
def test_sparse_when_keys_and_rows_are_added_then_counts_memory(adds, rows):
    memory = MemoryAccount(PLENTY)
    shard = sparse(memory, rows=1)
    for start, count in adds:
        shard.slots(np.arange(start, start + count), create=True)
        assert memory.used_bytes == shard.nbytes == real_bytes(shard)
    shard.grow_rows(rows)
    assert memory.used_bytes == shard.nbytes == real_bytes(shard)


@pytest.mark.parametrize("make", [dense, sparse])
def test_free_when_grown_before_then_exactly_all_is_given_back(make):
    memory = MemoryAccount(PLENTY)
    shard = make(memory)
    shard.grow_rows(9)
    shard.slots(np.arange(10, 20), create=True)
    shard.free()
    assert (memory.used_bytes, shard.nbytes) == (0, 0)


def test_shard_when_it_does_not_fit_then_fails_before_allocating(monkeypatch):
    def no_allocation(*args, **kwargs):
        raise AssertionError("allocated before it was counted")

    memory = MemoryAccount(50)
    monkeypatch.setattr(shards.np, "zeros", no_allocation)
    with pytest.raises(LimitError, match="2 rows of 10 columns needs 80 bytes"):
        dense(memory)
    assert memory.used_bytes == 0


def test_rows_when_growth_does_not_fit_then_shard_is_unchanged(monkeypatch):
    memory = MemoryAccount(100)
    shard = dense(memory)
    shard.row(0)[:] = 7
    with pytest.raises(LimitError, match="growing to 9 rows"):
        shard.grow_rows(9)
    assert (shard.rows, memory.used_bytes, shard.row(0).tolist()) == (2, 80, [7] * 10)


def test_keys_when_growth_does_not_fit_then_none_is_added():
    shard = sparse()
    shard.slots(np.arange(40), create=True)
    shard._memory.limit_bytes = shard.nbytes
    with pytest.raises(LimitError):
        shard.slots(np.arange(1000), create=True)
    assert (shard.live, shard.nbytes) == (40, real_bytes(shard))


def test_shard_when_system_has_no_memory_then_counts_nothing(monkeypatch):
    def no_memory(*args, **kwargs):
        raise MemoryError

    memory = MemoryAccount(PLENTY)
    monkeypatch.setattr(shards.np, "zeros", no_memory)
    with pytest.raises(LimitError, match="the system"):
        dense(memory)
    assert memory.used_bytes == 0


# -- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [dense, sparse])
def test_rows_when_grown_then_old_keep_values_and_new_are_zero(make):
    shard = make()
    shard.slots(np.arange(10, 20), create=True)
    shard.row(1)[:] = 7
    shard.grow_rows(4)
    assert [shard.row(row).tolist() for row in range(4)] == [[0] * 10, [7] * 10, [0] * 10, [0] * 10]


def test_rows_when_told_to_grow_to_fewer_then_nothing_changes():
    shard = dense(rows=5)
    shard.grow_rows(0)
    assert shard.rows == 5


def test_row_when_retired_then_not_found_names_it():
    shard = dense()
    shard.retire_rows([1])
    with pytest.raises(NotFoundError, match="row 1 was freed"):
        shard.row(1)


@pytest.mark.parametrize("make", [dense, sparse])
def test_row_when_reused_then_it_is_zero_and_the_others_are_not(make):
    shard = make()
    shard.slots(np.arange(10, 20), create=True)
    shard.array[:] = 7
    shard.retire_rows([1])
    shard.reuse_rows([1])
    assert (shard.row(1).tolist(), shard.row(0).tolist()) == ([0] * 10, [7] * 10)


def test_row_when_reused_but_never_retired_here_then_is_zero():
    """The message that retired it may have been lost."""
    shard = dense()
    shard.row(1)[:] = 7
    shard.reuse_rows([1])
    assert shard.row(1).tolist() == [0] * 10


@pytest.mark.parametrize("number", [-1, 2, 2**32 - 1])
@pytest.mark.parametrize("method", ["retire_rows", "reuse_rows"])
def test_row_when_outside_then_out_of_range_and_nothing_changes(method, number):
    shard = dense()
    shard.row(1)[:] = 7
    with pytest.raises(OutOfRangeError, match=rf"row {number} is outside \[0, 2\)"):
        getattr(shard, method)([1, number])
    assert shard.row(1).tolist() == [7] * 10


@pytest.mark.parametrize(
    "use", [lambda s: s.row(0), lambda s: s.grow_rows(9), lambda s: s.retire_rows([0]), lambda s: s.reuse_rows([0])]
)
def test_shard_when_freed_then_not_found_and_memory_is_returned(use):
    shard = dense()
    shard.free()
    with pytest.raises(NotFoundError, match="the matrix was freed"):
        use(shard)
    assert shard._memory.used_bytes == 0


# -- columns and keys ------------------------------------------------------------------------------------------------


def test_slots_when_dense_then_count_from_partition_start():
    assert dense().slots(keys(19, 10, 10), create=True).tolist() == [9, 0, 0]


@pytest.mark.parametrize("column", [9, 20, -1, -(2**63), 2**63 - 1])
def test_slots_when_column_is_outside_then_error_names_interval(column):
    with pytest.raises(OutOfRangeError, match=rf"{column}.*\[10, 20\)"):
        dense().slots(keys(10, column), create=False)


def test_slots_when_absent_keys_are_only_read_then_adds_none():
    shard = sparse()
    assert shard.slots(keys(5, 6), create=False).tolist() == [-1, -1]
    assert shard.live == 0


def test_slots_when_keys_are_created_then_all_rows_have_zeros():
    shard = sparse()
    assert shard.slots(keys(5, 9, 5), create=True).tolist() == [0, 1, 0]
    assert [shard.row(0).tolist(), shard.row(1).tolist()] == [[0, 0], [0, 0]]


@pytest.mark.parametrize("key", [-1, 2**62])
def test_slots_when_new_key_is_outside_then_adds_none(key):
    shard = sparse()
    with pytest.raises(OutOfRangeError, match=rf"{key}.*\[0, {2**62}\)"):
        shard.slots(keys(5, key), create=True)
    assert shard.live == 0


def test_values_when_shard_outgrows_capacity_then_stay_with_keys():
    shard = sparse()
    first = np.arange(MIN_CAPACITY) * 3
    slots = shard.slots(first, create=True)
    shard.row(0)[slots] = first
    shard.slots(np.arange(10 * MIN_CAPACITY) + 10_000, create=True)
    assert shard.row(0)[shard.slots(first, create=False)].tolist() == first.tolist()
