"""Calls that do in one pass what takes several: ``gram``, ``combine``, operations at indices, lazy steps, factors."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ps2 import DCV
from ps2.client import factors
from ps2.errors import ConfigError, DTypeError, ShapeError, UsageError

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")

DIM = 101
COUNT = 6


@pytest.fixture(params=["dense-float32", "dense-float64", "sparse-float64"])
def vectors(ps, request):
    """Co-located vectors of one kind, and NumPy's idea of them at ``DIM`` columns."""
    kind, dtype = request.param.split("-")
    model = np.random.default_rng(1).standard_normal((COUNT, DIM)).astype(dtype)
    first = DCV.dense(DIM, dtype=dtype) if kind == "dense" else DCV.sparse(2**60, dtype=dtype)
    made = [first, *(first.derive() for _ in range(COUNT - 1))]
    for vector, values in zip(made, model, strict=True):
        vector.push(values, np.arange(DIM))
    return made, model


def test_gram_when_called_then_all_inner_products(vectors):
    made, model = vectors
    found = DCV.gram(made[:2], made)
    assert (found.dtype, found.shape) == (np.float64, (2, COUNT))
    np.testing.assert_allclose(found, model[:2].astype(np.float64) @ model.T.astype(np.float64), rtol=1e-10)


def test_combine_when_it_is_among_its_vectors_then_the_sum_of_what_they_were(vectors):
    made, model = vectors
    alphas = np.linspace(-1, 2, 4)
    assert made[1].combine(made[:4], alphas) is made[1]
    expected = (alphas @ model[:4].astype(np.float64)).astype(model.dtype)
    np.testing.assert_allclose(made[1].pull(np.arange(DIM)), expected, rtol=1e-6 if model.itemsize == 4 else 1e-12)


def test_norm1_when_called_then_the_sum_of_absolute_values(vectors):
    made, model = vectors
    assert made[2].norm1() == pytest.approx(np.abs(model[2].astype(np.float64)).sum(), rel=1e-12)


def test_gram_and_combine_when_in_a_batch_then_one_request_a_server(ps, requests_by):
    u = DCV.dense(DIM, dtype="float64").fill(2)
    v = u.derive().fill(3)
    answers = []

    def run():
        with ps.batch():
            answers.append(DCV.gram([u, v], [u, v]))
            v.combine([u, v], [10, 1])
            answers.append(v.norm1())

    assert requests_by(run) == [1] * len(ps.servers)
    np.testing.assert_allclose(answers[0].result(), DIM * np.array([[4, 6], [6, 9]]))
    assert answers[1].result() == DIM * 23


def test_gram_when_given_no_vectors_then_says_so(ps):
    with pytest.raises(ShapeError, match="gram: us: expected one or more vectors, got none"):
        DCV.gram([], [DCV.dense(3)])


def test_combine_when_not_given_a_number_each_then_says_so(ps):
    u = DCV.dense(3)
    with pytest.raises(ShapeError, match=r"alphas: expected shape \(1,\), got \(2,\)"):
        u.combine([u], [1, 2])


def test_combine_when_given_an_array_then_says_so(ps):
    with pytest.raises(DTypeError, match="combine: vectors: expected DCVs, got ndarray"):
        DCV.dense(3).combine([np.ones(3)], [1])


PENALTIES = {"lr": 0.1, "l1": 0.3, "l2": 0.5}


def shrunk(values, steps):
    for _ in range(steps):
        values = np.sign(values) * np.maximum(np.abs(values) - 0.03, 0) / 1.05
    return values


def test_apply_when_given_indices_then_runs_at_these_columns_only(vectors):
    made, model = vectors
    weight, at = made[0], made[1].zero()
    keys = np.array([90, 3, 3, 50])
    assert weight.zip(at).apply("settle_plain", indices=keys, step=4, **PENALTIES) is weight
    expected = model[0].astype(np.float64)
    expected[keys] = shrunk(expected[keys], 4)
    np.testing.assert_allclose(weight.pull(np.arange(DIM)), expected, rtol=1e-5)
    assert np.flatnonzero(at.pull(np.arange(DIM))).tolist() == [3, 50, 90]


def test_apply_when_given_absent_keys_then_they_stay_absent(ps):
    weight = DCV.sparse(2**60).push([1.0, 1.0], [7, 8])
    at = weight.derive()
    weight.zip(at).apply("settle_plain", indices=[8, 9, 2**59], step=1, **PENALTIES)
    keys, values = weight.pull()
    assert keys.tolist() == [7, 8]
    np.testing.assert_allclose(values, [1, 0.97 / 1.05], rtol=1e-6)


