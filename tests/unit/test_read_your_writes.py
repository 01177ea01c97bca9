"""What is laid over a read makes it what the servers will hold when the additions have come."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.client import blocks, keysets, plans, read_your_writes
from ps2.client.declared import declared
from ps2.client.keysets import SPLITS
from ps2.client.plans import Target
from ps2.client.read_your_writes import ReadYourWrites, is_plain
from ps2.matrix.key_policy import KeyPolicy
from ps2.matrix.partition import MatrixSpec, partition_bounds
from ps2.matrix.route import Route
from ps2.ops.packing import narrow, widen

DIM = 60


def target_of(kind="dense", servers=2, dtype="float64", row=0, wire=None):
    spec = MatrixSpec(DIM, 4, dtype, kind, wire=wire)
    bounds = partition_bounds(spec, servers)
    return Target(1, spec, Route(0, bounds, tuple(f"server{i}" for i in range(len(bounds) - 1))), (row,))


def blocks_of(servers):
    spec = MatrixSpec(DIM, 4, "float64", "dense", layout="column")
    bounds = partition_bounds(spec, servers)
    return Target(1, spec, Route(0, bounds, tuple(f"server{i}" for i in range(len(bounds) - 1))), ())


def where(target, operation):
    """Return the columns of the row that an operation is about."""
    if operation.keys is not None:
        return operation.keys.columns
    begin = target.route.bounds[operation.partition] + operation.params["start"]
    count = operation.arrays[0].size if operation.arrays else operation.params["stop"] - operation.params["start"]
    return np.arange(begin, begin + count)


def apply(target, row, plan):
    """Add a plan's values to the row as the servers do."""
    for operation in plan.operations:
        values = operation.arrays[0]
        if operation.wire is not None:
            values = widen(narrow(values, operation.wire), values.dtype)
        row[where(target, operation)] += values if operation.name.endswith("add") else -values


def serve(target, row, plan):
    """Read into a plan's arrays as the servers do."""
    for operation in plan.operations:
        operation.into[:] = row[where(target, operation)]


columns = st.lists(st.integers(0, DIM - 1), max_size=40)


@st.composite
def reads(draw, target):
    if target.spec.kind == "sparse" or draw(st.booleans()):
        return plans.pull_columns(target, np.array(draw(columns), np.int64))
    lo, hi = sorted((draw(st.integers(0, DIM)), draw(st.integers(0, DIM))))
    return plans.pull(target, lo, hi)


@st.composite
def additions(draw, target):
    verb = draw(st.sampled_from(["add", "sub"]))
    if target.spec.kind == "sparse" or draw(st.booleans()):
        at = np.array(draw(columns), np.int64)
        values = draw(st.lists(st.integers(-9, 9), min_size=at.size, max_size=at.size))
        return plans.push_columns(target, f"scatter_{verb}", np.array(values, target.spec.np_dtype), at)
    lo, hi = sorted((draw(st.integers(0, DIM)), draw(st.integers(0, DIM))))
    values = draw(st.lists(st.integers(-9, 9), min_size=hi - lo, max_size=hi - lo))
    return plans.push(target, f"push_{verb}", np.array(values, target.spec.np_dtype), lo, hi)


@given(st.data())
def test_read_when_additions_are_missing_then_overlays_them(data):
    kind = data.draw(st.sampled_from(["dense", "sparse"]))
    dtype = data.draw(st.sampled_from(["float32", "float64", "int32", "int64"]))
    target = target_of(kind, data.draw(st.integers(1, 4)), dtype)
    row = np.arange(DIM, dtype=dtype)
    read, expected = data.draw(reads(target)), None
    reading = ReadYourWrites([read])
    serve(target, row, read)
    for _ in range(data.draw(st.integers(0, 4))):
        addition = data.draw(additions(target))
        reading.add_missing_write(addition)
        apply(target, row, addition)
    reading.add_missing()
    result = read.merge([]).copy()
    serve(target, row, read)
    expected = read.merge([])
    assert result.tolist() == expected.tolist()
    assert not reading.is_invalid


