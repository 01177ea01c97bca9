"""Row access (paper, Table 1) agrees with NumPy, whatever the dtype, the length and the number of servers."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV
from ps2.errors import DTypeError

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")

DTYPES = ("float32", "float64", "int32", "int64")
FLOATS = DTYPES[:2]
DIMS = (1, 3, 101)
RTOL = {"float32": 1e-6, "float64": 1e-12, "int32": 0, "int64": 0}
UFUNCS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}

each_dtype = pytest.mark.parametrize("dtype", DTYPES)
# Lengths and dtypes have nothing to do with each other: each of them once.
each_kind = pytest.mark.parametrize(("dim", "dtype"), [(DIMS[i % 3], dtype) for i, dtype in enumerate(DTYPES)])
# Integers hold no fractions. Verbs and dtypes have either length by turns.
each_verb = pytest.mark.parametrize(
    ("verb", "dtype", "dim"),
    [
        (verb, dtype, (1, 101)[(i + j) % 2])
        for i, verb in enumerate(UFUNCS)
        for j, dtype in enumerate(DTYPES)
        if verb != "div" or dtype in FLOATS
    ],
)


def numbers(dim, dtype, seed=0):
    """Values of both signs, none of them 0."""
    rng = np.random.default_rng(seed)
    return (rng.integers(1, 50, dim) * rng.choice([-1, 1], dim)).astype(dtype) / (8 if dtype in FLOATS else 1)


def vector(values):
    values = np.asarray(values)
    return DCV.dense(values.size, dtype=values.dtype.name).push(values)


def shuffled_with_duplicates(dim, seed=1):
    return np.random.default_rng(seed).integers(0, dim, 2 * dim + 3)


@each_kind
def test_dense_when_new_then_zeros(ps, dim, dtype):
    pulled = DCV.dense(dim, dtype=dtype).pull()
    assert pulled.dtype == dtype
    assert np.array_equal(pulled, np.zeros(dim))


@each_kind
def test_pull_when_pushed_then_same_values(ps, dim, dtype):
    values = numbers(dim, dtype).astype(dtype)
    assert np.array_equal(vector(values).pull(), values)


@each_kind
def test_pull_when_indices_are_unsorted_then_keeps_their_order(ps, dim, dtype):
    values, indices = numbers(dim, dtype).astype(dtype), shuffled_with_duplicates(dim)
    pulled = vector(values).pull(indices)
    assert pulled.dtype == dtype
    assert np.array_equal(pulled, values[indices])


@each_kind
def test_pull_when_indices_sorted_then_same_values(ps, dim, dtype):
    values, indices = numbers(dim, dtype).astype(dtype), np.sort(shuffled_with_duplicates(dim))
    assert np.array_equal(vector(values).pull(indices), values[indices])


@pytest.mark.parametrize("empty", [[], (), np.empty(0, np.int64), range(0)], ids=["list", "tuple", "array", "range"])
def test_pull_when_indices_empty_then_empty(ps, empty):
    pulled = DCV.dense(5, dtype="int64").pull(empty)
    assert (pulled.dtype, pulled.shape) == (np.int64, (0,))


@each_dtype
def test_push_when_empty_lists_then_nothing_changes(ps, dtype):
    u = vector(numbers(5, dtype).astype(dtype))
    before = u.pull()
    for verb in ("push", "add", "sub", "mul"):
        getattr(u, verb)([], [])
    assert np.array_equal(u.pull(), before)


@each_kind
def test_push_when_indices_repeat_then_last_wins(ps, dim, dtype):
    expected, indices = numbers(dim, dtype).astype(dtype), shuffled_with_duplicates(dim)
    values = numbers(indices.size, dtype, seed=2).astype(dtype)
    u = vector(expected).push(values, indices)
    for at, value in zip(indices, values, strict=True):
        expected[at] = value
    assert np.array_equal(u.pull(), expected)


@each_verb
def test_arithmetic_when_given_an_array_then_numpy(ps, verb, dim, dtype):
    a, b = numbers(dim, dtype).astype(dtype), numbers(dim, dtype, seed=3).astype(dtype)
    u = getattr(vector(a), verb)(b)
    np.testing.assert_allclose(u.pull(), UFUNCS[verb](a, b), RTOL[dtype])


@each_verb
def test_arithmetic_when_indices_repeat_then_accumulates(ps, verb, dim, dtype):
    expected, indices = numbers(dim, dtype).astype(dtype), shuffled_with_duplicates(dim)
    values = np.where(np.arange(indices.size) % 3, 1, 2).astype(dtype)
    u = getattr(vector(expected), verb)(values, indices)
    UFUNCS[verb].at(expected, indices, values)
    np.testing.assert_allclose(u.pull(), expected, RTOL[dtype])


@each_verb
def test_arithmetic_when_given_a_number_then_numpy(ps, verb, dim, dtype):
    a = numbers(dim, dtype).astype(dtype)
    u = getattr(vector(a), verb)(3)
    np.testing.assert_allclose(u.pull(), UFUNCS[verb](a, a.dtype.type(3)), RTOL[dtype])


@pytest.mark.parametrize("call", [lambda u: u.div(2), lambda u: u.div(u), lambda u: u.div([1] * 5),
                                  lambda u: u.div([1], [0]), lambda u: u / 2, lambda u: u / u])  # fmt: skip
def test_div_when_int64_then_dtype_error(ps, call):
    u = DCV.dense(5, dtype="int64").push(np.arange(5))
    with pytest.raises(DTypeError, match=r"float32 or float64, got int64"):
        call(u)
    assert np.array_equal(u.pull(), np.arange(5))


@each_kind
def test_reductions_when_values_mixed_then_numpy(ps, dim, dtype):
    a = numbers(dim, dtype).astype(dtype)
    a[::3] = 0
    u, wide = vector(a), a.astype(np.float64)
    expected = (wide.sum(), np.count_nonzero(a), np.linalg.norm(wide), wide.max(), wide.min())
    np.testing.assert_allclose((u.sum(), u.nnz(), u.norm2(), u.max(), u.min()), expected, 1e-12)


def test_reductions_when_called_then_plain_numbers(ps):
    u = DCV.dense(5)
    assert [type(x) for x in (u.sum(), u.nnz(), u.norm2(), u.max(), u.min())] == [float, int, float, float, float]


def test_sum_when_float32_then_accumulated_in_float64(ps):
    values = np.full(20_000, 0.1, np.float32)
    assert vector(values).sum() == pytest.approx(values.astype(np.float64).sum(), rel=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reductions_when_nan_then_nan(ps, dtype):
    u = vector(np.array([1, np.nan, -3, 0, np.inf], dtype))
    assert all(np.isnan(x) for x in (u.sum(), u.norm2(), u.max(), u.min()))
    assert u.nnz() == 4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reductions_when_infinite_then_infinite(ps, dtype):
    u = vector(np.array([1, np.inf, -3, 0], dtype))
    assert (u.sum(), u.norm2(), u.max(), u.min()) == (np.inf, np.inf, np.inf, -3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pull_when_nan_and_infinities_pushed_then_bit_for_bit(ps, dtype):
    values = np.array([np.nan, np.inf, -np.inf, -0.0, np.finfo(dtype).tiny], dtype)
    assert vector(values).pull().tobytes() == values.tobytes()


def test_pull_when_int64_at_its_ends_then_exact(ps):
    values = np.array([2**63 - 1, -(2**63), 2**53 + 1])
    assert np.array_equal(vector(values).pull(), values)


@pytest.mark.parametrize(
    ("dtype", "given"),
    [("float32", [1, 2, 3]), ("float32", np.arange(3.0)), ("float64", np.arange(3, dtype=np.float32)),
     ("int64", np.arange(3, dtype=np.int8)), ("int64", np.array([1, 2], np.uint64)), ("int64", [True, False])],
)  # fmt: skip
def test_push_when_type_fits_then_converted(ps, dtype, given):
    u = DCV.dense(len(given), dtype=dtype).push(given)
    assert np.array_equal(u.pull(), np.asarray(given).astype(dtype))


def test_push_when_array_not_contiguous_then_same_values(ps):
    values = np.arange(20, dtype=np.float32)[::-2]
    assert np.array_equal(DCV.dense(10).push(values).pull(), values)


def test_pull_when_answer_is_changed_then_vector_is_not(ps):
    u = DCV.dense(5).fill(1)
    u.pull()[:] = 7
    assert u.sum() == 5


def test_push_when_larger_than_a_frame_then_streamed_whole(ps):
    values = np.random.default_rng(5).standard_normal(700_001)
    u = vector(values)
    indices = np.random.default_rng(6).permutation(values.size)
    assert np.array_equal(u.pull(), values)
    assert np.array_equal(u.pull(indices), values[indices])


def test_writes_when_chained_then_each_returns_the_vector(ps):
    u = DCV.dense(3)
    assert u.push([1, 2, 3]).add(1).sub(1).mul(2).div(2).zero().fill(4) is u
    assert u.sum() == 12
