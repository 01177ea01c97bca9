"""Every operation of the table agrees with a NumPy oracle, whatever the dtype and the width."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.ops.table import TABLE, load
from ps2.partition import DTYPES

load()

WIDTHS = (1, 7, 1000)
ROWS = 3
PAIRS = 5
REQUIRED = {"value": 3, "alpha": 2, "lr": 0.1, "step": 4}
TOLERANCE = {
    "float32": {"rtol": 1e-5, "atol": 1e-5},
    "float64": {"rtol": 1e-10, "atol": 1e-10},
    "int64": {"rtol": 0, "atol": 0},
}


def in_place(ufunc):
    def oracle(u, v):
        ufunc(u, v, out=u)

    return oracle


def in_place_scalar(ufunc):
    def oracle(u, *, value):
        ufunc(u, u.dtype.type(value), out=u)

    return oracle


def on_interval(ufunc):
    def oracle(u, values, *, start):
        u[start : start + len(values)] = ufunc(u[start : start + len(values)], values)

    return oracle


def at_slots(ufunc):
    def oracle(u, slots, values):
        ufunc.at(u, slots[slots >= 0], values[slots >= 0])

    return oracle


def overwrite(u, v):
    u[:] = v


def oracle_axpy(u, v, *, alpha):
    u += u.dtype.type(alpha) * v


def oracle_fill(u, *, value):
    u[:] = value


def oracle_pull(u, *, start, stop):
    return u[start:].copy() if stop == -1 else u[start:stop].copy()


def oracle_gather(u, slots):
    return np.where(slots >= 0, u[slots], 0)


def oracle_push(u, values, *, start):
    u[start : start + len(values)] = values


def oracle_scatter(u, slots, values):
    for slot, value in zip(slots, values, strict=True):
        if slot >= 0:
            u[slot] = value


def oracle_rows_gather(m, rows, slots):
    return np.where(slots >= 0, m[rows][:, slots], 0)


def oracle_rows_push(m, rows, values):
    for row, new in zip(rows, values.reshape(len(rows), -1), strict=True):
        m[row] = new


def oracle_rows_add(m, rows, values):
    np.add.at(m, rows, values.reshape(len(rows), -1))


def oracle_rows_scatter_add(m, rows, slots, values):
    kept = slots >= 0
    np.add.at(m, (rows[:, None], slots[kept][None, :]), values.reshape(len(rows), -1)[:, kept])


def oracle_rows_axpy(m, rows_y, rows_x, alphas):
    for y, x, alpha in zip(rows_y, rows_x, alphas, strict=True):
        m[y] += m.dtype.type(alpha) * m[x]


def oracle_rows_pair_update(m, rows_a, rows_b, coefficients):
    old, scales = m.copy(), coefficients.astype(m.dtype)[:, None]
    np.add.at(m, rows_a, scales * old[rows_b])
    np.add.at(m, rows_b, scales * old[rows_a])


def wide(*arrays):
    return (array.astype(np.float64) for array in arrays)


def oracle_rows_dot(m, rows_a, rows_b):
    return np.einsum("ij,ij->i", *wide(m[rows_a], m[rows_b]))


def oracle_dot(u, v):
    return float(np.dot(*wide(u, v)))


def oracle_adam(weight, velocity, square, gradient, *, lr, beta1, beta2, eps, step):
    square[:] = beta1 * square + (1 - beta1) * gradient**2
    velocity[:] = beta2 * velocity + (1 - beta2) * gradient
    square_unbiased = square / (1 - beta1**step)
    velocity_unbiased = velocity / (1 - beta2**step)
    weight -= lr / (np.sqrt(square_unbiased) + eps) * velocity_unbiased


def oracle_sgd(weight, gradient, *, lr):
    weight -= lr * gradient


def oracle_momentum(weight, velocity, gradient, *, lr, momentum):
    velocity[:] = momentum * velocity + gradient
    weight -= lr * velocity


def oracle_adagrad(weight, square, gradient, *, lr, eps):
    square += gradient**2
    weight -= lr * gradient / (np.sqrt(square) + eps)


def oracle_rmsprop(weight, square, gradient, *, lr, rho, eps):
    square[:] = rho * square + (1 - rho) * gradient**2
    weight -= lr * gradient / (np.sqrt(square) + eps)


def oracle_ftrl(weight, z, square, gradient, *, alpha, beta, l1, l2):
    sigma = (np.sqrt(square + gradient**2) - np.sqrt(square)) / alpha
    z += gradient - sigma * weight
    square += gradient**2
    weight[:] = -(z - np.sign(z) * l1) / ((beta + np.sqrt(square)) / alpha + l2)
    weight[np.abs(z) <= l1] = 0


def lazily(oracle):
    """Take the oracle's step where the last row, the gradient, is not 0, if asked to; and everywhere if not."""

    def step(*rows, lazy, **params):
        before = [row.copy() for row in rows]
        oracle(*rows, **params)
        for row, old in zip(rows, before, strict=True):
            row[:] = np.where((before[-1] != 0) | (not lazy), row, old)

    return step


