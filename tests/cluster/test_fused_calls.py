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
    created = [first, *(first.derive() for _ in range(COUNT - 1))]
    for vector, values in zip(created, model, strict=True):
        vector.push(values, np.arange(DIM))
    return created, model


def test_gram_when_called_then_all_inner_products(vectors):
    created, model = vectors
    result = DCV.gram(created[:2], created)
    assert (result.dtype, result.shape) == (np.float64, (2, COUNT))
    np.testing.assert_allclose(result, model[:2].astype(np.float64) @ model.T.astype(np.float64), rtol=1e-10)


def test_combine_when_target_is_an_input_then_sums_old_values(vectors):
    created, model = vectors
    alphas = np.linspace(-1, 2, 4)
    assert created[1].combine(created[:4], alphas) is created[1]
    expected = (alphas @ model[:4].astype(np.float64)).astype(model.dtype)
    np.testing.assert_allclose(created[1].pull(np.arange(DIM)), expected, rtol=1e-6 if model.itemsize == 4 else 1e-12)


def test_norm1_when_called_then_the_sum_of_absolute_values(vectors):
    created, model = vectors
    assert created[2].norm1() == pytest.approx(np.abs(model[2].astype(np.float64)).sum(), rel=1e-12)


def test_gram_and_combine_when_batched_then_one_request_each(ps, requests_by):
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
    with pytest.raises(ShapeError, match="alphas: expected 1 along 'rows' as rows has, got 2"):
        u.combine([u], [1, 2])


def test_combine_when_given_an_array_then_says_so(ps):
    with pytest.raises(DTypeError, match="combine: vectors: expected DCVs, got ndarray"):
        DCV.dense(3).combine([np.ones(3)], [1])


def ftrl_weights(z, square, *, alpha, l1, l2):
    return -np.sign(z) * np.maximum(np.abs(z) - l1, 0) / ((1 + np.sqrt(square)) / alpha + l2)


def test_apply_when_given_indices_then_runs_only_there(vectors):
    (weight, z, square, *_), model = vectors
    square.push(model[2] ** 2, np.arange(DIM))
    keys, scalars = np.array([90, 3, 3, 50]), {"alpha": 0.1, "l1": 0.3, "l2": 0.5}
    assert weight.zip(z, square).apply("ftrl_weights", indices=keys, **scalars) is weight
    expected = model[0].astype(np.float64)
    expected[keys] = ftrl_weights(model[1], model[2] ** 2, **scalars)[keys]
    np.testing.assert_allclose(weight.pull(np.arange(DIM)), expected, rtol=1e-5)


def test_apply_when_given_absent_keys_then_they_stay_absent(ps):
    weight = DCV.sparse(2**60).push([1.0, 1.0], [7, 8])
    z, square = weight.derive().push([-3.0, -3.0], [7, 8]), weight.derive()
    weight.zip(z, square).apply("ftrl_weights", indices=[8, 9, 2**59], alpha=1.0, l1=1.0, l2=3.0)
    keys, values = weight.pull()
    assert (keys.tolist(), values.tolist()) == ([7, 8], [1.0, 0.5])


def test_lazy_ftrl_when_weights_precede_pull_then_matches_full(ps, requests_by):
    """With penalties that grow with the steps, as the estimators' do."""
    weight = DCV.dense(DIM, dtype="float64", rows=4)
    z, square, gradient = (weight.derive() for _ in range(3))
    rng, model, model_z, model_square = np.random.default_rng(0), *np.zeros((3, DIM))

    def grown(step):
        return {"alpha": 0.5, "l1": 0.05 * step, "l2": 0.1 * step}

    def one_step(step, keys):
        with ps.batch():
            weight.zip(z, square).apply("ftrl_weights", indices=keys, **grown(step - 1))
            pulled = weight.pull(keys)
        with ps.batch():
            gradient.add(pulled.result() - np.sin(keys), keys)
            weight.zip(z, square, gradient).apply("ftrl", lazy=True, **grown(step))
            gradient.zero()

    for step in range(1, 8):
        keys = np.unique(rng.integers(0, DIM, 30))
        assert requests_by(lambda step=step, keys=keys: one_step(step, keys)) == [2] * len(ps.servers)
        dense = np.zeros(DIM)
        dense[keys] = model[keys] - np.sin(keys)
        model_z += dense - (np.sqrt(model_square + dense**2) - np.sqrt(model_square)) / 0.5 * model
        model_square += dense**2
        model = ftrl_weights(model_z, model_square, **grown(step))
    weight.zip(z, square).apply("ftrl_weights", **grown(7))
    np.testing.assert_allclose(weight.pull(), model, rtol=1e-10, atol=1e-14)
    assert 0 < np.count_nonzero(model) < DIM


def test_apply_when_operation_takes_no_indices_then_lists_valid(ps):
    u = DCV.dense(3)
    with pytest.raises(ConfigError, match="'sgd' takes no indices; these do: ftrl_weights"):
        u.zip(u.derive()).apply("sgd", indices=[1], lr=0.1)


def test_apply_when_lazy_and_penalised_then_names_ftrl(ps):
    u = DCV.dense(3)
    with pytest.raises(ConfigError, match="use 'ftrl'; got l1="):
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


def test_lazy_step_when_factors_were_added_then_sees_all_columns(ps):
    """Where servers keep a list of the gradient's columns: in rows of so many columns."""
    width, features = 4, 3 << 16
    weight = DCV.dense(width * features, rows=3, dtype="float64", align=width)
    square, gradient = weight.derive(), weight.derive()
    for key in (0, features - 1, features // 2):
        gradient.addFactors(np.ones((1, width)), np.full((1, 1), 2.0), [key])
        weight.zip(square, gradient).apply("adagrad", lr=0.5, lazy=True)
        gradient.zero()
    columns = np.flatnonzero(weight.pull())
    assert columns.tolist() == [width * key + k for key in (0, features // 2, features - 1) for k in range(width)]
    np.testing.assert_allclose(weight.pull(columns), -0.5)


def test_add_factors_when_the_vector_is_sparse_then_says_so(ps):
    with pytest.raises(UsageError, match="addFactors needs a dense vector"):
        DCV.sparse(2**40).addFactors(np.ones((1, 2)), np.ones((1, 1)), [0])


def test_sizes_when_product_exceeds_factors_then_reports_it(ps):
    x = sp.random_array((50, 1000), density=0.02, random_state=np.random.default_rng(0), format="csr")
    as_factors, as_sum = factors.sizes(DCV.dense(100_000, align=100), 100, x, np.arange(1000))
    assert as_factors < as_sum
    as_factors, as_sum = factors.sizes(DCV.dense(2000, align=2), 2, x.toarray(), np.arange(1000))
    assert as_factors > as_sum