rows = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@st.composite
def changes_of_rows(draw, target):
    """A plan that adds to rows, and what it adds to a block of all rows."""
    numbers, verb = draw(rows), draw(st.sampled_from(["rows", "columns", "one"]))
    if verb == "one":
        target = replace(target, rows=(numbers[0],))
        plan, added = draw(additions(target)), np.zeros((4, DIM))
        apply(target, added[numbers[0]], plan)
        return plan, added
    at = np.arange(DIM) if verb == "rows" else np.array(draw(columns), np.int64)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    values, added = rng.integers(-9, 9, (len(numbers), at.size)).astype(target.spec.np_dtype), np.zeros((4, DIM))
    np.add.at(added, np.ix_(numbers, at), values)
    if verb == "rows":
        return plans.rows_push(target, "rows_add", numbers, values), added
    return plans.rows_scatter_add(target, numbers, values, at), added


@given(st.data())
def test_rows_read_when_additions_are_missing_then_overlays_them(data):
    """Rows and columns repeat, in any order, in what is read and in what is added; so do rows of single vectors."""
    target = target_of("dense", data.draw(st.integers(1, 4)), data.draw(st.sampled_from(["float64", "int32"])))
    numbers, given = data.draw(rows), data.draw(st.none() | columns)
    if data.draw(st.booleans()):
        read = plans.rows_pull(target, numbers, given)
        asked = np.ix_(numbers, np.arange(DIM) if given is None else np.array(given, np.int64))
    else:
        read, asked = plans.pull(replace(target, rows=(numbers[0],)), 5, 44), (numbers[0], slice(5, 44))
    reading, expected = ReadYourWrites([read]), np.zeros((4, DIM))
    for operation in read.operations:
        operation.into[...] = 0
    for _ in range(data.draw(st.integers(0, 3))):
        plan, added = data.draw(changes_of_rows(target))
        reading.add_missing_write(plan)
        expected += added
    reading.add_missing()
    assert not reading.is_invalid
    assert np.array_equal(read.merge([]), expected[asked])


def test_rows_when_others_are_overwritten_then_read_stays_valid():
    target = target_of()
    reading = ReadYourWrites([plans.rows_pull(target, [0, 2], None)])
    reading.add_possibly_missing_write(plans.rows_push(target, "rows_push", [1, 3], np.ones((2, DIM))))
    assert not reading.is_invalid
    reading.add_possibly_missing_write(plans.rows_push(target, "rows_push", [3, 2], np.ones((2, DIM))))
    assert reading.is_invalid


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_addition_when_sent_in_16_bits_then_overlays_received(wire):
    target = target_of(wire=wire)
    row, read = np.zeros(DIM), plans.pull(target, 0, DIM)
    reading = ReadYourWrites([read])
    addition = plans.push(target, "push_add", np.linspace(1000, 3000, DIM), 0, DIM)
    reading.add_missing_write(addition)
    serve(target, row, read)
    reading.add_missing()
    apply(target, row, addition)
    assert read.merge([]).tolist() == row.tolist()
    assert row[1] != np.linspace(1000, 3000, DIM)[1]


def test_addition_when_key_digests_are_equal_then_match(monkeypatch):
    monkeypatch.setattr(keysets, "MAX_INLINE_BYTES", 1000)
    spec = MatrixSpec(10_000, 1, "float64")
    target = Target(1, spec, Route(0, (0, 5_000, 10_000), ("a", "b")), (0,))
    at = np.arange(0, 10_000, 3)
    SPLITS.split(spec, target.route, at)
    read = plans.pull_columns(target, at)
    addition = plans.push_columns(target, "scatter_add", np.arange(at.size, dtype=float), at)
    assert all(operation.keys.digest for operation in (*read.operations, *addition.operations))
    reading = ReadYourWrites([read])
    reading.add_missing_write(addition)
    serve(target, np.ones(10_000), read)
    reading.add_missing()
    assert read.merge([]).tolist() == (1.0 + np.arange(at.size)).tolist()


