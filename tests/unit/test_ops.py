"""Every operation of the table agrees with a NumPy oracle, whatever the dtype and the width."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.matrix.partition import DTYPES, Partition
from ps2.ops import all as everything

# Those of families, and of users, have tests of their own.
TABLE = {name: op for name, op in everything.TABLE.items() if op.module.startswith("ps2.ops.")}
WIDTHS = (1, 7, 1000)
ROWS = 3
BLOCK = 70  # so that the largest calls have several writers
PAIRS = 5
WEIGHTS = 22  # of a block that holds the state of any optimizer, too
REQUIRED = {
    "seed": 5,
    "value": 3,
    "alpha": 2,
    "lr": 0.1,
    "step": 4,
    "l1": 0.7,
    "l2": 0.2,
    "t": 0.5,
    "width": 1,
    "k": 8,
    "linear": 9,
    "source": 3,
    "target": 40,
    "count": 20,
}
SAMPLES = 4
PENALTIES = {"l1": 0.3, "l2": 0.6}
TOLERANCE = {
    "float32": {"rtol": 1e-5, "atol": 1e-5},
    "float64": {"rtol": 1e-10, "atol": 1e-10},
    "int32": {"rtol": 0, "atol": 0},
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


def oracle_columns_pull(m, slots):
    return np.where(slots[:, None] >= 0, m[slots], 0)


def oracle_columns_push(m, slots, values):
    for slot, block in zip(slots, values, strict=True):
        if slot >= 0:
            m[slot] = block


def oracle_columns_add(m, slots, values):
    np.add.at(m, slots[slots >= 0], values[slots >= 0])


def oracle_columns_add_some(m, slots, sizes, positions, changes):
    signed = np.where(changes % 2, -1 - changes.astype(np.int32) // 2, changes // 2)
    at = np.repeat(slots, sizes)
    np.add.at(m, (at[at >= 0], positions[at >= 0]), signed[at >= 0])


def oracle_rows_gather(m, rows, slots):
    return np.where(slots >= 0, m[rows][:, slots], 0)


def oracle_rows_push(m, rows, values):
    for row, new in zip(rows, values.reshape(len(rows), -1), strict=True):
        m[row] = new


def oracle_rows_fill(m, rows, *, value):
    m[rows] = value


def scrambled(x):
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def oracle_rows_random(m, rows, part, *, seed, shift, scale, normal):
    golden = np.uint64(0x9E3779B97F4A7C15)
    columns = np.arange(part.begin, part.begin + m.shape[1], dtype=np.uint64)

    def drawn(key, numbers):
        return (scrambled(key + (numbers + np.uint64(1)) * golden) >> np.uint64(11)) * 2.0**-53

    for row in rows:
        key = scrambled(scrambled(np.array([seed], np.uint64)) + np.array([row + 1], np.uint64) * golden)
        if normal:
            even = columns // np.uint64(2) * np.uint64(2)
            radius = np.sqrt(-2 * np.log(drawn(key, even) + 2.0**-53))
            angle = 2 * np.pi * drawn(key, even + np.uint64(1))
            m[row] = shift + scale * radius * np.where(columns % 2 == 0, np.cos(angle), np.sin(angle))
        else:
            m[row] = shift + scale * drawn(key, columns)


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


def oracle_gram(m, rows_u, rows_v):
    u, v = wide(m[rows_u], m[rows_v])
    return u @ v.T


def oracle_combine(u, m, rows, alphas):
    u[:] = alphas @ m[rows].astype(np.float64)


def oracle_add_factors(u, slots, counts, samples, x, b, *, width):
    features = np.repeat(slots, counts)
    for k in range(width):
        kept = features >= 0
        added = x.astype(np.float64) * b.reshape(-1, width)[samples, k]
        np.add.at(u, features[kept] + k, added[kept])


def oracle_add_dense_factors(u, slots, x, b, *, width):
    added = x.reshape(len(slots), -1).astype(np.float64) @ b.reshape(-1, width)
    for k in range(width):
        np.add.at(u, slots[slots >= 0] + k, added[slots >= 0, k])


def oracle_pseudo_gradient(out, weight, gradient, *, l1):
    right, left = gradient + l1, gradient - l1
    out[:] = np.select([weight > 0, weight < 0, right < 0, left > 0], [right, left, right, left], 0)


def oracle_align(direction, pseudo):
    direction[direction * pseudo >= 0] = 0


def oracle_orthant_step(trial, weight, direction, pseudo, *, t):
    trial[:] = weight + t * direction
    trial[np.sign(trial) != np.where(weight != 0, np.sign(weight), np.sign(-pseudo))] = 0


def oracle_box_gradient(out, weight, gradient, lower, upper):
    out[:] = np.where((weight <= lower) & (gradient > 0) | (weight >= upper) & (gradient < 0), 0, gradient)


def oracle_mask(u, by):
    u[by == 0] = 0


def oracle_clip(u, lower, upper):
    u[:] = np.where(u < lower, lower, np.minimum(u, upper))


def shrink(weight, rate, l1, l2):
    weight[:] = np.sign(weight) * np.maximum(np.abs(weight) - rate * l1, 0) / (1 + rate * l2)


def oracle_adam(weight, velocity, square, gradient, *, lr, beta1, beta2, eps, step, l1, l2):
    velocity[:] = beta1 * velocity + (1 - beta1) * gradient
    square[:] = beta2 * square + (1 - beta2) * gradient**2
    velocity_unbiased = velocity / (1 - beta1**step)
    square_unbiased = square / (1 - beta2**step)
    rate = lr / (np.sqrt(square_unbiased) + eps)
    weight -= rate * velocity_unbiased
    shrink(weight, rate, l1, l2)


def oracle_sgd(weight, gradient, *, lr, l1, l2):
    weight -= lr * gradient
    shrink(weight, lr, l1, l2)


def oracle_momentum(weight, velocity, gradient, *, lr, momentum, l1, l2):
    velocity[:] = momentum * velocity + gradient
    weight -= lr * velocity
    shrink(weight, lr / (1 - momentum), l1, l2)


def oracle_adagrad(weight, square, gradient, *, lr, eps, l1, l2):
    square += gradient**2
    rate = lr / (np.sqrt(square) + eps)
    weight -= rate * gradient
    shrink(weight, rate, l1, l2)


def oracle_rmsprop(weight, square, gradient, *, lr, rho, eps, l1, l2):
    square[:] = rho * square + (1 - rho) * gradient**2
    rate = lr / (np.sqrt(square) + eps)
    weight -= rate * gradient
    shrink(weight, rate, l1, l2)


def oracle_adam_step(weight, velocity, square, count, gradient, **rates):
    count += 1
    oracle_adam(weight, velocity, square, gradient, step=int(count[0]), l1=0, l2=0, **rates)


def unpenalised(oracle):
    return lambda *rows, **rates: oracle(*rows, l1=0, l2=0, **rates)


def oracle_ftrl(weight, z, square, gradient, *, alpha, beta, l1, l2):
    sigma = (np.sqrt(square + gradient**2) - np.sqrt(square)) / alpha
    z += gradient - sigma * weight
    square += gradient**2
    weight[:] = -(z - np.sign(z) * l1) / ((beta + np.sqrt(square)) / alpha + l2)
    weight[np.abs(z) <= l1] = 0


def oracle_ftrl_weights(weight, z, square, *, alpha, beta, l1, l2):
    weight[:] = -(z - np.sign(z) * l1) / ((beta + np.sqrt(square)) / alpha + l2)
    weight[np.abs(z) <= l1] = 0


def oracle_ftrl_weights_at(weight, z, square, slots, **params):
    old = weight.copy()
    oracle_ftrl_weights(weight, z, square, **params)
    weight[:] = np.where(np.isin(np.arange(weight.size), slots), weight, old)


def at_blocks(oracle):
    """Take the oracle's step on each block, whose parts are given by the oracle itself."""

    def step(m, slots, gradients, **params):
        for slot, gradient in zip(slots, gradients, strict=True):
            if slot >= 0:
                oracle(m[slot], gradient, **params)

    return step


