"""Blocks of a matrix with layout "column": whatever is asked of it, it is what NumPy says, on any number of servers."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV
from ps2.client import blocks, keysets, plans
from ps2.client.declared import declared
from ps2.client.zipped import map_partitions
from ps2.errors import DTypeError, LimitError, OutOfRangeError, ShapeError, UsageError
from ps2.matrix.partition import MatrixSpec
from ps2.ops.blocks import columns_add, columns_add_some, columns_pull, columns_push, fold, unfold
from ps2.ops.prefetch import AHEAD
from ps2.server.memory import MemoryAccount
from tests.fakes import FleetInProcess, installed, session_over

DIM, K = 50, 3
KINDS = ("dense", "sparse")
COLUMNS = [49, 0, 7, 49, 12, 0, 0, 31]


@pytest.fixture(params=[1, 3])
def servers(request):
    return request.param


@pytest.fixture
def fleet(servers):
    return FleetInProcess(servers)


@pytest.fixture(params=KINDS)
def world(request, fleet):
    """A matrix as a target, what runs plans, and a NumPy model of shape (DIM, K)."""
    with installed(session_over(fleet)) as over:
        yield make(over, kind=request.param)


def make(over, kind="dense", dtype="float64", **fields):
    info = over.new_matrix(MatrixSpec(DIM, K, dtype=dtype, kind=kind, layout="column", **fields))
    over.take_rows(info.id, K - 1)
    target = plans.Target(info.id, info.spec, info.route, (1,))
    model = np.zeros((DIM, K), dtype)

    def run(plan):
        return over.dispatch.run([plan])[0]

    return target, run, model


def given(count, seed=0):
    return np.random.default_rng(seed).integers(-99, 99, (count, K)).astype(np.float64)


def filled(target, run, model, columns=range(0, DIM, 3)):
    model[columns] = given(len(columns))
    run(blocks.push(target, columns, model[columns]))


def check(target, run, model):
    assert np.array_equal(run(blocks.pull(target, range(DIM))), model)


# -- blocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 31, 32, 33, 128, 1000])
@pytest.mark.parametrize("count", [0, 1, AHEAD, AHEAD + 1, 3000])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_operations_when_blocks_vary_in_size_then_match_numpy(k, count, dtype):
    """Blocks are asked for some turns ahead: of some slots there is none so far ahead, and -1 is no block."""
    random = np.random.default_rng(k + count)
    slots = random.integers(-1, 40, count)
    values = random.integers(-99, 99, (count, k)).astype(dtype)
    m = random.integers(-99, 99, (40, k)).astype(dtype)
    there, model = slots >= 0, m.copy()
    columns_add(m, slots, values)
    np.add.at(model, slots[there], values[there])
    assert np.array_equal(m, model)
    columns_push(m, slots, values)
    for slot, block in zip(slots[there], values[there], strict=True):
        model[slot] = block
    assert np.array_equal(m, model)
    assert np.array_equal(columns_pull(m, slots), np.where(there[:, None], model[slots], 0))


def test_pull_when_columns_repeat_in_any_order_then_keeps_order(world):
    filled(*world)
    target, run, model = world
    assert np.array_equal(run(blocks.pull(target, COLUMNS)), model[COLUMNS])


def test_add_when_columns_repeat_then_accumulates(world):
    filled(*world)
    target, run, model = world
    run(blocks.add(target, COLUMNS, given(8, 1)))
    np.add.at(model, COLUMNS, given(8, 1))
    check(*world)


def test_push_when_columns_repeat_then_the_last_wins(world):
    filled(*world)
    target, run, model = world
    run(blocks.push(target, COLUMNS, given(8, 1)))
    for column, block in zip(COLUMNS, given(8, 1), strict=True):
        model[column] = block
    check(*world)


def test_blocks_when_cut_into_many_requests_then_the_same(world, monkeypatch):
    monkeypatch.setattr(keysets, "GROUP_BYTES", 2 * K * 8)
    filled(*world)
    target, run, model = world
    assert {len(operation.into) for operation in blocks.pull(target, COLUMNS).operations} <= {1, 2}
    run(blocks.add(target, COLUMNS, given(8, 1)))
    np.add.at(model, COLUMNS, given(8, 1))
    check(*world)


def test_pull_when_given_an_array_then_the_answer_is_in_it(world):
    filled(*world)
    target, run, model = world
    out = np.empty((8, K))
    assert run(blocks.pull(target, COLUMNS, out)) is out
    assert np.array_equal(out, model[COLUMNS])


def test_pull_when_no_columns_then_empty(world):
    target, run, _ = world
    assert run(blocks.pull(target, [])).shape == (0, K)


def test_pull_when_keys_are_absent_then_zeros_without_insert(fleet):
    target, run, _ = make(session_over(fleet), "sparse")
    run(blocks.add(target, [7], given(1)))
    assert not run(blocks.pull(target, [8, 9])).any()
    assert sum(run(plans.count_active(target))) == 1


def test_add_when_keys_are_new_then_each_is_one_index_entry(fleet):
    target, run, _ = make(session_over(fleet), "sparse")
    run(blocks.add(target, COLUMNS, given(8)))
    assert sum(run(plans.count_active(target))) == len(set(COLUMNS))


def test_pull_when_values_travel_as_float16_then_they_are_those(fleet):
    target, run, _ = make(session_over(fleet), dtype="float32", wire="float16")
    values = np.random.default_rng(0).random((4, K), np.float32)
    run(blocks.push(target, [3, 1, 40, 2], values))
    assert np.array_equal(run(blocks.pull(target, [3, 1, 40, 2])), values.astype(np.float16))


@pytest.mark.parametrize("rows", [None, [2, 0]])
def test_fill_when_rows_are_named_then_their_active_keys_change(world, rows):
    filled(*world)
    target, run, model = world
    run(blocks.fill(target, rows, 2))
    active = range(0, DIM, 3) if target.spec.kind == "sparse" else range(DIM)
    model[np.ix_(active, rows or [0, 1, 2])] = 2
    check(*world)


@pytest.mark.parametrize("order", [1, -1])
def test_blocks_when_keys_come_again_then_their_hash_travels(world, fleet, order, monkeypatch):
    monkeypatch.setattr(keysets, "MIN_DIGEST_KEYS", 4)
    monkeypatch.setattr(keysets, "MIN_DIGEST_BLOCK_BYTES", 0)
    monkeypatch.setattr(keysets, "MAX_INLINE_BYTES", 0)
    target, run, model = world
    filled(*world)
    columns = np.arange(DIM)[::order]
    for _ in range(2):
        run(blocks.pull(target, columns))
    before = len(fleet.sent)
    assert np.array_equal(run(blocks.pull(target, columns)), model[columns])
    run(blocks.add(target, columns, model[columns]))
    sent = [operation.keys for _, request in fleet.sent[before:] for operation in request.operations]
    assert sent
    assert [keys.columns for keys in sent if keys.digest] == [None] * len(sent)


def test_reply_when_blocks_are_asked_then_size_estimate_is_exact(fleet):
    target, _, _ = make(session_over(fleet))
    plan = blocks.pull(target, range(DIM))
    assert sum(operation.reply_bytes for operation in plan.operations) == DIM * K * 8


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda m: blocks.pull(m, [0, DIM]), OutOfRangeError, r"index 50 \(at position 1\) is outside \[0, 50\)"),
        (lambda m: blocks.pull(m, [0.5]), DTypeError, "indices: expected integers, got float64"),
        (lambda m: blocks.pull(m, [1], np.empty((1, 2))), ShapeError, r"out: expected shape \(1, 3\), got \(1, 2\)"),
        (lambda m: blocks.add(m, [1], np.ones(3)), ShapeError, r"values: expected shape \(1, 3\), got \(3,\)"),
        (lambda m: blocks.pull(m, None), UsageError, "expected rows or columns, got neither"),
    ],
)
def test_plan_when_arguments_are_wrong_then_error_says_how(fleet, call, error, said):
    target, _, _ = make(session_over(fleet))
    with pytest.raises(error, match=said):
        call(target)


def test_plan_when_layout_is_row_then_error_says_what_it_needs(fleet):
    info = session_over(fleet).new_matrix(MatrixSpec(DIM, K))
    with pytest.raises(UsageError, match="columns without rows: expected a matrix with layout='column'"):
        blocks.pull(plans.Target(info.id, info.spec, info.route), [1])


# -- rows of it ------------------------------------------------------------------------------------------------------


def test_row_when_written_and_read_then_is_a_column_of_the_model(world):
    filled(*world)
    target, run, model = world
    run(plans.push_columns(target, "scatter_add", [1.0, 2.0, 3.0], [0, 3, 3]))
    model[0, 1] += 1
    model[3, 1] += 5
    assert run(plans.pull_columns(target, COLUMNS)).tolist() == model[COLUMNS, 1].tolist()
    check(*world)


@pytest.mark.parametrize("name", ["axpy", "add", "copy"])
def test_rows_when_operation_writes_one_of_two_then_other_stays(world, name):
    filled(*world)
    target, run, model = world
    params = {"alpha": 2.0} if name == "axpy" else {}
    run(declared(plans.Target(target.matrix, target.spec, target.route, (2, 0)), name, params))
    model[:, 2] = {"axpy": model[:, 2] + 2 * model[:, 0], "add": model[:, 2] + model[:, 0], "copy": model[:, 0]}[name]
    check(*world)


def test_map_when_it_writes_then_the_rows_have_changed(world):
    filled(*world)
    target, run, model = world

    def double(u):
        u *= 2
        return float(u.sum())

    assert run(map_partitions(target, double, with_index=False)).sum() == 2 * model[:, 1].sum()
    model[:, 1] *= 2
    check(*world)


def test_rows_when_no_memory_for_copies_then_limit_error():
    fleet = FleetInProcess(1, memory_limit_bytes=DIM * K * 8 + 100)
    target, run, _ = make(session_over(fleet))
    with pytest.raises(LimitError, match="rows of a matrix with layout 'column' needs 400 bytes"):
        run(declared(target, "fill", {"value": 1.0}))
    assert not run(blocks.pull(target, [1])).any()


def test_whole_rows_when_layout_is_column_then_match_model(fleet):
    target, run, model = make(session_over(fleet))
    values = given(DIM).T
    run(plans.rows_push(target, "rows_push", [2, 0, 2], values))
    run(plans.rows_push(target, "rows_add", [1, 1, 0], values))
    model[:, [0, 1, 2]] = np.array([values[1] + values[2], values[0] + values[1], values[2]]).T
    check(target, run, model)
    assert np.array_equal(run(plans.rows_pull(target, [1, 0, 1], None)), model.T[[1, 0, 1]])


def test_row_operation_when_layout_is_column_then_says_why_not(fleet):
    target, run, _ = make(session_over(fleet))
    many = {"rows_a": np.array([0]), "rows_b": np.array([1])}
    with pytest.raises(
        UsageError, match=r"'rows_dot' works on whole rows, which are not contiguous with layout 'column'"
    ):
        run(declared(target, "rows_dot", many))


# -- as users see it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_vector", [DCV.dense, DCV.sparse])
def test_matrix_when_made_by_columns_then_moves_blocks(fleet, make_vector):
    with installed(session_over(fleet)):
        m = make_vector(DIM, K, "float64", layout="column").matrix()
        m.push(columns=[5, 1], values=given(2)).add(columns=[1, 1], values=given(2, 1))
        expected = np.array([given(2)[1] + given(2, 1).sum(axis=0), given(2)[0]])
        assert np.array_equal(m.pull(columns=[1, 5]), expected)


@pytest.mark.parametrize("layout", ["row", "column"])
def test_pull_when_nothing_is_named_then_reads_all_rows(fleet, layout):
    with installed(session_over(fleet)):
        m, expected, out = DCV.dense(DIM, K, "float64", layout=layout).matrix(), given(DIM).T, np.empty((K, DIM))
        m.push(range(K), expected)
        assert m.pull(out=out) is out
        assert np.array_equal(m.pull(), expected)
        assert np.array_equal(out, expected)


@pytest.mark.parametrize("layout", ["row", "column"])
def test_pull_when_keys_are_hashed_then_names_columns_as_needed(fleet, layout):
    with installed(session_over(fleet)):
        m = DCV.sparse(2**40, K, layout=layout).matrix()
        with pytest.raises(UsageError, match=r"pull of whole rows needs a dense matrix.*name the columns"):
            m.pull()


def test_derive_when_all_rows_are_in_use_then_says_cannot_grow(fleet):
    with installed(session_over(fleet)):
        vector = DCV.dense(DIM, 2, layout="column")
        second = vector.derive()
        with pytest.raises(UsageError, match="cannot grow beyond its 2 rows, of which 2 are in use"):
            second.derive()


def test_spec_when_block_exceeds_request_then_names_maximum(fleet):
    with installed(session_over(fleet)), pytest.raises(UsageError, match="at most 4,194,304 bytes, got 1,048,577 rows"):
        DCV.dense(10, (1 << 20) + 1, layout="column")


def test_memory_when_keys_are_added_then_counts_shard_usage(fleet):
    target, run, _ = make(session_over(fleet), "sparse")
    run(blocks.add(target, range(DIM), given(DIM)))
    for engine in fleet.engines.values():
        memory: MemoryAccount = engine.memory
        shards = engine.shards().values()
        lasting = sum(shard.array.nbytes + shard.index.nbytes for shard in shards)
        assert memory.used_bytes - engine.keys.nbytes == lasting


# -- some values of blocks ---------------------------------------------------------------------------------------------

COUNTED, LONG = 12, 300


@pytest.fixture
def counts():
    return np.random.default_rng(0).integers(0, 2000, (COUNTED, LONG)).astype(np.int32)


def unfolded(folded):
    out = np.empty(len(folded), np.int32)
    unfold(folded.astype(np.uint32).view(np.int32), out)
    return out.tolist()


@pytest.mark.parametrize(
    ("numbers", "dtype"), [([0, -1, 127, -128], "uint8"), ([128, 3], "uint16"), ([2**31 - 1, -(2**31)], "uint32")]
)
def test_fold_when_undone_then_numbers_are_as_they_were(numbers, dtype):
    folded = fold(np.array(numbers, np.int32))
    assert folded.dtype == dtype
    assert unfolded(folded) == numbers


def test_add_some_when_changes_are_sparse_then_no_others_change(counts):
    expected = counts.copy()
    slots, sizes = np.array([3, 9]), np.array([2, 1], np.uint8)
    positions, changes = np.array([299, 0, 17], np.uint16), np.array([5, -1, 300], np.int32)
    expected[[3, 3, 9], positions] += changes
    columns_add_some(counts, slots, sizes, positions, fold(changes))
    np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize(
    ("slots", "places", "error"),
    [
        ([COUNTED], [0], OutOfRangeError),
        ([0], [LONG], OutOfRangeError),
        ([0], [1, 2], ShapeError),
    ],
)
def test_add_some_when_it_cannot_be_then_nothing_changes(counts, slots, places, error):
    before = counts.copy()
    with pytest.raises(error):
        columns_add_some(
            counts, np.array(slots), np.ones(1, np.uint8), np.array(places, np.uint16), np.ones(1, np.uint8)
        )
    np.testing.assert_array_equal(counts, before)
