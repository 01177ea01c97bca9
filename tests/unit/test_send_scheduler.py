"""How additions leave: in chunks, the largest first, and not more than so many bytes a second."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.client import keysets, plans, send_scheduler
from ps2.client.plans import Target
from ps2.client.send_scheduler import BURST_S, CHUNK_VALUES, Bucket, SendScheduler
from ps2.matrix.partition import MatrixSpec, partition_bounds
from ps2.matrix.route import Route
from ps2.protocol.messages import Request, RequestId
from tests.messages import request_bytes

DIM = 5 * CHUNK_VALUES
BY_SIZE = SendScheduler.of("magnitude", None)


def target_of(kind="dense", wire=None, servers=2):
    spec = MatrixSpec(DIM, 1, "float64", kind, wire=wire)
    bounds = partition_bounds(spec, servers)
    return Target(1, spec, Route(0, bounds, ("a", "b", "c")[: len(bounds) - 1]), (0,))


def addition(values, columns=None, target=None):
    target = target or target_of()
    if columns is None:
        return plans.push(target, "push_add", values, 0, len(values))
    return plans.push_columns(target, "scatter_add", values, columns)


def entries(*specs):
    """Entries of (clock, value): one value each."""
    return [
        BY_SIZE.queued(addition(np.array([value])), RequestId("run", number), clock)
        for number, (clock, value) in enumerate(specs)
    ]


def values_of(chosen):
    return [entry.plan.operations[0].arrays[0][0] for entry in chosen]


@given(st.floats(1, 1e9), st.lists(st.tuples(st.floats(0, 10), st.integers(1, 1 << 22)), min_size=1, max_size=30))
def test_bytes_when_bucket_is_on_then_stay_within_rate_and_burst(rate, asked):
    """Whoever comes is let through as soon as the bucket says; counted over every stretch of time."""
    bucket, now_s, left = Bucket(rate), 0.0, []
    for pause_s, count in asked:
        now_s += pause_s
        now_s += bucket.delay_s(count, now_s)
        bucket.take(count, now_s)
        left.append((now_s, count))
    most = max(rate * BURST_S, *(count for _, count in asked))
    for first in range(len(left)):
        counts = np.cumsum([count for _, count in left[first:]])
        spans = np.array([when_s - left[first][0] for when_s, _ in left[first:]])
        assert (counts <= (rate * spans + most) * (1 + 1e-6)).all()


def test_bucket_when_empty_then_wait_matches_rate():
    bucket = Bucket(1000.0)
    bucket.take(50, 0.0)
    assert bucket.delay_s(30, 0.0) == pytest.approx(0.03)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_chunks_when_addition_is_cut_then_cover_every_column(kind):
    columns = np.random.default_rng(0).permutation(DIM)
    chunks = BY_SIZE.cut(addition(columns.astype(float), columns, target_of(kind)))
    found = np.concatenate([chunk.operations[0].keys.columns for chunk in chunks])
    sent = np.concatenate([chunk.operations[0].arrays[0] for chunk in chunks])
    assert len(chunks) >= 5
    assert sorted(found.tolist()) == list(range(DIM))
    assert (sent == found).all()


def test_chunks_when_dense_addition_is_cut_then_cover_columns():
    found = np.zeros(DIM)
    bounds = target_of().route.bounds
    for chunk in BY_SIZE.cut(addition(np.arange(DIM, dtype=float))):
        (operation,) = chunk.operations
        begin = bounds[operation.partition] + operation.params["start"]
        found[begin : begin + operation.arrays[0].size] += operation.arrays[0]
    assert (found == np.arange(DIM)).all()


def test_chunks_when_values_differ_then_columns_are_the_same():
    """A second attempt may compute other values: no column may count twice, or not at all."""
    columns, random = np.arange(0, DIM, 2), np.random.default_rng(1)
    first, second = (BY_SIZE.cut(addition(random.normal(size=columns.size), columns)) for _ in range(2))
    assert [chunk.operations[0].keys.columns.tolist() for chunk in first] == [
        chunk.operations[0].keys.columns.tolist() for chunk in second
    ]


@pytest.mark.parametrize("at", [None, [3, 1, 3, 9]])
def test_chunks_when_rows_are_added_then_each_has_some_of_them(at):
    spec = MatrixSpec(CHUNK_VALUES // 3, 100, "float64")
    target = Target(1, spec, Route(0, (0, spec.dim), ("a",)))
    numbers = np.random.default_rng(0).integers(0, 100, 7 if at is None else CHUNK_VALUES)
    if at is None:
        plan = plans.rows_push(target, "rows_add", numbers, np.repeat(numbers[:, None] * 1.0, spec.dim, axis=1))
    else:
        plan = plans.rows_scatter_add(target, numbers, np.repeat(numbers[:, None] * 1.0, len(at), axis=1), at)
    chunks = [chunk.operations[0] for chunk in BY_SIZE.cut(plan)]
    assert len(chunks) > 2
    assert all(operation.arrays[1].size <= CHUNK_VALUES for operation in chunks)
    assert np.concatenate([operation.arrays[0] for operation in chunks]).tolist() == numbers.tolist()
    scale = 1 if at is None else np.array([1.0, 2.0, 1.0])  # columns are sent once, in their order
    for operation in chunks:
        assert (operation.arrays[1] == operation.arrays[0][:, None] * scale).all()


def test_order_when_matrix_is_overwritten_then_that_leaves_alone():
    target, other = target_of(), replace(target_of(), matrix=2)
    made = [
        BY_SIZE.queued(plan, RequestId("run", number), 0)
        for number, plan in enumerate(
            [
                plans.push(target, "push_add", np.ones(1), 0, 1),
                plans.push(target, "push_add", np.ones(1), 0, 1),
                plans.push(target, "push", np.ones(1), 0, 1),
                plans.push(target, "push_add", np.ones(1), 0, 1),
                plans.push(other, "push", np.ones(1), 0, 1),
            ]
        )
    ]
    left, waiting = [], made
    while waiting:
        chosen = SendScheduler().choose(waiting)
        left.append([entry.id.number for entry in chosen])
        waiting = [entry for entry in waiting if entry not in chosen]
    assert left == [[0, 1, 4], [2], [3]]


def test_addition_when_it_is_small_then_it_stays_whole():
    plan = addition(np.ones(100))
    assert BY_SIZE.cut(plan) == [plan]


def test_addition_when_nothing_is_managed_then_it_stays_whole():
    plan = addition(np.ones(DIM))
    assert SendScheduler().cut(plan) == [plan]


def test_chunk_when_keys_have_digest_then_has_its_own(monkeypatch):
    for module in (keysets, send_scheduler):
        monkeypatch.setattr(module, "MOST_SENT_BYTES", 0)
    columns = np.arange(1, DIM, 3)
    plans.push_columns(target_of(), "scatter_add", np.ones(columns.size), columns)
    chunks = BY_SIZE.cut(addition(np.ones(columns.size), columns))
    names = [chunk.operations[0].keys.digest for chunk in chunks]
    assert None not in names
    assert len(set(names)) == len(names) > 1


def test_order_when_by_size_then_largest_magnitudes_leave_first(monkeypatch):
    monkeypatch.setattr(send_scheduler, "GROUP_BYTES", 1)
    waiting, order = entries((0, 1.0), (0, -5.0), (0, 0.1), (0, 3.0)), []
    while waiting:
        chosen = BY_SIZE.choose(waiting)
        order += values_of(chosen)
        waiting = [entry for entry in waiting if entry not in chosen]
    assert order == [-5.0, 3.0, 1.0, 0.1]


def test_order_when_some_are_due_then_precede_larger_ones():
    by_size = SendScheduler(by_size=True, bucket=Bucket(1.0), due=3)
    assert values_of(by_size.choose(entries((3, 9.0), (2, 1.0), (1, 2.0)))) == [2.0]


def test_order_when_only_rate_is_set_then_is_first_in_first_out():
    assert values_of(SendScheduler.of(None, 1.0).choose(entries((0, 1.0), (0, 9.0)))) == [1.0]


def test_order_when_a_value_is_no_number_then_it_leaves_first():
    assert np.isnan(values_of(BY_SIZE.choose(entries((0, 9.0), (0, np.nan))))[0])


def test_order_when_nothing_is_managed_then_all_leave():
    assert values_of(SendScheduler().choose(entries((0, 1.0), (0, 9.0)))) == [1.0, 9.0]


@pytest.mark.parametrize("wire", [None, "float16"])
@pytest.mark.parametrize("step", [1, 300, 5])
def test_bytes_when_counted_then_match_sent_without_headers(wire, step):
    columns = np.arange(0, DIM, step)
    plan = addition(np.ones(columns.size), columns, target_of(wire=wire, servers=1))
    counted = BY_SIZE.queued(plan, RequestId("run", 0), 0).sent_bytes
    sent = len(request_bytes(Request(plan.operations)))
    assert 0 <= sent - counted < 200 * len(plan.operations)