def oracle_embedding_copy(m, source, target, count):
    m[:, np.arange(target, target + count)] = m[:, np.arange(source, source + count)]


def oracle_embedding_sgd(block, gradient, **params):
    oracle_sgd(block[: gradient.size], gradient, **params)


def oracle_embedding_adagrad(block, gradient, **params):
    k = gradient.size
    oracle_adagrad(block[:k], block[k : 2 * k], gradient, **params)


def oracle_embedding_adam(block, gradient, *, lr, beta1, beta2, eps, l1, l2):
    k = gradient.size
    weight, velocity, square, bias = block[:k], block[k : 2 * k], block[2 * k : 3 * k], block[3 * k : 3 * k + 2]
    velocity[:] = beta1 * velocity + (1 - beta1) * gradient
    square[:] = beta2 * square + (1 - beta2) * gradient**2
    bias[:] = 1 - (1 - bias) * (beta1, beta2)
    rate = lr / (np.sqrt(square / bias[1]) + eps)
    weight -= rate * velocity / bias[0]
    shrink(weight, rate, l1, l2)


def oracle_embedding_ftrl(block, gradient, *, linear, lr, eps, decay, **params):
    k = gradient.size
    first, rest = slice(linear), slice(linear, k)
    oracle_ftrl(block[first], block[2 * k : 2 * k + linear], block[k:][first], gradient[first], **params)
    oracle_adagrad(block[rest], block[k:][rest], gradient[rest], lr=lr, eps=eps, l1=0, l2=decay)


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
    "norm1": lambda u: float(np.abs(u).sum(dtype=np.float64)),
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
    "columns_pull": oracle_columns_pull,
    "columns_push": oracle_columns_push,
    "columns_add": oracle_columns_add,
    "columns_add_some": oracle_columns_add_some,
    "columns_fill": oracle_fill,
    "embedding_pull": lambda m, slots, *, k: oracle_columns_pull(m, slots)[:, :k],
    "embedding_count": lambda m: float(len(m)),
    "embedding_copy": oracle_embedding_copy,
    "embedding_sgd": at_blocks(oracle_embedding_sgd),
    "embedding_adagrad": at_blocks(oracle_embedding_adagrad),
    "embedding_adam": at_blocks(oracle_embedding_adam),
    "embedding_ftrl": at_blocks(oracle_embedding_ftrl),
    "rows_pull": lambda m, rows: m[rows],
    "rows_gather": oracle_rows_gather,
    "rows_push": oracle_rows_push,
    "rows_fill": oracle_rows_fill,
    "rows_random": oracle_rows_random,
    "columns_random": lambda m, rows, part, **how: oracle_rows_random(m.T, rows, part, **how),
    "rows_add": oracle_rows_add,
    "rows_scatter_add": oracle_rows_scatter_add,
    "rows_dot": oracle_rows_dot,
    "gram": oracle_gram,
    "combine": oracle_combine,
    "rows_axpy": oracle_rows_axpy,
    "rows_pair_update": oracle_rows_pair_update,
    "adam": lazily(oracle_adam),
    "sgd": oracle_sgd,
    "momentum": oracle_momentum,
    "adagrad": lazily(oracle_adagrad),
    "rmsprop": oracle_rmsprop,
    "sgd_step": unpenalised(oracle_sgd),
    "momentum_step": unpenalised(oracle_momentum),
    "adagrad_step": unpenalised(oracle_adagrad),
    "adam_step": oracle_adam_step,
    "ftrl": lazily(oracle_ftrl),
    "add_factors": oracle_add_factors,
    "add_dense_factors": oracle_add_dense_factors,
    "ftrl_weights": oracle_ftrl_weights,
    "ftrl_weights_at": oracle_ftrl_weights_at,
    "pseudo_gradient": oracle_pseudo_gradient,
    "align": oracle_align,
    "orthant_step": oracle_orthant_step,
    "box_gradient": oracle_box_gradient,
    "clip": oracle_clip,
    "mask": oracle_mask,
}


