"""A user's function that fails, however it fails, leaves the rows as they were and the server alive."""

from __future__ import annotations

import pickle
import sys

import cloudpickle
import numpy as np
import pytest

from ps2.errors import OpError
from ps2.server.memory import MemoryAccount
from ps2.server.request_runner import run_writing, unpickle_function


def code(thing):
    return np.frombuffer(cloudpickle.dumps(thing), np.uint8)


def rows():
    return [np.arange(3.0), np.arange(3.0) + 10]


def run(fn, given, limit=1 << 20):
    memory = MemoryAccount(limit)
    try:
        return pickle.loads(run_writing(fn, (), given, memory).tobytes())
    finally:
        assert memory.used_bytes == 0


def raises(w, v):
    w[:], v[1] = -1, -1
    raise ValueError("no luck")


def returns_what_cannot_be_pickled(w, v):
    w[:], v[1] = -1, -1
    return (x for x in w)


def exits(w, v):
    w[:], v[1] = -1, -1
    sys.exit(3)


def interrupts(w, v):
    w[:], v[1] = -1, -1
    raise KeyboardInterrupt


FAILURES = [raises, returns_what_cannot_be_pickled, exits, interrupts]


class RunsWhenLoaded:
    """Its pickle calls a function of the loading process."""

    def __init__(self, fn, *args):
        self.call = fn, args

    def __reduce__(self):
        return self.call


def test_function_when_it_succeeds_then_writes_and_result_stay():
    def fn(w, v):
        w += v
        return w.sum()

    inputs = rows()
    assert run(fn, inputs) == 36.0
    assert inputs[0].tolist() == [10, 12, 14]


@pytest.mark.parametrize("fn", FAILURES)
def test_function_when_it_fails_then_the_rows_are_as_before(fn):
    inputs = rows()
    with pytest.raises(OpError):
        run(fn, inputs)
    assert [row.tolist() for row in inputs] == [[0, 1, 2], [10, 11, 12]]


def test_function_when_it_raises_then_error_has_its_traceback():
    with pytest.raises(OpError, match=r"(?s)in raises\n.*ValueError: no luck$"):
        run(raises, rows())


@pytest.mark.parametrize("fn", FAILURES)
def test_function_when_it_raises_uncopied_then_says_not_undone(fn):
    inputs = rows()
    with pytest.raises(OpError, match="were NOT undone"):
        run(fn, inputs, limit=47)
    assert inputs[0].tolist() == [-1, -1, -1]


def test_function_when_it_succeeds_uncopied_then_says_nothing():
    assert run(lambda w, v: w.size, rows(), limit=0) == 3


def test_function_when_same_row_is_given_twice_then_is_restored():
    row = np.arange(3.0)
    with pytest.raises(OpError):
        run(raises, [row, row])
    assert row.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "content",
    [
        np.frombuffer(b"no pickle", np.uint8),
        np.empty(0, np.uint8),
        code(RunsWhenLoaded(int, "x")),
        code(RunsWhenLoaded(sys.exit, 1)),
    ],
)
def test_code_when_it_cannot_be_loaded_then_op_error_says_so(content):
    with pytest.raises(OpError, match="cannot be loaded on the server"):
        unpickle_function(content)


def test_code_when_it_is_no_function_then_op_error_says_type():
    with pytest.raises(OpError, match="expected a pickled function, got int"):
        unpickle_function(code(3))