def test_addition_when_it_is_to_another_row_then_nothing_is_laid():
    read = plans.pull(target_of(), 0, DIM)
    reading = ReadYourWrites([read])
    reading.add_missing_write(plans.push(target_of(row=1), "push_add", np.ones(DIM), 0, DIM))
    serve(target_of(), np.zeros(DIM), read)
    reading.add_missing()
    assert not read.merge([]).any()


@pytest.mark.parametrize(
    "other",
    [
        lambda target: plans.push(target, "push_mul", np.ones(DIM), 0, DIM),
        lambda target: declared(target, "add_scalar", {"value": 1}),
        lambda target: plans.rows_push(target, "rows_push", [0], np.ones((1, DIM))),
        lambda target: declared(target, "rows_axpy", {"rows_y": [1], "rows_x": [2], "alphas": [1.0]}),
    ],
    ids=["mul", "add_scalar", "rows_push", "rows_axpy"],
)
def test_change_when_not_a_sum_of_arrays_then_read_is_void(other):
    reading = ReadYourWrites([plans.pull(target_of(), 0, DIM)])
    reading.add_missing_write(other(target_of()))
    assert reading.is_invalid


def test_change_when_it_may_precede_read_then_read_is_void():
    reading = ReadYourWrites([plans.pull(target_of(), 0, DIM)])
    reading.add_possibly_missing_write(plans.push(target_of(), "push_add", np.ones(DIM), 0, DIM))
    assert reading.is_invalid


def test_change_when_to_another_row_then_read_stays_valid():
    reading = ReadYourWrites([plans.pull(target_of(), 0, DIM)])
    reading.add_possibly_missing_write(plans.push(target_of(row=1), "push_mul", np.ones(DIM), 0, DIM))
    assert not reading.is_invalid


@pytest.mark.parametrize(("columns", "is_invalid"), [([1, 7, 59], False), ([1, 8, 59], True)])
def test_blocks_when_others_are_overwritten_then_read_is_valid(columns, is_invalid):
    target = blocks_of(servers=2)
    reading = ReadYourWrites([blocks.pull(target, [40, 8, 0])])
    reading.add_possibly_missing_write(blocks.push(target, columns, np.ones((3, 4))))
    assert reading.is_invalid is is_invalid


def test_blocks_when_others_get_much_added_then_read_is_valid(monkeypatch):
    monkeypatch.setattr(read_your_writes, "MISSING_BYTES", 1)
    target = blocks_of(servers=2)
    reading = ReadYourWrites([blocks.pull(target, [40, 8, 0])])
    reading.add_missing_write(blocks.add(target, [1, 7, 59], np.ones((3, 4))))
    assert not reading.is_invalid
    reading.add_missing_write(blocks.add(target, [40], np.ones((1, 4))))
    assert reading.is_invalid


@pytest.mark.parametrize("admit_after", [1, 2])
def test_additions_when_new_keys_may_wait_then_read_is_void(admit_after):
    spec = MatrixSpec(DIM, 4, "float64", "sparse", layout="column", key_policy=KeyPolicy(admit_after))
    target = Target(1, spec, Route(0, partition_bounds(spec, 1), ("server0",)))
    read = ReadYourWrites([blocks.pull(target, [3])])
    read.add_missing_write(blocks.add(target, [3], np.ones((1, 4))))
    assert read.is_invalid is (admit_after == 2)


def test_additions_when_over_bound_then_read_is_void(monkeypatch):
    monkeypatch.setattr(read_your_writes, "MISSING_BYTES", 3 * DIM * 8)
    reading = ReadYourWrites([plans.pull(target_of(), 0, DIM)])
    for expected in (False, False, False, True):
        reading.add_missing_write(plans.push(target_of(), "push_add", np.ones(DIM), 0, DIM))
        assert reading.is_invalid is expected


def test_plans_when_more_than_row_reads_then_are_not_plain():
    target, sparse = target_of(), target_of("sparse")
    plain = [plans.pull(target, 0, 9), plans.pull_columns(target, [1, 5]), plans.pull_columns(sparse, [1])]
    others = [declared(target, "sum", {}), plans.pull_active(sparse), plans.push_pull_columns(target, [1.0], [1])]
    assert is_plain(plain)
    assert [is_plain([plan]) for plan in others] == [False] * 3