def numbers(rng, shape, dtype):
    if dtype in ("int32", "int64"):
        return rng.integers(-50, 50, shape, dtype)
    return rng.normal(0, 2, shape).astype(dtype)


def operands(op, dtype, width):
    """Random arguments that fit together, as independent copies on every call."""
    rng = np.random.default_rng(width)
    slots = 2 * width
    values = (PAIRS if "row_ids" in op.operands else 1) * (slots if "slots" in op.operands else width)
    if "blocks" in op.operands:
        values = slots, BLOCK
    counts = rng.integers(0, 5, slots).astype(np.uint8)
    fitting = {
        "counts": lambda: counts,
        "sizes": lambda: counts,
        "positions": lambda: rng.integers(0, BLOCK, counts.sum()).astype(np.uint8),
        "changes": lambda: rng.integers(0, 9, counts.sum()).astype(np.uint16),
        "samples": lambda: rng.integers(0, SAMPLES, counts.sum()).astype(np.uint16),
        "x": lambda: numbers(rng, counts.sum() if "counts" in op.names else (slots, SAMPLES), dtype),
        "b": lambda: numbers(rng, (SAMPLES, 1), dtype),
        "gradients": lambda: numbers(rng, (slots, WEIGHTS), dtype),
    }
    makers = {
        "row": lambda: numbers(rng, width, dtype),
        "block": lambda: numbers(rng, (ROWS, width), dtype),
        "blocks": lambda: numbers(rng, (width, BLOCK), dtype),
        "slots": lambda: rng.integers(-1, width, slots),
        "row_ids": lambda: rng.integers(0, ROWS, PAIRS),
        "values": lambda: numbers(rng, values, dtype),
        "floats": lambda: rng.normal(size=PAIRS),
        "partition": lambda: Partition(0, 7, 7 + width),
    }
    arrays = [fitting.get(name, makers.get(kind))() for name, kind in zip(op.names, op.operands, strict=True)]
    special = {
        "square": np.abs,
        "m": np.abs if "gradients" in op.names else lambda a: a,  # the state of an optimizer is a sum of squares
        "count": lambda a: np.full_like(a, 6),
        "by": lambda a: np.where(np.arange(a.size) % 2, a, 0),
    }
    return [special.get(name, lambda a: a)(a) for name, a in zip(op.names, arrays, strict=True)]