ORACLES = {
    "add": in_place(np.add),
    "sub": in_place(np.subtract),
    "mul": in_place(np.multiply),
    "div": in_place(np.divide),
    "copy": overwrite,
    "axpy": oracle_axpy,
    "fill": oracle_fill,
    "add_scalar": in_place_scalar(np.add),
    "sub_scalar": in_place_scalar(np.subtract),
    "mul_scalar": in_place_scalar(np.multiply),
    "div_scalar": in_place_scalar(np.divide),
    "sum": lambda u: float(u.sum(dtype=np.float64)),
    "nnz": lambda u: float(np.count_nonzero(u)),
    "norm2_squared": lambda u: oracle_dot(u, u),
    "dot": oracle_dot,
    "max": lambda u: float(np.max(u)),
    "min": lambda u: float(np.min(u)),
    "count": lambda u: float(len(u)),
    "pull": oracle_pull,
    "gather": oracle_gather,
    "push": oracle_push,
    "push_add": on_interval(np.add),
    "push_sub": on_interval(np.subtract),
    "push_mul": on_interval(np.multiply),
    "push_div": on_interval(np.divide),
    "scatter": oracle_scatter,
    "scatter_add": at_slots(np.add),
    "scatter_sub": at_slots(np.subtract),
    "scatter_mul": at_slots(np.multiply),
    "scatter_div": at_slots(np.divide),
    "rows_pull": lambda m, rows: m[rows],
    "rows_gather": oracle_rows_gather,
    "rows_push": oracle_rows_push,
    "rows_add": oracle_rows_add,
    "rows_scatter_add": oracle_rows_scatter_add,
    "rows_dot": oracle_rows_dot,
    "rows_axpy": oracle_rows_axpy,
    "rows_pair_update": oracle_rows_pair_update,
    "adam": lazily(oracle_adam),
    "sgd": oracle_sgd,
    "momentum": oracle_momentum,
    "adagrad": lazily(oracle_adagrad),
    "rmsprop": oracle_rmsprop,
    "ftrl": lazily(oracle_ftrl),
}


def numbers(rng, shape, dtype):
    if dtype == "int64":
        return rng.integers(-50, 50, shape)
    return rng.normal(0, 2, shape).astype(dtype)


def operands(op, dtype, width):
    """Random arguments that fit together, as independent copies on every call."""
    rng = np.random.default_rng(width)
    slots = 2 * width
    values = (PAIRS if "row_ids" in op.operands else 1) * (slots if "slots" in op.operands else width)
    makers = {
        "row": lambda: numbers(rng, width, dtype),
        "block": lambda: numbers(rng, (ROWS, width), dtype),
        "slots": lambda: rng.integers(-1, width, slots),
        "row_ids": lambda: rng.integers(0, ROWS, PAIRS),
        "values": lambda: numbers(rng, values, dtype),
        "floats": lambda: rng.normal(size=PAIRS),
    }
    arrays = [makers[kind]() for kind in op.operands]
    return [np.abs(a) if name == "square" else a for name, a in zip(op.names, arrays, strict=True)]


