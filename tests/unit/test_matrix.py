"""``DCVMatrix``: many rows at once, one request a server, against NumPy."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest

from ps2 import DCV
from ps2.client.fleet import Loan, lending
from ps2.client.matrix import DCVMatrix, own, owning
from ps2.errors import DTypeError, LimitError, NotFoundError, OutOfRangeError, ShapeError, UsageError

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")

K, DIM = 5, 11
ROWS = [3, 0, 3, 4, 1, 3]
COLUMNS = [10, 0, 4, 4, 7, 0]
RTOL = {"float32": 1e-6, "float64": 1e-12, "int32": 0}
each_dtype = pytest.mark.parametrize("dtype", RTOL)


@pytest.fixture
def made(ps, dtype):
    """A matrix and its values."""
    values = np.random.default_rng(0).integers(-9, 9, (K, DIM)).astype(dtype)
    return DCV.dense(DIM, K, dtype).matrix().push(range(K), values), values


@each_dtype
def test_pull_when_whole_rows_in_any_order_then_numpy(made, dtype):
    m, values = made
    pulled = m.pull(ROWS)
    assert (pulled.dtype, pulled.shape) == (dtype, (6, DIM))
    assert np.array_equal(pulled, values[ROWS])


@each_dtype
def test_pull_when_columns_repeat_in_any_order_then_numpy(made, dtype):
    m, values = made
    assert np.array_equal(m.pull(ROWS, COLUMNS), values[np.ix_(ROWS, COLUMNS)])


def test_pull_when_nothing_is_asked_then_empty(ps):
    m = DCV.dense(DIM, K).matrix()
    assert [m.pull([]).shape, m.pull([1, 2], []).shape, m.pull([], [1]).shape] == [(0, DIM), (2, 0), (0, 1)]


@each_dtype
def test_push_when_rows_repeat_then_last_wins(made, dtype):
    m, values = made
    inputs = np.random.default_rng(1).integers(-9, 9, (6, DIM)).astype(dtype)
    assert m.push(ROWS, inputs) is m
    for row, new in zip(ROWS, inputs, strict=True):
        values[row] = new
    assert np.array_equal(m.pull(range(K)), values)


@each_dtype
def test_add_when_rows_repeat_then_accumulates(made, dtype):
    m, values = made
    inputs = np.random.default_rng(2).integers(-9, 9, (6, DIM)).astype(dtype)
    m.add(ROWS, inputs)
    np.add.at(values, ROWS, inputs)
    assert np.array_equal(m.pull(range(K)), values)


@each_dtype
def test_add_when_rows_and_columns_repeat_then_accumulates(made, dtype):
    m, values = made
    inputs = np.random.default_rng(3).integers(-9, 9, (6, 6)).astype(dtype)
    m.add(ROWS, inputs, COLUMNS)
    np.add.at(values, np.ix_(ROWS, COLUMNS), inputs)
    assert np.array_equal(m.pull(range(K)), values)


@each_dtype
def test_dot_when_pairs_repeat_then_numpy(made, dtype):
    m, values = made
    a, b = [0, 3, 3, 4], [0, 1, 1, 2]
    products = m.dot(a, b)
    assert products.dtype == np.float64
    np.testing.assert_allclose(products, (values[a] * values[b]).sum(axis=1), RTOL[dtype])
    assert m.dot([], []).shape == (0,)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("alphas", [0.5, [0.5, -1, 2, 0.25]], ids=["one", "each"])
def test_axpy_when_rows_depend_on_each_other_then_in_order(made, alphas, dtype):
    m, values = made
    y, x = [0, 1, 0, 2], [1, 0, 0, 1]
    assert m.axpy(y, x, alphas) is m
    for to, source, alpha in zip(y, x, np.broadcast_to(alphas, 4), strict=True):
        values[to] += values.dtype.type(alpha) * values[source]
    np.testing.assert_allclose(m.pull(range(K)), values, RTOL[dtype])


def test_axpy_when_int64_then_dtype_error(ps):
    with pytest.raises(DTypeError, match=r"rows_axpy.*got int64"):
        DCV.dense(DIM, K, "int64").matrix().axpy([0], [1], [2])


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.pull(range(K)),
        lambda m: m.pull(ROWS, range(DIM)),
        lambda m: m.push(range(K), np.ones((K, DIM))),
        lambda m: m.add(range(K), np.ones((K, DIM))),
        lambda m: m.add(ROWS, np.ones((6, DIM)), range(DIM)),
        lambda m: m.dot([0] * 100, [1] * 100),
        lambda m: m.axpy([0] * 100, [1] * 100, 0.1),
    ],
    ids=["pull", "pull_columns", "push", "add", "add_columns", "dot", "axpy"],
)
def test_call_when_many_rows_then_one_request_a_server(ps, requests_by, call):
    m = DCV.dense(DIM, K).matrix()
    assert requests_by(lambda: call(m)) == [1] * len(ps.servers)


def test_call_when_larger_than_a_frame_then_one_request_a_server(ps, requests_by):
    m = DCV.dense(100_003, 6).matrix()
    values = np.random.default_rng(0).standard_normal((6, 100_003)).astype(np.float32)
    assert requests_by(lambda: m.push(range(6), values)) == [1] * len(ps.servers)
    pulled = []
    assert requests_by(lambda: pulled.append(m.pull([5, 0, 5]))) == [1] * len(ps.servers)
    assert np.array_equal(pulled[0], values[[5, 0, 5]])


def test_matrix_when_made_then_says_its_shape(ps):
    m = DCV.dense(DIM, K, "int64").matrix()
    assert (m.rows, m.dim, m.shape) == (K, DIM, (K, DIM))
    assert repr(m).startswith(f"DCVMatrix(dense, rows={K}, dim={DIM}, int64, layout=")


def test_matrix_when_of_vector_in_use_then_row_0_is_that_vector(ps):
    u = DCV.dense(DIM, 3)
    v = u.derive().fill(2)
    m = u.push(np.arange(DIM)).matrix()
    assert np.array_equal(m.pull([0, 1, 2]), [np.arange(DIM), np.full(DIM, 2), np.zeros(DIM)])
    m.add([1], np.ones((1, DIM)))
    assert v.sum() == 3 * DIM


def test_matrix_when_its_rows_are_taken_then_derive_gets_new_one(ps):
    u = DCV.dense(DIM, 3)
    m = u.matrix()
    m.push([1, 2], np.ones((2, DIM)))
    v = u.derive().fill(7)
    assert v._row == 3
    assert m.pull([1, 2]).sum() == 2 * DIM


def test_matrix_when_dropped_then_its_rows_are_reused_as_zeros(ps):
    u = DCV.dense(DIM, 3)
    m = u.matrix()
    m.push([1, 2], np.ones((2, DIM)))
    del m
    gc.collect()
    assert [(v._row, v.nnz()) for v in (u.derive(), u.derive())] == [(1, 0), (2, 0)]


def test_matrix_when_pickled_then_works(ps):
    m = DCV.dense(DIM, 3).matrix()
    copy = pickle.loads(pickle.dumps(m))
    copy.add([2], np.ones((1, DIM)))
    assert m.pull([2]).sum() == DIM
    del copy
    gc.collect()
    assert pickle.loads(pickle.dumps(m)).pull([2]).sum() == DIM


def test_matrix_when_batched_then_one_request_deferred_answers(ps, requests_by):
    m = DCV.dense(DIM, K).matrix()
    answers = []

    def run():
        with ps.batch():
            m.push(range(K), np.ones((K, DIM)))
            answers.append(m.pull([4], [1]))
            m.axpy([4], [0], 2)
            answers.append(m.dot([4], [4]))

    assert requests_by(run) == [1] * len(ps.servers)
    assert [answer.result().tolist() for answer in answers] == [[[1]], [9 * DIM]]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda m: m.pull([0, K]), OutOfRangeError, r"rows: row 5 \(at position 1\) is outside \[0, 5\)"),
        (lambda m: m.pull([-1]), OutOfRangeError, r"rows: row -1 \(at position 0\) is outside"),
        (lambda m: m.pull([0.5]), DTypeError, r"rows: expected integers, got float64"),
        (lambda m: m.pull([[0]]), ShapeError, r"rows: expected one dimension, got shape \(1, 1\)"),
        (lambda m: m.pull([0], [DIM]), OutOfRangeError, r"index 11 \(at position 0\) is outside \[0, 11\)"),
        (lambda m: m.push([0], np.ones(DIM)), ShapeError, r"values: expected shape \(1, 11\), got \(11,\)"),
        (lambda m: m.add([0, 1], np.ones((2, 3)), [0, 1]), ShapeError, r"expected shape \(2, 2\), got \(2, 3\)"),
        (lambda m: m.add([0], np.ones((1, DIM)) * 1j), DTypeError, r"numbers that fit float32, got complex128"),
        (lambda m: m.dot([0, 1], [0]), ShapeError, "rows_b: expected 2 along 'pair' as rows_a has, got 1"),
        (lambda m: m.axpy([0, 1], [0], 1), ShapeError, "rows_x: expected 2 along 'pair' as rows_y has, got 1"),
        (lambda m: m.axpy([0, 1], [0, 1], [1]), ShapeError, "alphas: expected 2 along 'pair' as rows_y"),
        (lambda m: m.axpy([0], [0], "x"), DTypeError, r"alphas: expected numbers that fit float64"),
    ],
)
def test_call_when_arguments_are_wrong_then_error_names_them(ps, call, error, text):
    m = DCV.dense(DIM, K).matrix()
    with pytest.raises(error, match=text):
        call(m)
    assert not m.pull(range(K)).any()


@pytest.mark.parametrize("call", [lambda m: m.pull([0]), lambda m: m.push([0], [[1]]), lambda m: m.add([0], [[1]])])
def test_whole_rows_when_sparse_then_usage_error(ps, call):
    with pytest.raises(UsageError, match="needs a dense matrix"):
        call(DCV.sparse(1, 2).matrix())


def test_grow_when_more_rows_are_asked_then_new_ones_are_zero(ps):
    m = DCV.dense(DIM, 2).matrix().fill(3.0)
    for rows in (7, 8, 4):
        m.grow(rows)
    assert m.shape == (8, DIM)
    m.add([7], np.ones((1, DIM)))
    assert m.pull(range(8)).sum(axis=1).tolist() == [3.0 * DIM] * 2 + [0.0] * 5 + [DIM]
    assert np.array_equal(DCVMatrix.existing(m.number).pull([0, 7]), m.pull([0, 7]))


def test_grow_when_the_matrix_is_freed_then_so_are_its_new_rows(ps, statuses):
    def held():
        gc.collect()
        DCV.dense(DIM, 1).derive().free()  # tells the master what was dropped
        return [len(status.matrices) for status in statuses()]

    before = held()
    DCV.dense(DIM, 2).matrix().grow(9).free()
    dropped = DCV.dense(DIM, 2).matrix().grow(9)
    del dropped
    assert held() == before


def test_grow_when_others_have_taken_rows_then_usage_error(ps):
    vector = DCV.dense(DIM, 2)
    m = vector.matrix()
    other = vector.derive()
    with pytest.raises(UsageError, match="other callers have allocated rows of this matrix"):
        m.grow(6)
    assert m.rows == 2
    assert other.pull().sum() == 0


def test_grow_when_memory_is_short_then_limit_error_unchanged(ps):
    m = DCV.dense(2**20, 2).matrix().fill(1.0)
    with pytest.raises(LimitError, match="growing to 1000000 rows"):
        m.grow(1_000_000)
    assert (m.rows, m.pull(range(2)).sum()) == (2, 2 * 2**20)


def named_matrix():
    return DCV.dense(DIM, 3, name="owned").matrix()


def is_there_after_gc():
    """Return whether the matrix is there after garbage collection and a call that allocates."""
    gc.collect()
    DCV.dense(DIM).free()
    try:
        DCV.existing("owned")
    except NotFoundError:
        return False
    return True


def test_matrix_when_owned_and_dropped_then_name_is_free(ps):
    matrix = named_matrix()
    own(matrix)
    assert is_there_after_gc()
    del matrix
    assert not is_there_after_gc()


def test_owned_matrix_when_pickled_then_stays(ps):
    matrix = named_matrix()
    own(matrix)
    copy = pickle.loads(pickle.dumps(matrix))
    del matrix
    assert is_there_after_gc()
    copy.free()


def test_owned_matrix_when_lent_then_stays_until_loan_is_over(ps):
    matrix, is_over = named_matrix(), False
    own(matrix)
    with lending(lambda: Loan("token", lambda: is_over)):
        copy = pickle.loads(pickle.dumps(matrix))
    del matrix
    assert is_there_after_gc()
    copy.add([2], np.ones((1, DIM)))
    is_over = True
    assert not is_there_after_gc()


def test_owned_matrix_when_loan_has_no_end_then_stays(ps):
    matrix = named_matrix()
    own(matrix)
    with lending(lambda: None):
        copy = pickle.loads(pickle.dumps(matrix))
    del matrix
    assert is_there_after_gc()
    copy.free()


@pytest.mark.parametrize("is_owned", [True, False])
def test_owning_when_pickled_in_block_then_owns_as_before(ps, is_owned):
    matrix = named_matrix()
    if is_owned:
        own(matrix)
    with owning([matrix]):
        copy = pickle.loads(pickle.dumps(matrix))
    del matrix
    assert is_there_after_gc() != is_owned
    if not is_owned:
        copy.free()
