"""Long rows are worked on in blocks, by several threads, with the results of one."""

from __future__ import annotations

import copy
import os
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ps2.ops import parallel
from ps2.ops.all import TABLE
from ps2.ops.guards import check_targets
from tests.unit.test_ops import operands, scalars

WIDTH = 1000
# Those of families take arrays that fit together.
OPS = [op for op in TABLE.values() if op.module.startswith("ps2.ops.")]


@pytest.fixture(autouse=True)
def _short_rows_in_blocks(monkeypatch):
    """Cut rows of a few elements already, for three cores, whatever this machine has."""
    monkeypatch.setattr(parallel, "MIN_BLOCK", 4)
    monkeypatch.setattr(parallel, "MIN_BLOCKS", 2)
    monkeypatch.setattr(parallel, "_cores", 3)


def on_cores(count, call):
    parallel.set_cores(count)
    return call()


def run(cores, op, arrays, dtype):
    """Return what the operation returns and leaves in copies of the arrays."""
    given = [copy.copy(array) for array in arrays]
    result = on_cores(cores, lambda: op.fn(*given, **scalars(op, dtype)))
    return result, given


def assert_same_in_blocks(op, arrays, dtype):
    (one, whole), (three, blocks) = run(1, op, arrays, dtype), run(3, op, arrays, dtype)
    for ours, theirs in zip(blocks, whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    if isinstance(one, float):
        np.testing.assert_allclose(three, one, rtol=1e-12)
    else:
        np.testing.assert_array_equal(three, one)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [pytest.param(op, dtype, id=f"{op.name}-{dtype}") for op in OPS for dtype in op.dtypes],
)
def test_op_when_run_in_blocks_then_agrees_with_one_block(op, dtype):
    assert_same_in_blocks(op, operands(op, dtype, WIDTH), dtype)


@pytest.mark.parametrize(
    "op", [op for op in OPS if op.rows and "slots" in op.operands and not op.span], ids=lambda op: op.name
)
def test_op_at_ascending_slots_when_in_blocks_then_matches_one(op):
    slots = np.arange(-1, WIDTH, 3)
    given = zip(op.operands, operands(op, "float32", WIDTH), strict=True)
    arrays = [{"slots": slots, "values": array[: slots.size]}.get(kind, array) for kind, array in given]
    assert_same_in_blocks(op, arrays, "float32")


# The fixture only makes blocks short, for all examples alike.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(-1, 30), max_size=20))
def test_targets_when_checked_in_blocks_then_result_is_the_same(slots):
    for tried in (slots, sorted(set(slots)), sorted(slots)):
        checked, ascending = check_targets(np.array(tried, dtype=np.int64), 31)
        assert checked.tolist() == tried
        assert ascending == (tried == sorted(set(tried)))


def test_blocks_when_called_then_cover_the_rows_in_order():
    rows = np.arange(10), np.arange(10) * 2
    blocks = parallel.over_blocks(lambda a, b, offset: (a + offset, b), rows, 5)
    assert [len(a) for a, _ in blocks] == [5, 5]
    np.testing.assert_array_equal(np.concatenate([a for a, _ in blocks]), rows[0] + 5)
    np.testing.assert_array_equal(np.concatenate([b for _, b in blocks]), rows[1])


def test_blocks_when_a_row_is_short_then_are_one_in_this_thread():
    here = threading.get_ident()
    assert parallel.over_blocks(lambda u: threading.get_ident(), [np.ones(7)]) == [here]


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_blocks_when_row_is_long_then_do_not_depend_on_cores(cores):
    assert on_cores(cores, lambda: parallel.over_blocks(len, [np.ones(18)])) == [4, 5, 4, 5]


def test_blocks_when_row_is_very_long_then_number_is_bounded():
    assert len(parallel.over_blocks(len, [np.ones(10_000)])) == parallel.MAX_BLOCKS


def test_sum_of_blocks_when_cores_differ_then_bits_are_equal():
    u = np.random.default_rng(0).normal(size=10_000)
    sums = {on_cores(cores, lambda: parallel.sum_blocks(np.sum, [u])) for cores in (1, 2, 3)}
    assert len(sums) == 1


def test_blocks_when_cores_are_free_then_run_in_several_threads():
    both = threading.Barrier(2, timeout=10)
    parallel.over_blocks(lambda block: both.wait(), [np.ones(8)])


def test_blocks_when_elements_are_costly_then_are_more():
    assert parallel.over_blocks(len, [np.ones(6)], cost=2) == [2, 2, 2]


@pytest.mark.parametrize("failing", [0, 5, 11])
def test_blocks_when_one_fails_then_raise_after_all_have_ended(failing):
    ended = []

    def call(block):
        if failing in block:
            raise ZeroDivisionError(f"at {failing}")
        threading.Event().wait(0.02)
        ended.append(block[0])

    with pytest.raises(ZeroDivisionError, match=f"at {failing}"):
        parallel.over_blocks(call, [np.arange(12)])
    now = list(ended)
    threading.Event().wait(0.1)
    assert ended == now


def test_blocks_when_all_threads_are_busy_then_caller_runs_them():
    """Blocks of blocks ask for more threads than there are, and end all the same."""

    def inner(block):
        return sum(parallel.over_blocks(len, [np.ones(100)]))

    assert parallel.over_blocks(inner, [np.arange(12)]) == [100, 100, 100]


def test_blocks_when_process_was_forked_then_run_in_child():
    assert parallel.over_blocks(len, [np.ones(12)]) == [4, 4, 4]
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if parallel.over_blocks(len, [np.ones(12)]) == [4, 4, 4] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_update_when_block_divides_by_zero_then_no_thread_warns():
    u = np.ones(100)
    parallel.update(np.divide, u, np.zeros(100))
    assert np.isinf(u).all()
    parallel.update(np.divide, u, 0.0)
    assert np.isinf(u).all()


def test_cores_when_not_set_then_are_those_of_the_process(monkeypatch):
    monkeypatch.setattr(parallel, "_cores", None)
    threads = set()
    parallel.over_blocks(lambda block: threads.add(threading.get_ident()), [np.ones(10_000)])
    assert 1 <= len(threads) <= len(os.sched_getaffinity(0))