def scalars(op, dtype):
    given = {p.name: REQUIRED[p.name] for p in op.params.values() if p.required}
    return op.check(op.rows, dtype, given)


CASES = [
    pytest.param(op, dtype, width, id=f"{op.name}-{dtype}-{width}")
    for op in TABLE.values()
    for dtype in op.dtypes
    for width in WIDTHS
]


def test_oracles_when_listed_then_cover_the_whole_table():
    assert set(ORACLES) == set(TABLE)


@pytest.mark.parametrize(("op", "dtype", "width"), CASES)
def test_op_when_called_then_agrees_with_numpy(op, dtype, width):
    ours, theirs = operands(op, dtype, width), operands(op, dtype, width)
    params = scalars(op, dtype)
    result, expected = op.fn(*ours, **params), ORACLES[op.name](*theirs, **params)
    for name, a, b in zip(op.names, ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, **TOLERANCE[dtype], err_msg=name)
    if expected is None:
        assert result is None
    else:
        np.testing.assert_allclose(result, expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", [op for op in TABLE.values() if "lazy" in op.params], ids=lambda op: op.name)
def test_lazy_op_when_gradients_are_zero_here_and_there_then_agrees_with_numpy(op, dtype, width):
    ours, theirs = operands(op, dtype, width), operands(op, dtype, width)
    for rows in (ours, theirs):
        rows[-1][np.random.default_rng(1).random(width) < 0.7] = 0
    params = scalars(op, dtype) | {"lazy": True}
    op.fn(*ours, **params)
    ORACLES[op.name](*theirs, **params)
    for name, a, b in zip(op.names, ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, **TOLERANCE[dtype], err_msg=name)


@pytest.mark.parametrize("op", TABLE.values(), ids=TABLE)
def test_op_when_called_then_changes_only_what_it_declares(op):
    dtype = op.dtypes[0]
    arrays, before = operands(op, dtype, 7), operands(op, dtype, 7)
    op.fn(*arrays, **scalars(op, dtype))
    changed = {name for name, a, b in zip(op.names, arrays, before, strict=True) if not np.array_equal(a, b)}
    assert changed == set(op.writes)


@pytest.mark.parametrize(
    "op", [op for op in TABLE.values() if op.writes and {"row", "slots"} <= set(op.operands)], ids=lambda op: op.name
)
def test_op_when_given_slots_then_writes_rows_at_these_only(op):
    """Else a server would not know which columns it has touched."""
    dtype = op.dtypes[0]
    arrays, before = operands(op, dtype, 50), operands(op, dtype, 50)
    for given in (arrays, before):
        slots = given[op.operands.index("slots")]
        slots[:] = slots % 7 - 1
    op.fn(*arrays, **scalars(op, dtype))
    for kind, a, b in zip(op.operands, arrays, before, strict=True):
        if kind == "row":
            np.testing.assert_array_equal(a[6:], b[6:])


@pytest.mark.parametrize("op", [op for op in TABLE.values() if op.reduce], ids=lambda op: op.name)
def test_reduction_of_rows_when_called_then_returns_a_float(op):
    result = op.fn(*operands(op, "float32", 7), **scalars(op, "float32"))
    assert isinstance(result, float) or result.dtype == np.float64


@pytest.mark.parametrize("op", [op for op in TABLE.values() if "row" in op.operands], ids=lambda op: op.name)
def test_op_when_a_shard_is_empty_then_runs(op):
    arrays = [np.zeros(0, np.int64 if kind in ("slots", "row_ids") else np.float32) for kind in op.operands]
    op.fn(*arrays, **scalars(op, "float32"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_result_of_pull_when_changed_then_leaves_the_row_alone(dtype):
    row = np.ones(5, dtype)
    TABLE["pull"].fn(row)[:] = 2
    np.testing.assert_array_equal(row, np.ones(5))
