"""``with ps.batch():`` one request a server, in order; nothing is sent if the block fails."""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import threading

import numpy as np
import pytest

from ps2 import DCV, batch
from ps2.errors import NotFoundError, UsageError
from ps2.interrupts import SHIELD

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")


def test_batch_when_many_matrices_then_one_request_per_server(ps, requests_by):
    u, w, s = DCV.dense(100), DCV.dense(50, dtype="int64"), DCV.sparse(2**63)
    v = u.derive()

    def run():
        with ps.batch():
            for _ in range(20):
                u.add(1).axpy(v, 2).add(np.ones(100))
                w.push([1, 2], [0, 49])
                s.add([1.5], [7])
                u.dot(v), w.sum(), s.pull([7]), v.pull()

    assert requests_by(run) == [1] * len(ps.servers)
    assert (u.sum(), w.sum(), s.sum()) == (4000, 3, 30)


def test_batch_when_calls_depend_on_each_other_then_run_in_order(ps):
    u = DCV.dense(10).fill(1)
    with ps.batch():
        first = u.sum()
        u.mul(2)
        second = u.pull([3, 3])
        u.add(u.derive()).add(1)
        third = u.max()
        u.zero()
        fourth = u.nnz()
    assert (first.result(), second.result().tolist(), third.result(), fourth.result()) == (10, [2, 2], 3, 0)


def test_deferred_when_batch_is_open_then_usage_error(ps):
    u = DCV.dense(10)
    with ps.batch():
        total = u.sum()
        assert repr(total) == "Deferred(pending)"
        with pytest.raises(UsageError, match="once its `with batch"):
            total.result()
    assert (total.result(), repr(total)) == (0, "Deferred(0.0)")


def test_batch_when_block_raises_then_nothing_is_sent(ps, requests_by):
    u = DCV.dense(10)
    left = []

    def run():
        with ps.batch():
            u.add(1)
            left.append(u.sum())
            raise KeyError("mine")

    def call():
        with pytest.raises(KeyError, match="mine"):
            run()

    assert requests_by(call) == [0] * len(ps.servers)
    assert u.sum() == 0
    with pytest.raises(UsageError, match="ended without an error"):
        left[0].result()