def scalars(op, dtype):
    inputs = {p.name: REQUIRED[p.name] for p in op.params.values() if p.required}
    return op.check(op.rows, dtype, inputs)


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
    for name, kind, a, b in zip(op.names, op.operands, ours, theirs, strict=True):
        if kind == "partition":
            continue
        np.testing.assert_allclose(a, b, **TOLERANCE[dtype], err_msg=name)
    if expected is None:
        assert result is None
    else:
        np.testing.assert_allclose(result, expected, **TOLERANCE[dtype])


PENALISED = [
    pytest.param(op, dtype, id=f"{op.name}-{dtype}")
    for op in TABLE.values()
    for dtype in op.dtypes
    if {"l1", "l2"} <= set(op.params)
]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("op", "dtype"), PENALISED)
def test_op_when_given_penalties_then_agrees_with_numpy(op, dtype, width):
    ours, theirs = operands(op, dtype, width), operands(op, dtype, width)
    params = scalars(op, dtype) | PENALTIES
    op.fn(*ours, **params)
    ORACLES[op.name](*theirs, **params)
    for name, a, b in zip(op.names, ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, **TOLERANCE[dtype], err_msg=name)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", [op for op in TABLE.values() if "lazy" in op.params], ids=lambda op: op.name)
def test_lazy_op_when_some_gradients_are_zero_then_matches_numpy(op, dtype, width):
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
    for inputs in (arrays, before):
        slots = inputs[op.operands.index("slots")]
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
    dtypes = {"slots": np.int64, "row_ids": np.int64, "floats": np.float64, "unsigned": np.uint8}
    shapes = [
        (ROWS, 0) if kind == "block" else [int(axis == "width") for axis in message.axes]
        for kind, message in zip(op.operands, op.axes, strict=True)
    ]
    arrays = [np.zeros(shape, dtypes.get(kind, np.float32)) for shape, kind in zip(shapes, op.operands, strict=True)]
    op.fn(*arrays, **scalars(op, "float32"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_result_of_pull_when_changed_then_leaves_the_row_alone(dtype):
    row = np.ones(5, dtype)
    TABLE["pull"].fn(row)[:] = 2
    np.testing.assert_array_equal(row, np.ones(5))
