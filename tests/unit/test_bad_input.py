"""What cannot work is refused by an error of the right class: it names the thing, what was expected and what came."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from ps2 import DCV
from ps2.errors import (
    ConfigError,
    DTypeError,
    LimitError,
    NotFoundError,
    OpError,
    OutOfRangeError,
    ShapeError,
    UsageError,
)

VALUES = np.arange(1, 6)


@pytest.fixture
def u(ps):
    return DCV.dense(5, dtype="float32").push(VALUES)


@pytest.fixture
def i(ps):
    return DCV.dense(5, dtype="int64").push(VALUES)


WRONG_VALUES = [
    ([1, 2], ShapeError, r"values: expected shape \(5,\), got \(2,\)"),
    (np.ones((5, 1)), ShapeError, r"values: expected shape \(5,\), got \(5, 1\)"),
    ([[1], [1, 2]], ShapeError, r"values: expected an array, but numpy cannot convert"),
    ("abcde", DTypeError, r"values: expected numbers that fit float32, got <U5"),
    (list("abcde"), DTypeError, r"values: expected numbers that fit float32, got <U1"),
    ([1, 2, 3, 4, None], DTypeError, r"values: expected numbers that fit float32, got object"),
    (np.ones(5) * 1j, DTypeError, r"values: expected numbers that fit float32, got complex128"),
    (np.zeros(5, "M8[s]"), DTypeError, r"values: expected numbers that fit float32, got datetime64"),
]


@pytest.mark.parametrize(("values", "error", "text"), WRONG_VALUES)
@pytest.mark.parametrize("verb", ["push", "add", "sub", "mul", "div"])
def test_write_when_values_are_wrong_then_refused(u, verb, values, error, text):
    with pytest.raises(error, match=text):
        getattr(u, verb)(values)
    assert np.array_equal(u.pull(), VALUES)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.ones(5), "values: expected numbers that fit int64, got float64"),
        (np.full(5, 2**63, np.uint64), "values: expected numbers that fit int64, got 9223372036854775808"),
    ],
)
def test_write_when_values_do_not_fit_int64_then_dtype_error(i, values, text):
    with pytest.raises(DTypeError, match=text):
        i.push(values)
    assert np.array_equal(i.pull(), VALUES)


def test_write_when_more_values_than_indices_then_shape_error(u):
    with pytest.raises(ShapeError, match=r"values: expected shape \(2,\), got \(3,\)"):
        u.add([1, 2, 3], [0, 1])
    with pytest.raises(ShapeError, match=r"values: expected shape \(2,\), got \(\)"):
        u.add(1, [0, 1])


WRONG_INDICES = [
    ([0, 5], OutOfRangeError, r"index 5 \(at position 1\) is outside \[0, 5\)"),
    ([2, -1], OutOfRangeError, r"index -1 \(at position 1\) is outside \[0, 5\)"),
    (np.array([1, 2**63], np.uint64), OutOfRangeError, r"indices: expected integers below 2\*\*63, got 92233720"),
    ([0, 2**70], DTypeError, r"indices: expected integers, got object"),
    ([0, math.nan], DTypeError, r"indices: expected integers, got NaN \(at position 1\)"),
    ([0.0, 1.0], DTypeError, r"indices: expected integers, got float64"),
    ([True, False], DTypeError, r"indices: expected integers, got bool"),
    (["a", "b"], DTypeError, r"indices: expected integers, got <U1"),
    ([[0, 1]], ShapeError, r"indices: expected one dimension, got shape \(1, 2\)"),
    (3, ShapeError, r"indices: expected one dimension, got shape \(\)"),
    ([[0], [0, 1]], ShapeError, r"indices: expected an array"),
]


@pytest.mark.parametrize(("indices", "error", "text"), WRONG_INDICES)
@pytest.mark.parametrize("use", [lambda u, i: u.pull(i), lambda u, i: u.push([1, 2], i), lambda u, i: u.add([1, 2], i)],
                         ids=["pull", "push", "add"])  # fmt: skip
def test_access_when_indices_are_wrong_then_refused(u, use, indices, error, text):
    with pytest.raises(error, match=text):
        use(u, indices)
    assert np.array_equal(u.pull(), VALUES)


def test_access_when_too_many_keys_then_limit_error(u, monkeypatch):
    monkeypatch.setattr("ps2.client.arguments.MAX_KEYS", 3)
    with pytest.raises(LimitError, match="indices: at most 3 in one call, got 4"):
        u.pull([0, 1, 2, 3])
    assert u.pull([0, 1, 2]).size == 3


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda u: u.fill("x"), ConfigError, r"operation 'fill', parameter 'value': expected a number, got 'x'"),
        (lambda u: u.fill(None), ConfigError, r"parameter 'value': expected a number, got None"),
        (lambda u: u.add(True), ConfigError, r"operation 'add_scalar', parameter 'value': expected a number, got True"),
        (lambda u: u.axpy(u, "x"), ConfigError, r"operation 'axpy', parameter 'alpha': expected a number, got 'x'"),
        (lambda u: u.axpy([1, 2], 1), DTypeError, r"expected a DCV, got list"),
        (lambda u: u.dot(3), DTypeError, r"expected a DCV, got int"),
        (lambda u: u.copy(VALUES), DTypeError, r"expected a DCV, got ndarray"),
        (lambda u: u.add(u, [1, 2]), UsageError, r"add: pass indices with an array of values, not with a DCV"),
        (lambda u: u.zip(u.derive(), 3), DTypeError, r"zip: expected DCVs, got int"),
        (lambda u: u.dot(DCV.dense(4)), ShapeError, r"the same dim, got DCV\(dense, dim=5.*DCV\(dense, dim=4"),
        (lambda u: u.push(u), DTypeError, r"values: expected numbers that fit float32, got a DCV: use copy"),
    ],
)
def test_call_when_argument_is_of_the_wrong_kind_then_refused(u, call, error, text):
    with pytest.raises(error, match=text):
        call(u)
    assert np.array_equal(u.pull(), VALUES)


@pytest.mark.parametrize("number", [0.5, math.nan, math.inf, 2**63, -(2**63) - 1], ids=repr)
def test_number_when_it_does_not_fit_int64_then_dtype_error(i, number):
    for use in (i.fill, i.add, lambda x: i * x, lambda x: i.axpy(i, x)):
        with pytest.raises(DTypeError, match=r"expected (a whole number|an int64), got"):
            use(number)
    assert np.array_equal(i.pull(), VALUES)


def test_vectors_when_dtypes_do_not_fit_then_dtype_error(u, i):
    with pytest.raises(DTypeError, match=r"float32.* does not fit int64, .* DCV\(dense, dim=5, int64"):
        i.add(u)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda z: z.apply("adamm", lr=0.1), NotFoundError, r"no operation 'adamm'; the most similar names: adam, "),
        (lambda z: z.apply(3), NotFoundError, r"no operation 3; no name is similar; 'ps2 ops' lists all"),
        (lambda z: z.apply("gram"), ConfigError, r"'gram' works on all rows of a matrix: call it by"),
        (lambda z: z.apply("sum"), ShapeError, r"'sum' takes 1 vectors \(u\), got 2"),
        (lambda z: z.apply("sgd"), ConfigError, r"'sgd', parameter 'lr': required, but not given"),
        (lambda z: z.apply("sgd", lr=0.1, rate=2), ConfigError, r"'sgd' has no parameter 'rate'; it has: lr"),
        (lambda z: z.apply("sgd", lr=-1), ConfigError, r"parameter 'lr': expected a finite number > 0, got -1"),
        (lambda z: z.apply("sgd", lr=math.nan), ConfigError, r"parameter 'lr': expected a finite number.*got nan"),
        (lambda z: z.apply("sgd", lr="0.1"), ConfigError, r"parameter 'lr': expected a number, got '0.1'"),
        (lambda z: z.apply("adam", lr=0.1, step=1), ShapeError, r"'adam' takes 4 vectors \(weight, velocity, square, gradient\), got 2"),  # noqa: E501
    ],
)  # fmt: skip
def test_apply_when_kernel_or_parameters_are_wrong_then_refused(u, call, error, text):
    with pytest.raises(error, match=text):
        call(u.zip(u.derive()))
    assert np.array_equal(u.pull(), VALUES)


def test_apply_when_step_is_wrong_then_refused(u):
    four = u.zip(u.derive(), u.derive(), u.derive())
    with pytest.raises(ConfigError, match=r"parameter 'step': expected a finite number >= 1, got 0"):
        four.apply("adam", lr=0.1, step=0)
    with pytest.raises(DTypeError, match=r"parameter 'step': expected a whole number, got 1.5"):
        four.apply("adam", lr=0.1, step=1.5)


def test_apply_when_int64_then_dtype_error(i):
    with pytest.raises(DTypeError, match="operation 'sgd' works on float32 or float64, got int64"):
        i.zip(i.derive()).apply("sgd", lr=1)


def test_apply_when_a_vector_is_given_twice_then_config_error(u):
    with pytest.raises(ConfigError, match="'sgd': the same vector is given twice"):
        u.zip(u).apply("sgd", lr=1)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: DCV.dense(0), ConfigError, r"dim: expected a positive integer, got 0"),
        (lambda: DCV.dense(-3), ConfigError, r"dim: expected a positive integer, got -3"),
        (lambda: DCV.dense(2.0), ConfigError, r"dim: expected an integer, got 2.0"),
        (lambda: DCV.dense("7"), ConfigError, r"dim: expected an integer, got '7'"),
        (lambda: DCV.dense(True), ConfigError, r"dim: expected an integer, got True"),
        (lambda: DCV.dense(2**40 + 1), ConfigError, r"dim: a dense vector has at most 1099511627776 columns"),
        (lambda: DCV.sparse(2**63 + 1), ConfigError, r"dim: a sparse vector has at most 9223372036854775808 columns"),
        (lambda: DCV.dense(5, 0), ConfigError, r"rows: expected a positive integer, got 0"),
        (lambda: DCV.dense(5, 2**31), ConfigError, r"rows: a matrix has at most 2147483647 rows"),
        (lambda: DCV.dense(5, dtype="float16"), DTypeError, r"dtype: expected one of float32, float64, int32, int64"),
        (lambda: DCV.dense(5, dtype="nonsense"), DTypeError, r"dtype: expected .*got 'nonsense'"),
        (lambda: DCV.dense(5, dtype=None), DTypeError, r"dtype: expected .*got None"),
        (lambda: DCV.dense(5, align=0), ConfigError, r"align: expected a positive integer, got 0"),
        (
            lambda: DCV.dense(5, partitionsPerServer=-1),
            ConfigError,
            r"partitions_?[pP]er_?[sS]erver: expected a positive",
        ),
    ],
)
def test_creation_when_an_argument_is_wrong_then_refused(ps, make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize(
    "make",
    [lambda: DCV.dense(2**40), lambda: DCV.dense(2**20, 2**20), lambda: DCV.sparse(9, 2**30)],
    ids=["long", "many_rows", "sparse_rows"],
)
def test_create_when_larger_than_memory_then_limit_error_at_once(u, statuses, make):
    before, started_s = [status.memory_bytes for status in statuses()], time.monotonic()
    with pytest.raises(LimitError, match=r"needs [\d,]+ bytes, and [\d,]+ are left of the server's limit of [\d,]+"):
        make()
    assert time.monotonic() - started_s < 5
    # What was answered just before may have counted still.
    after = [status.memory_bytes for status in statuses()]
    assert all(now <= then for now, then in zip(after, before, strict=True))
    assert u.sum() == 15


def test_function_when_it_raises_then_partition_is_restored(u):
    def half_way(a):
        a[:] = 7
        raise ZeroDivisionError("mine")

    with pytest.raises(
        OpError, match=r"a function failed on the server:\n(.|\n)*in half_way\n(.|\n)*ZeroDivisionError: mine"
    ):
        u.zip(u.derive()).mapPartitions(lambda a, b: half_way(a))
    assert np.array_equal(u.pull(), VALUES)


def test_function_when_it_takes_other_arguments_then_op_error(u):
    with pytest.raises(OpError, match="takes 0 positional arguments but 1 was given"):
        u.zip().mapPartitions(lambda: 1)


@pytest.mark.parametrize("leave", [SystemExit, KeyboardInterrupt])
def test_function_when_it_wants_to_end_the_server_then_op_error(u, leave):
    def fn(a):
        raise leave

    with pytest.raises(OpError, match=leave.__name__):
        u.zip().mapPartitions(fn)
    assert u.sum() == 15


def test_function_when_result_is_not_picklable_then_undone(u):
    def fn(a):
        import threading

        a[:] = 7
        return threading.Lock()

    with pytest.raises(OpError, match=r"cannot pickle '_thread.lock' object"):
        u.zip().mapPartitions(fn)
    assert np.array_equal(u.pull(), VALUES)


def test_function_when_capture_is_not_picklable_then_usage_error(u):
    import threading

    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"mapPartitions: <function .*cannot be pickled: cannot pickle '_thread.lock'"):
        u.zip().mapPartitions(lambda a: lock)


def test_function_when_it_is_none_then_usage_error(u):
    with pytest.raises(UsageError, match="mapPartitions: expected a function, got 3"):
        u.zip().mapPartitions(3)


def test_function_when_server_cannot_load_it_then_op_error(u):
    with pytest.raises(OpError, match=r"the function cannot be loaded on the server:\n(.|\n)*OSError: not there"):
        u.zip().mapPartitions(LoadsNowhere())
    assert u.sum() == 15


def _fail():
    raise OSError("not there")


class LoadsNowhere:
    def __reduce__(self):
        return _fail, ()

    def __call__(self, a):
        """Never gets there."""
