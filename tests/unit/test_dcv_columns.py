"""Column access (paper, Table 1) agrees with NumPy, whatever the dtype, the length and the number of servers."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV
from ps2.errors import DTypeError, OutOfRangeError, PrecisionWarning, UsageError

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")

DTYPES = ("float32", "float64", "int64")
DIMS = (1, 3, 101)
RTOL = {"float32": 1e-6, "float64": 1e-12, "int64": 0}
UFUNCS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}

each_dtype = pytest.mark.parametrize("dtype", DTYPES)
# Lengths and dtypes have nothing to do with each other: each of them once.
each_kind = pytest.mark.parametrize(("dim", "dtype"), [*zip(DIMS, DTYPES, strict=True)])
# int64 holds no fractions. Verbs and dtypes have either length by turns.
each_verb = pytest.mark.parametrize(
    ("verb", "dtype", "dim"),
    [
        (verb, dtype, (1, 101)[(i + j) % 2])
        for i, verb in enumerate(UFUNCS)
        for j, dtype in enumerate(DTYPES)
        if (verb, dtype) != ("div", "int64")
    ],
)


@pytest.fixture
def pair(ps, dim, dtype):
    """Two co-located vectors and their values."""
    rng = np.random.default_rng(dim)
    a, b = (rng.integers(1, 50, (2, dim)) * rng.choice([-1, 1], (2, dim))).astype(dtype)
    u = DCV.dense(dim, dtype=dtype).push(a)
    return u, u.derive().push(b), a, b


@each_verb
def test_arithmetic_in_place_when_given_a_vector_then_numpy(pair, verb, dim, dtype):
    u, v, a, b = pair
    assert getattr(u, verb)(v) is u
    np.testing.assert_allclose(u.pull(), UFUNCS[verb](a, b), RTOL[dtype])
    assert np.array_equal(v.pull(), b)


@each_verb
def test_operator_when_two_vectors_then_new_vector(pair, verb, dim, dtype):
    u, v, a, b = pair
    result = {"add": lambda: u + v, "sub": lambda: u - v, "mul": lambda: u * v, "div": lambda: u / v}[verb]()
    assert result.isColocated(u)
    np.testing.assert_allclose(result.pull(), UFUNCS[verb](a, b), RTOL[dtype])
    assert np.array_equal(u.pull(), a)
    assert np.array_equal(v.pull(), b)


@pytest.mark.parametrize("dim", [7])
@pytest.mark.parametrize(
    ("number", "dtype"), [(3, "float32"), (-2, "int64"), (np.float32(2), "float64"), (np.int64(5), "float32")], ids=repr
)
def test_operator_when_number_on_either_side_then_numpy(pair, number, dim, dtype):
    u, _, a, _ = pair
    x = a.dtype.type(number)
    cases = [(u + number, a + x), (number + u, x + a), (u - number, a - x), (number - u, x - a),
             (u * number, a * x), (number * u, x * a), (-u, -a)]  # fmt: skip
    if dtype != "int64":
        cases += [(u / number, a / x), (number / u, x / a)]
    for result, expected in cases:
        np.testing.assert_allclose(result.pull(), expected, RTOL[dtype])
    assert np.array_equal(u.pull(), a)


@pytest.mark.parametrize(
    ("other", "operator"), [(np.ones(3), "+"), ([1, 2, 3], "-"), ("x", "*"), (None, "/"), (1j, "+")], ids=repr
)
def test_operator_when_neither_vector_nor_number_then_type_error(ps, operator, other):
    u = DCV.dense(3)  # noqa: F841 - used in eval
    for expression in (f"u {operator} other", f"other {operator} u"):
        with pytest.raises(TypeError):
            eval(expression)


@each_kind
def test_dot_when_colocated_then_numpy(pair, dim, dtype):
    u, v, a, b = pair
    assert u.dot(v) == pytest.approx(a.astype(np.float64) @ b.astype(np.float64), rel=1e-12)
    assert u.dot(u) == pytest.approx(a.astype(np.float64) @ a.astype(np.float64), rel=1e-12)


@each_kind
@pytest.mark.parametrize("verb", ["axpy", "iaxpy"])
def test_axpy_when_colocated_then_numpy(pair, verb, dim, dtype):
    u, v, a, b = pair
    assert getattr(u, verb)(v, -2) is u
    np.testing.assert_allclose(u.pull(), a - 2 * b, RTOL[dtype])
    assert np.array_equal(v.pull(), b)


@each_dtype
def test_axpy_when_alpha_is_fractional_then_int64_is_refused(ps, dtype):
    u = DCV.dense(5, dtype=dtype).fill(1)
    v = u.derive().fill(2)
    if dtype == "int64":
        with pytest.raises(DTypeError, match=r"alpha.*whole number, got 0\.5"):
            u.axpy(v, 0.5)
    else:
        assert np.array_equal(u.axpy(v, 0.5).pull(), np.full(5, 2))


@each_kind
def test_copy_when_colocated_then_equal_and_apart(pair, dim, dtype):
    u, v, _, b = pair
    assert u.copy(v) is u
    v.zero()
    assert np.array_equal(u.pull(), b)


@each_kind
def test_fill_and_zero_when_called_then_every_element(pair, dim, dtype):
    u, v, _, b = pair
    assert np.array_equal(u.fill(-7).pull(), np.full(dim, -7))
    assert np.array_equal(u.zero().pull(), np.zeros(dim))
    assert np.array_equal(v.pull(), b)


@each_dtype
def test_operation_when_with_itself_then_numpy(ps, dtype):
    def fresh():
        return DCV.dense(5, dtype=dtype).push([1, 2, 3, 4, 5])

    a = np.arange(1, 6)
    changes = [
        (lambda u: u.add(u), 2 * a),
        (lambda u: u.sub(u), 0 * a),
        (lambda u: u.mul(u), a * a),
        (lambda u: u.copy(u), a),
        (lambda u: u.axpy(u, 3), 4 * a),
        (lambda u: u + u, 2 * a),
    ]
    for change, expected in changes:
        assert np.array_equal(change(fresh()).pull(), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_div_when_by_zero_then_ieee(ps, dtype):
    u = DCV.dense(4, dtype=dtype).push([1, -1, 0, np.nan])
    assert np.array_equal((u / 0).pull(), [np.inf, -np.inf, np.nan, np.nan], equal_nan=True)
    assert np.array_equal((u / u.derive()).pull(), [np.inf, -np.inf, np.nan, np.nan], equal_nan=True)
    assert np.array_equal(u.div([0, 0], [0, 1]).pull([0, 1]), [np.inf, -np.inf])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arithmetic_when_nan_and_infinities_then_ieee(ps, dtype):
    a = np.array([np.nan, np.inf, -np.inf, 0, 1], dtype)
    u = DCV.dense(5, dtype=dtype).push(a)
    with np.errstate(all="ignore"):
        for result, expected in [(u - u, a - a), (u * 0, a * 0), (u * -1, -a), (u + np.inf, a + np.inf)]:
            assert np.array_equal(result.pull(), expected, equal_nan=True)


def test_fill_when_nan_then_nan_everywhere(ps):
    assert np.isnan(DCV.dense(5).fill(float("nan")).pull()).all()


def test_arithmetic_when_float32_overflows_then_infinite(ps):
    u = DCV.dense(3).fill(3e38)
    assert np.isinf(u.add(u).pull()).all()


def test_rows_axpy_when_a_scale_exceeds_float32_then_named(ps):
    u = DCV.dense(3, 2)
    with pytest.raises(OutOfRangeError, match=r"alphas: 1e\+39 \(at position 1\) does not fit float32"):
        u.matrix().axpy([0, 1], [1, 0], [np.inf, 1e39])


def test_div_when_the_number_is_zero_in_float32_then_refused(ps):
    u = DCV.dense(3).fill(1.0)
    with pytest.raises(OutOfRangeError, match="1e-50 is 0 in float32"):
        u.div(1e-50)
    assert u.sum() == 3


@pytest.mark.parametrize("verb", ["sum", "max", "dot"])
def test_scalar_when_float64_rounds_integers_then_it_warns(ps, verb):
    u = DCV.dense(2, dtype="int64").fill(2**53 + 1)
    with pytest.warns(PrecisionWarning, match=f"{verb} of a vector of int64") as messages:
        u.dot(u) if verb == "dot" else getattr(u, verb)()
    assert messages[0].filename == __file__
    assert u.fill(-5).sum() == -10  # exact: no warning, which would be an error here


def test_asarray_when_dense_then_pulls_when_sparse_then_error(ps):
    assert np.array_equal(np.asarray(DCV.dense(3, dtype="int64").fill(2), np.float64), [2.0, 2.0, 2.0])
    with pytest.raises(UsageError, match="numpy cannot make an array of a sparse vector"):
        np.asarray(DCV.sparse(3))


@pytest.mark.parametrize(("dtype", "bits"), [("int32", 31), ("int64", 63)])
def test_add_when_integers_overflow_then_wraps_as_numpy(ps, dtype, bits):
    u = DCV.dense(3, dtype=dtype).fill(2**bits - 1)
    assert np.array_equal(u.add(1).pull(), np.full(3, -(2**bits)))