def test_lazy_steps_when_keys_are_settled_before_they_are_pulled_then_equal_full_steps(ps, requests_by):
    weight = DCV.dense(DIM, dtype="float64", rows=6).fill(1)
    square, at, gradient = weight.derive(), weight.derive(), weight.derive()
    model, model_square = np.ones(DIM), np.zeros(DIM)
    rng = np.random.default_rng(0)

    def one_step(step, keys, found):
        with ps.batch():
            weight.zip(square, at).apply("settle_scaled", indices=keys, step=step - 1, **PENALTIES)
            found.append(weight.pull(keys))
        with ps.batch():
            gradient.add(found[-1].result() - 0.5, keys)
            weight.zip(square, at, gradient).apply("lazy_adagrad", step=step, **PENALTIES)
            gradient.zero()

    for step in range(1, 8):
        keys = np.unique(rng.integers(0, DIM, 30))
        assert requests_by(lambda step=step, keys=keys: one_step(step, keys, [])) == [2] * len(ps.servers)
        dense = np.zeros(DIM)
        dense[keys] = model[keys] - 0.5
        model_square += dense**2
        rate = 0.1 / (np.sqrt(model_square) + 1e-8)
        model -= rate * dense
        model = np.sign(model) * np.maximum(np.abs(model) - rate * 0.3, 0) / (1 + rate * 0.5)
    weight.zip(square, at).apply("settle_scaled", step=7, **PENALTIES)
    np.testing.assert_allclose(weight.pull(), model, rtol=1e-10)


def test_apply_when_the_operation_takes_no_indices_then_says_which_do(ps):
    u = DCV.dense(3)
    with pytest.raises(ConfigError, match="'sgd' takes no indices; these do: settle_ftrl, settle_plain, settle_scaled"):
        u.zip(u.derive()).apply("sgd", indices=[1], lr=0.1)


def test_apply_when_lazy_and_penalised_then_names_the_twin(ps):
    u = DCV.dense(3)
    with pytest.raises(ConfigError, match="use 'lazy_adagrad'; got l1="):
        u.zip(u.derive(), u.derive()).apply("adagrad", lr=0.1, l1=0.1, lazy=True)


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "csr"])
def test_add_factors_when_called_then_their_product_is_added(ps, form, wait):
    rng = np.random.default_rng(1)
    keys, width = np.array([30, 2, 17, 2]), 5
    b, x = rng.normal(size=(9, width)), rng.normal(size=(9, 4)) * (rng.random((9, 4)) < 0.5)
    gradient = DCV.dense(40 * width, dtype="float64", align=width)
    assert gradient.addFactors(b, form(x), keys, wait=wait) is gradient
    expected = np.zeros((40, width))
    np.add.at(expected, keys, x.T @ b)
    np.testing.assert_allclose(gradient.flush().pull(), expected.reshape(-1), atol=1e-12)


def test_add_factors_when_in_a_batch_then_one_request_a_server(ps, requests_by):
    gradient = DCV.dense(200, dtype="float64", align=2)

    def run():
        with ps.batch():
            gradient.addFactors(np.ones((3, 2)), np.ones((3, 100)), np.arange(100))
            gradient.mul(2)

    assert requests_by(run) == [1] * len(ps.servers)
    assert gradient.pull().tolist() == [6] * 200


def test_lazy_step_when_factors_were_added_then_sees_all_their_columns(ps):
    """Where servers keep a list of the gradient's columns: in rows of so many columns."""
    width, features = 4, 3 << 16
    weight = DCV.dense(width * features, rows=3, dtype="float64", align=width)
    at, gradient = weight.derive(), weight.derive()
    for step, key in ((1, 0), (2, features - 1), (3, features // 2)):
        gradient.addFactors(np.ones((1, width)), np.full((1, 1), 2.0), [key])
        weight.zip(at, gradient).apply("lazy_sgd", lr=0.5, step=step)
        gradient.zero()
    columns = np.flatnonzero(weight.pull())
    assert columns.tolist() == [width * key + k for key in (0, features // 2, features - 1) for k in range(width)]
    assert (weight.pull(columns) == -1).all()


def test_add_factors_when_the_vector_is_sparse_then_says_so(ps):
    with pytest.raises(UsageError, match="addFactors needs a dense vector"):
        DCV.sparse(2**40).addFactors(np.ones((1, 2)), np.ones((1, 1)), [0])


def test_sizes_when_the_product_is_larger_than_the_factors_then_say_so(ps):
    x = sp.random_array((50, 1000), density=0.02, random_state=np.random.default_rng(0), format="csr")
    as_factors, as_sum = factors.sizes(DCV.dense(100_000, align=100), 100, x, np.arange(1000))
    assert as_factors < as_sum
    as_factors, as_sum = factors.sizes(DCV.dense(2000, align=2), 2, x.toarray(), np.arange(1000))
    assert as_factors > as_sum