def test_batch_when_one_failed_then_the_next_starts_afresh(ps):
    u = DCV.dense(10)
    with pytest.raises(ZeroDivisionError), ps.batch():
        u.add(1 // 0)
    with ps.batch():
        u.add(2)
    assert u.sum() == 20


def test_batch_when_empty_then_nothing_is_sent(ps, requests_by):
    def run():
        with ps.batch():
            pass

    assert requests_by(run) == [0] * len(ps.servers)


@pytest.mark.parametrize(
    ("prepare", "write", "read", "expected"),
    [
        (lambda: np.ones(4), lambda u, x: u.push(x), None, [1, 1, 1, 1]),
        (lambda: np.ones(4, np.float32), lambda u, x: u.add(x), None, [1, 1, 1, 1]),
        (lambda: np.array([0, 1]), lambda u, x: u.push([5, 6], x), None, [5, 6, 0, 0]),
        (lambda: np.array([0, 1]), lambda u, x: u.matrix().add([0], [[5, 6]], x), None, [5, 6, 0, 0]),
        (lambda: np.array([0]), lambda u, x: u.matrix().push(x, np.ones((1, 4))), None, [1, 1, 1, 1]),
        (lambda: np.ones((1, 4), np.float32), lambda u, x: u.matrix().push([0], x), None, [1, 1, 1, 1]),
        (lambda: np.array([2.0]), lambda u, x: u.push([1, 2, 3, 4]).matrix().axpy([0], [0], x), None, [3, 6, 9, 12]),
        (lambda: np.array([0, 1]), None, lambda u, x: u.push([1, 2, 3, 4]).pull(x), [1, 2]),
        (lambda: np.array([0, 1]), None, lambda u, x: u.push([1, 2, 3, 4]).matrix().pull([0], x), [[1, 2]]),
        (lambda: np.array([0]), None, lambda u, x: u.push([1, 2, 3, 4]).matrix().pull(x, [2]), [[3]]),
        (lambda: np.array([0]), None, lambda u, x: u.push([1, 2, 3, 4]).matrix().dot(x, [0]), [30]),
    ],
    ids=["push", "add", "push_at", "matrix_add_at", "matrix_rows", "matrix_push", "axpy_alphas",
         "pull_at", "matrix_pull_at", "matrix_pull_rows", "matrix_dot"],
)  # fmt: skip
def test_batch_when_array_changes_later_then_old_values_count(ps, prepare, write, read, expected):
    u = DCV.dense(4)
    array, kept = prepare(), u.matrix()
    with ps.batch():
        answer = (write or read)(u, array)
        array[:] = 3
    result = u.pull() if read is None else answer.result()
    assert result.tolist() == expected
    assert kept.rows == 4


def test_batch_when_temporaries_are_dropped_then_rows_are_kept(ps):
    u, other = DCV.dense(10, 2).fill(2), DCV.dense(10, 2)
    with ps.batch():
        other.axpy(other.derive().add(3), 1)
        u.add(u * 2 + 1)
        gc.collect()
        zeros, fresh = u.derive(), other.derive()
    assert (u.sum(), other.sum(), zeros.nnz(), fresh.nnz()) == (70, 30, 0, 0)


def test_batch_when_nested_then_usage_error(ps):
    with ps.batch(), pytest.raises(UsageError, match="do not nest"), ps.batch():
        pass


def test_batch_when_another_thread_calls_then_it_is_not_batched(ps):
    u = DCV.dense(10)
    seen = []
    with ps.batch():
        u.add(5)
        thread = threading.Thread(target=lambda: seen.append(u.sum()))
        thread.start()
        thread.join()
    assert (seen, u.sum()) == ([0], 50)


def test_batch_when_a_row_was_freed_inside_then_not_found(ps):
    u = DCV.dense(10)
    v = u.derive()
    with pytest.raises(NotFoundError, match="was freed"), ps.batch():
        v.add(1).free()
    assert u.sum() == 0


def test_batch_when_save_is_called_inside_then_usage_error(ps, tmp_path):
    u, s = DCV.dense(3), DCV.sparse(3)
    for vector in (u, s):
        with pytest.raises(UsageError, match="save cannot be part of a batch"), ps.batch():
            vector.save(str(tmp_path / "v"))
    u.save(str(tmp_path / "v"))
    with pytest.raises(UsageError, match="load cannot be part of a batch"), ps.batch():
        DCV.load(str(tmp_path / "v"))


def test_batch_when_called_from_the_package_then_the_same(ps, requests_by):
    u = DCV.dense(10)

    def run():
        with batch():
            u.add(1).add(1)

    assert requests_by(run) == [1] * len(ps.servers)


class Interrupted(BaseException):
    """What a signal's handler raises."""


def interrupted_at(step, work):
    """Run ``work``, and raise where a signal's handler would, at the given step; return what came out, or None."""
    left = itertools.count()
    files = {batch.__code__.co_filename, work.__code__.co_filename}

    def trace(frame, event, _):
        inside = frame.f_code.co_filename in files
        if inside and event in ("call", "line") and not SHIELD._depth and next(left) == step:
            sys.settrace(None)
            raise Interrupted
        return trace if inside else None

    sys.settrace(trace)
    try:
        work()
    except Interrupted as error:
        return error
    finally:
        sys.settrace(None)
    return None


def test_batch_when_interrupted_anywhere_then_it_is_closed(ps):
    u = DCV.dense(10)

    def work():
        with ps.batch():
            u.add(1)
            u.add(1)

    whole = 0
    for step in itertools.count():
        error = interrupted_at(step, work)  # kept, with its traceback, as a notebook does
        total = u.sum()
        assert total in (20 * whole, 20 * (whole + 1)), f"step {step}: {total!r}"
        whole = round(total / 20)
        if error is None:
            break
    assert step > 10


def test_batch_when_an_exit_stack_holds_it_then_it_is_sent(ps, requests_by):
    u = DCV.dense(10)

    @ps.batch()
    def decorated():
        u.add(1).add(1)

    def stacked():
        with contextlib.ExitStack() as stack:
            stack.enter_context(ps.batch())
            u.add(1).add(1)

    for run in (decorated, decorated, stacked):
        assert requests_by(run) == [1] * len(ps.servers)
    assert u.sum() == 60
