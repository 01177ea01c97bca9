"""What operations do at the edges: NaN and infinity, duplicates, absent keys, wrong lengths and indices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ps2.errors import LimitError, OutOfRangeError, ShapeError
from ps2.ops import access, elementwise, matrix, optimizers, orthants, reductions

NAN = math.nan
INF = math.inf


def floats(*values):
    return np.array(values, dtype=np.float32)


def ints(*values):
    return np.array(values, dtype=np.int64)


def test_div_when_the_divisor_is_zero_then_follows_ieee():
    u = floats(1, -1, 0)
    elementwise.div(u, floats(0, 0, 0))
    np.testing.assert_array_equal(u, floats(INF, -INF, NAN))


def test_div_scalar_when_zero_then_follows_ieee():
    u = floats(1, -1, 0)
    elementwise.div_scalar(u, value=0.0)
    np.testing.assert_array_equal(u, floats(INF, -INF, NAN))


def test_scatter_div_when_zero_then_follows_ieee():
    u = floats(1, -1, 0)
    access.scatter_div(u, ints(0, 1, 2), floats(0, 0, 0))
    np.testing.assert_array_equal(u, floats(INF, -INF, NAN))


@pytest.mark.parametrize("fn", [elementwise.fill, elementwise.add_scalar, elementwise.mul_scalar])
def test_scalar_when_beyond_float32_then_becomes_infinite(fn):
    u = floats(1)
    fn(u, value=1e300)
    assert u[0] == INF


def test_axpy_when_int64_then_stays_exact_beyond_float64():
    u = ints(2**60 + 1)
    elementwise.axpy(u, ints(3), alpha=1)
    assert u[0] == 2**60 + 4


def test_axpy_when_float32_then_rounds_alpha_first():
    u, v = floats(0), floats(3)
    elementwise.axpy(u, v, alpha=0.1)
    assert u[0] == np.float32(0.1) * np.float32(3)


@pytest.mark.parametrize("special", [NAN, INF, -INF])
@pytest.mark.parametrize("fn", [reductions.sum, reductions.max, reductions.min, reductions.norm2_squared])
def test_reduction_when_row_has_nan_or_inf_then_matches_numpy(fn, special):
    u = np.ones(100, dtype=np.float32)
    u[41] = special
    expected = {"sum": u.sum(), "max": u.max(), "min": u.min(), "norm2_squared": np.dot(u, u)}[fn.__name__]
    np.testing.assert_equal(fn(u), float(expected))


def test_nnz_when_the_row_holds_nan_then_counts_it():
    assert reductions.nnz(floats(0, NAN, -0.0, 2)) == 2


def test_sum_when_float32_then_accumulates_in_float64():
    assert reductions.sum(floats(2**24, 1, 1)) == 2**24 + 2


def test_dot_when_int64_would_overflow_then_sums_in_float64():
    assert reductions.dot(ints(2**40), ints(2**40)) == 2.0**80


@pytest.mark.parametrize(("fn", "expected"), [(reductions.max, -INF), (reductions.min, INF), (reductions.sum, 0)])
def test_reduction_when_the_shard_is_empty_then_is_neutral(fn, expected):
    assert fn(floats()) == expected


def test_gather_when_a_key_is_absent_then_returns_zero():
    np.testing.assert_array_equal(access.gather(floats(5, 6), ints(1, -1, 0, 1)), floats(6, 0, 5, 6))


def test_scatter_when_slots_repeat_then_the_last_value_wins():
    u = floats(0, 0)
    access.scatter(u, ints(1, 0, 1), floats(1, 2, 3))
    np.testing.assert_array_equal(u, floats(2, 3))


def test_scatter_add_when_slots_repeat_then_accumulates():
    u = floats(0, 0)
    access.scatter_add(u, ints(1, 0, 1), floats(1, 2, 3))
    np.testing.assert_array_equal(u, floats(2, 4))


@pytest.mark.parametrize(
    "fn", [access.scatter, access.scatter_add, access.scatter_sub, access.scatter_mul, access.scatter_div]
)
def test_scatter_when_a_key_is_absent_then_skips_it(fn):
    u = floats(5, 6)
    fn(u, ints(-1), floats(100))
    np.testing.assert_array_equal(u, floats(5, 6))


@pytest.mark.parametrize(
    "fn", [access.scatter, access.scatter_add, access.scatter_sub, access.scatter_mul, access.scatter_div]
)
def test_scatter_when_lengths_differ_then_error_writes_nothing(fn):
    u = floats(5, 6)
    with pytest.raises(ShapeError, match="expected 2 elements, got 3"):
        fn(u, ints(0, 1), floats(1, 2, 3))
    np.testing.assert_array_equal(u, floats(5, 6))


@pytest.mark.parametrize("slot", [2, -2, 2**62])
def test_scatter_when_slot_is_out_of_range_then_writes_nothing(slot):
    u = floats(5, 6)
    with pytest.raises(OutOfRangeError, match=rf"slot {slot} \(at position 1\) is outside \[-1, 2\)"):
        access.scatter_add(u, ints(0, slot), floats(1, 2))
    np.testing.assert_array_equal(u, floats(5, 6))


def test_gather_when_a_slot_is_outside_the_row_then_raises():
    with pytest.raises(OutOfRangeError, match="slot 2"):
        access.gather(floats(5, 6), ints(2))


def test_push_add_when_start_is_given_then_changes_that_interval():
    u = floats(1, 1, 1, 1)
    access.push_add(u, floats(5, 6), start=1)
    np.testing.assert_array_equal(u, floats(1, 6, 7, 1))


def test_push_when_length_is_wrong_then_error_writes_nothing():
    u = floats(1, 1, 1)
    with pytest.raises(ShapeError, match="at most 2 elements from column 1, got 3"):
        access.push(u, floats(5, 6, 7), start=1)
    np.testing.assert_array_equal(u, floats(1, 1, 1))


@pytest.mark.parametrize("start", [-1, 4])
def test_push_when_the_start_is_outside_the_row_then_raises(start):
    with pytest.raises(OutOfRangeError, match=f"expected 0 to 3, the row's width, got {start}"):
        access.push(floats(1, 1, 1), floats(), start=start)


def test_pull_when_given_an_interval_then_returns_it():
    np.testing.assert_array_equal(access.pull(floats(1, 2, 3, 4), start=1, stop=3), floats(2, 3))


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 4), (2, 1), (4, -1), (0, -2)])
def test_pull_when_the_interval_is_outside_the_row_then_raises(start, stop):
    with pytest.raises(OutOfRangeError, match=r"start <= stop <= 3"):
        access.pull(floats(1, 2, 3), start=start, stop=stop)


@pytest.mark.parametrize(
    "call",
    [
        elementwise.add,
        elementwise.copy,
        lambda u, v: elementwise.axpy(u, v, alpha=1.0),
        reductions.dot,
        lambda u, v: optimizers.sgd(u, v, lr=0.1),
    ],
    ids=["add", "copy", "axpy", "dot", "sgd"],
)
def test_op_when_rows_differ_in_width_then_names_both(call):
    with pytest.raises(ShapeError, match="got 3 and 1"):
        call(floats(1, 2, 3), floats(1))


def test_rows_push_when_a_row_repeats_then_the_last_values_win():
    m = np.zeros((2, 2), dtype=np.float32)
    matrix.rows_push(m, ints(1, 1), floats(1, 2, 3, 4))
    np.testing.assert_array_equal(m, [[0, 0], [3, 4]])


def test_rows_axpy_when_earlier_pair_wrote_row_then_reads_update():
    m = np.array([[1], [1]], dtype=np.float64)
    matrix.rows_axpy(m, ints(0, 1, 1), ints(1, 0, 1), np.array([1.0, 1.0, 1.0]))
    np.testing.assert_array_equal(m, [[2], [6]])


def test_rows_pair_update_when_rows_are_shared_then_reads_old():
    m = np.array([[1], [10], [100]], dtype=np.float64)
    matrix.rows_pair_update(m, ints(0, 0, 0), ints(1, 1, 2), np.array([1.0, 1.0, 2.0]))
    np.testing.assert_array_equal(m, [[1 + 10 + 10 + 200], [10 + 1 + 1], [100 + 2]])


def test_rows_pair_update_when_pair_is_one_row_then_counts_twice():
    m = np.array([[3]], dtype=np.float64)
    matrix.rows_pair_update(m, ints(0), ints(0), np.array([0.5]))
    np.testing.assert_array_equal(m, [[6]])


def test_rows_pair_update_when_scratch_is_small_then_by_columns(monkeypatch):
    monkeypatch.setattr(matrix, "MAX_COPY_BYTES", 1)
    rng = np.random.default_rng(0)
    m, a, b, c = rng.normal(size=(6, 37)), rng.integers(0, 6, 20), rng.integers(0, 6, 20), rng.normal(size=20)
    expected = m.copy()
    np.add.at(expected, a, c[:, None] * m[b])
    np.add.at(expected, b, c[:, None] * m[a])
    matrix.rows_pair_update(m, a, b, c)
    np.testing.assert_allclose(m, expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pair_changes_when_added_then_are_the_pair_update(dtype):
    rng = np.random.default_rng(0)
    m, c = rng.normal(size=(4, 9)).astype(dtype), rng.normal(size=7)
    distinct, at_a, at_b = matrix.index_pairs(ints(3, 0, 3, 3, 1, 0, 1), ints(0, 3, 0, 1, 1, 1, 3))
    old = m[distinct]
    expected = m.copy()
    matrix.rows_pair_update(expected, distinct[at_a], distinct[at_b], c)
    changes = matrix.pair_changes(old, at_a, at_b, c)
    assert changes.dtype == dtype
    np.testing.assert_array_equal(old, m[distinct])
    m[distinct] += changes
    np.testing.assert_allclose(m, expected, rtol=1e-5)


@pytest.mark.parametrize("rows", [[], [0], [7, 7, 7], [5, 2**31, 5, 0, 2**31, 3], list(range(1000)) * 2])
def test_number_pairs_when_rows_repeat_then_each_has_one_number(rows):
    a, b = ints(*rows), ints(*reversed(rows))
    distinct, at_a, at_b = matrix.index_pairs(a, b)
    assert sorted(distinct) == sorted(set(rows))
    np.testing.assert_array_equal(distinct[at_a], a)
    np.testing.assert_array_equal(distinct[at_b], b)


def test_rows_gather_when_a_key_is_absent_then_returns_zero():
    m = np.array([[1, 2], [3, 4]], dtype=np.float32)
    np.testing.assert_array_equal(matrix.rows_gather(m, ints(1, 0), ints(-1, 1)), [[0, 4], [0, 2]])


@pytest.mark.parametrize(
    "call",
    [
        lambda m: matrix.rows_push(m, ints(0), floats(1)),
        lambda m: matrix.rows_add(m, ints(0), floats(1)),
        lambda m: matrix.rows_scatter_add(m, ints(0), ints(0, 1), floats(1)),
        lambda m: matrix.rows_dot(m, ints(0, 1), ints(1)),
        lambda m: matrix.rows_axpy(m, ints(0, 1), ints(1), np.ones(2)),
        lambda m: matrix.rows_axpy(m, ints(0, 1), ints(1, 0), np.ones(1)),
        lambda m: matrix.rows_pair_update(m, ints(0, 1), ints(1), np.ones(2)),
        lambda m: matrix.rows_pair_update(m, ints(0, 1), ints(1, 0), np.ones(1)),
    ],
    ids=["push", "add", "scatter_add", "dot", "axpy-rows", "axpy-alphas", "pairs-rows", "pairs-coefficients"],
)
def test_rows_op_when_lengths_differ_then_names_both(call):
    with pytest.raises(ShapeError, match="expected 2 elements, got 1"):
        call(np.zeros((2, 2), dtype=np.float32))


@pytest.mark.parametrize("row", [-1, 2])
@pytest.mark.parametrize(
    "call",
    [
        lambda m, row: matrix.rows_pull(m, ints(row)),
        lambda m, row: matrix.rows_gather(m, ints(row), ints(0)),
        lambda m, row: matrix.rows_push(m, ints(row), floats(1, 1)),
        lambda m, row: matrix.rows_add(m, ints(row), floats(1, 1)),
        lambda m, row: matrix.rows_scatter_add(m, ints(row), ints(0), floats(1)),
        lambda m, row: matrix.rows_dot(m, ints(0), ints(row)),
        lambda m, row: matrix.rows_axpy(m, ints(0), ints(row), np.ones(1)),
        lambda m, row: matrix.rows_pair_update(m, ints(0), ints(row), np.ones(1)),
    ],
    ids=["pull", "gather", "push", "add", "scatter_add", "dot", "axpy", "pairs"],
)
def test_rows_op_when_a_row_is_outside_the_matrix_then_raises(call, row):
    with pytest.raises(OutOfRangeError, match=rf"row {row} \(at position 0\) is outside \[0, 2\)"):
        call(np.zeros((2, 2), dtype=np.float32), row)


def test_scatter_add_when_arrays_are_misaligned_then_adds():
    message = b"x" + ints(1, 0).tobytes() + floats(3, 4).tobytes()
    slots, values = np.frombuffer(message, np.int64, 2, 1), np.frombuffer(message, np.float32, 2, 17)
    u = floats(0, 0)
    access.scatter_add(u, slots, values)
    np.testing.assert_array_equal(u, floats(4, 3))


def test_gram_when_products_are_too_many_then_allocates_nothing():
    with pytest.raises(LimitError, match="gram: at most 65,536 inner products in one call, got 65,792"):
        matrix.gram(np.zeros((1, 4)), np.zeros(256, np.int64), np.zeros(257, np.int64))


def test_gram_when_rows_exceed_tile_then_accumulates_in_float64():
    m = np.random.default_rng(0).normal(size=(7, 100_001)).astype(np.float32)
    result = matrix.gram(m, ints(0, 3), ints(0, 1, 2, 3, 4, 5, 6))
    expected = m[[0, 3]].astype(np.float64) @ m.T.astype(np.float64)
    np.testing.assert_allclose(result.reshape(2, 7), expected, rtol=1e-11, atol=1e-9)


def test_combine_when_output_is_input_then_reads_before_writing():
    m = np.random.default_rng(0).normal(size=(3, 10_001))
    expected = 2 * m[1] - m[2] + m[1]
    matrix.combine(m[1], m, ints(1, 2, 1), np.array([2.0, -1.0, 1.0]))
    np.testing.assert_allclose(m[1], expected, rtol=1e-12, atol=1e-12)


def test_pseudo_gradient_when_weight_is_zero_then_subtracts_l1():
    out = np.empty(7)
    orthants.pseudo_gradient(out, np.array([1.0, -1, 0, 0, 0, 0, NAN]), np.array([1.0, 1, 3, -3, 1, -1, 1]), l1=2)
    np.testing.assert_array_equal(out, [3, -1, 1, -1, 0, 0, 0])


def test_align_when_product_underflows_then_sign_decides():
    direction = np.array([1e-300, 1e-300, NAN])
    orthants.align(direction, np.array([-1e-300, 1e-300, 1]))
    np.testing.assert_array_equal(direction, [1e-300, 0, NAN])


def test_orthant_step_when_leaving_orthant_then_stops_at_face():
    weight, pseudo = np.array([1.0, 1, -1, 0, 0, 0, 0]), np.array([0.0, 0, 0, -1, 1, -1, 0])
    direction = np.array([-1.0, -3, 1, 1, 1, NAN, 1])
    trial = np.empty(7)
    orthants.orthant_step(trial, weight, direction, pseudo, t=0.5)
    np.testing.assert_array_equal(trial, [0.5, 0, -0.5, 0.5, 0, NAN, 0])


def test_box_gradient_when_weight_is_at_bound_then_is_projected():
    out, weight = np.empty(6), np.array([0.0, 0, 1, 1, 0.5, 0.5])
    gradient, lower, upper = np.array([1.0, -1, 1, -1, -1, NAN]), np.zeros(6), np.ones(6)
    orthants.box_gradient(out, weight, gradient, lower, upper)
    np.testing.assert_array_equal(out, [0, -1, 1, 0, -1, NAN])


def test_mask_when_a_number_is_nan_then_only_a_zero_hides_it():
    u = np.array([NAN, NAN, 2, 2])
    orthants.mask(u, np.array([0.0, 1, NAN, -0.0]))
    np.testing.assert_array_equal(u, [0, NAN, 2, 0])


def test_clip_when_bounds_are_infinite_then_values_stay():
    u = np.array([-3.0, 3, 3, NAN])
    orthants.clip(u, np.array([-math.inf, -math.inf, -1, -1]), np.array([math.inf, 2, math.inf, 1]))
    np.testing.assert_array_equal(u, [-3, 2, 3, NAN])


@pytest.mark.parametrize("penalty", [{"l1": 0.1}, {"l2": 0.1}])
def test_penalised_step_when_gradient_is_nan_then_spoils_column(penalty):
    weight = np.ones(3)
    optimizers.sgd(weight, np.array([0, NAN, 0]), lr=0.1, **penalty)
    assert np.isnan(weight).tolist() == [False, True, False]
