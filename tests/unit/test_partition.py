"""Cutting a matrix and placing its partitions: whatever its size, alignment and number of servers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.errors import ConfigError, DTypeError, OutOfRangeError
from ps2.matrix.partition import (
    HASH_SPACE,
    MatrixSpec,
    assign_owners,
    check_columns,
    hash_bucket,
    partition_bounds,
    partition_of,
    partitions,
)

servers = st.integers(1, 20)
dense = st.builds(
    MatrixSpec,
    dim=st.integers(1, 10_000),
    rows=st.just(1),
    align=st.integers(1, 50),
    partitions_per_server=st.integers(1, 4),
)
sparse = st.builds(MatrixSpec, dim=st.integers(1, 2**63), rows=st.just(1), kind=st.just("sparse"))


@given(dense | sparse, servers)
def test_bounds_when_cut_then_cover_space_with_nonempty_parts(spec, count):
    bounds = partition_bounds(spec, count)
    assert (bounds[0], bounds[-1]) == (0, HASH_SPACE if spec.kind == "sparse" else spec.dim)
    assert all(a < b for a, b in pairwise(bounds))


@given(dense, servers)
def test_bounds_when_aligned_then_no_block_is_cut(spec, count):
    assert all(bound % spec.align == 0 for bound in partition_bounds(spec, count)[:-1])


@given(dense, servers)
def test_bounds_when_cut_then_sizes_differ_by_at_most_one_block(spec, count):
    bounds = partition_bounds(spec, count)
    blocks = [-(-(b - a) // spec.align) for a, b in pairwise(bounds)]
    assert max(blocks) - min(blocks) <= 1


@given(dense, servers)
def test_bounds_when_blocks_suffice_then_servers_get_partitions(spec, count):
    expected, blocks = count * spec.partitions_per_server, -(-spec.dim // spec.align)
    assert len(partition_bounds(spec, count)) - 1 == min(expected, blocks)


@pytest.mark.parametrize(
    ("dim", "align", "count", "bounds"),
    [
        (1, 1, 4, (0, 1)),
        (3, 1, 4, (0, 1, 2, 3)),
        (10, 1, 4, (0, 2, 5, 7, 10)),
        (10, 4, 2, (0, 4, 10)),
        (10, 64, 3, (0, 10)),
    ],
)
def test_bounds_when_given_then_they_are(dim, align, count, bounds):
    assert partition_bounds(MatrixSpec(dim, 1, align=align), count) == bounds


def test_partitions_when_made_of_bounds_then_each_is_half_open():
    assert [(p.index, p.begin, p.end, p.width) for p in partitions((0, 3, 10))] == [(0, 0, 3, 3), (1, 3, 10, 7)]


@given(st.integers(1, 100), servers)
def test_place_when_spread_then_servers_hold_even_runs(count, fleet):
    owners = assign_owners(count, fleet)
    held = np.bincount(owners, minlength=min(count, fleet))
    assert len(owners) == count
    assert list(owners) == sorted(owners)
    assert held.size == min(count, fleet)
    assert held.max() - held.min() <= 1


@given(dense, servers, st.data())
def test_partition_of_when_dense_then_interval_holds_column(spec, count, data):
    bounds = partition_bounds(spec, count)
    column = data.draw(st.integers(0, spec.dim - 1))
    (owner,) = partition_of(spec, bounds, np.array([column]))
    assert bounds[owner] <= column < bounds[owner + 1]


@given(servers, st.lists(st.integers(0, 2**63 - 1), min_size=1))
def test_partition_of_when_sparse_then_interval_holds_hash(count, keys):
    spec = MatrixSpec(2**63, 1, kind="sparse")
    bounds = partition_bounds(spec, count)
    keys = np.array(keys, dtype=np.int64)
    for owner, bucket in zip(partition_of(spec, bounds, keys), hash_bucket(keys), strict=True):
        assert bounds[owner] <= bucket < bounds[owner + 1]


@pytest.mark.parametrize("keys", [np.arange(100_000), np.arange(100_000) * 4096, 2**63 - 1 - np.arange(100_000)])
@pytest.mark.parametrize("count", [2, 3, 16])
def test_hash_when_keys_follow_pattern_then_servers_share_evenly(count, keys):
    """Within 5 % of the fair share: six standard deviations for 100,000 random keys on 16 servers are 7.5 %."""
    spec = MatrixSpec(2**63, 1, kind="sparse")
    held = np.bincount(partition_of(spec, partition_bounds(spec, count), keys.astype(np.int64)), minlength=count)
    assert np.abs(held * count / keys.size - 1).max() < 0.05


def test_hash_when_computed_then_it_never_changes():
    """Clients and servers of different versions must agree, and so must saved vectors."""
    assert hash_bucket(np.array([0, 1, 2**63 - 1])).tolist() == [_splitmix(0), _splitmix(1), _splitmix(2**63 - 1)]


def _splitmix(x):
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> shift)) * factor % 2**64
    return (x ^ (x >> 31)) >> 32


@pytest.mark.parametrize(
    ("columns", "said"), [([3, 10], r"index 10 \(at position 1\)"), ([0, -1, 99], r"index -1 \(at position 1\)")]
)
def test_columns_when_one_is_outside_then_the_error_names_it(columns, said):
    with pytest.raises(OutOfRangeError, match=said):
        check_columns(MatrixSpec(10, 1), np.array(columns))


@pytest.mark.parametrize("columns", [[], [0, 9]])
def test_columns_when_inside_then_no_error(columns):
    check_columns(MatrixSpec(10, 1), np.array(columns, dtype=np.int64))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"dim": 0}, "dim"),
        ({"dim": -3}, "dim"),
        ({"dim": True}, "dim"),
        ({"dim": 1.5}, "dim"),
        ({"dim": "9"}, "dim"),
        ({"dim": 2**40 + 1}, "dim"),
        ({"dim": 2**63 + 1, "kind": "sparse"}, "dim"),
        ({"rows": 0}, "rows"),
        ({"rows": 2**31}, "rows"),
        ({"align": 0}, "align"),
        ({"align": 2, "kind": "sparse"}, "align"),
        ({"partitions_per_server": 0}, "partitions_per_server"),
        ({"kind": "ragged"}, "kind"),
    ],
)
def test_spec_when_field_is_invalid_then_config_error_names_it(change, named):
    with pytest.raises(ConfigError, match=f"^{named}: "):
        MatrixSpec(**{"dim": 10, "rows": 1, **change})


def test_spec_when_dtype_is_unknown_then_dtype_error_lists_known():
    with pytest.raises(DTypeError, match="float32, float64, int32, int64, got 'int8'"):
        MatrixSpec(10, 1, dtype="int8")


def test_spec_when_given_numpy_integers_then_they_become_ints():
    assert type(MatrixSpec(np.int32(10), np.int64(2)).dim) is int
