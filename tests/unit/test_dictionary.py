"""Sparse coding agrees with a plain coordinate descent in NumPy, and finds the same dictionary on any servers."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms import SparseCoder
from ps2.algorithms.dictionary import ops, program, worker
from ps2.algorithms.dictionary.kernels import SWEEPS, update
from ps2.algorithms.dictionary.plan import DictionaryPlan
from ps2.algorithms.dictionary.settings import DictionarySettings
from ps2.algorithms.training.faults import ColumnNames
from ps2.errors import ConfigError, InputError, LimitError, ShapeError
from ps2.ops.exact_sums import sum_of_shards
from tests.in_process import ArrayTable, training_context

ATOMS, PENALTY, PASSES = 12, 1.0, 15


def digits(rows=150, dim=36, parts=10):
    """Rows like pictures of digits: each the sum of a few parts, with values from 0 to 16."""
    rng = np.random.default_rng(4)
    shapes = rng.random((parts, dim)) * (rng.random((parts, dim)) < 0.3)
    weights = rng.gamma(2.0, 4.0, (rows, parts)) * (rng.random((rows, parts)) < 0.3)
    return np.clip(np.rint(weights @ shapes + rng.normal(0, 0.5, (rows, dim))), 0, 16)


def plain_codes(x, dictionary, penalty, positive=False):
    """Lasso by coordinate descent, one coordinate of all rows at a time."""
    gram, products = dictionary @ dictionary.T, x @ dictionary.T
    codes = np.zeros(products.shape)
    for _ in range(2000):
        before = codes.copy()
        for k in np.flatnonzero(np.diag(gram)):
            slope = products[:, k] - codes @ gram[:, k] + codes[:, k] * gram[k, k]
            size = np.maximum((slope if positive else np.abs(slope)) - penalty, 0.0)
            codes[:, k] = np.sign(slope) * size / gram[k, k]
        if np.abs(codes - before).max() < 1e-9:
            break
    return codes


def plain_objective(x, dictionary, codes, penalty):
    return 0.5 * ((x - codes @ dictionary) ** 2).sum() + penalty * np.abs(codes).sum()


def plain_fit(x, atoms, penalty, passes):
    """Alternate codes and one sweep over the atoms, as scikit-learn's DictionaryLearning does, from its SVD."""
    _, values, right = np.linalg.svd(x, full_matrices=False)
    dictionary = values[:atoms, None] * right[:atoms]
    dictionary /= np.maximum(np.linalg.norm(dictionary, axis=1, keepdims=True), 1.0)
    for _ in range(passes):
        codes = plain_codes(x, dictionary, penalty)
        pairs, sums = codes.T @ codes, codes.T @ x
        for k in np.flatnonzero(np.diag(pairs)):
            u = dictionary[k] + (sums[k] - pairs[k] @ dictionary) / pairs[k, k]
            dictionary[k] = u / max(1.0, np.linalg.norm(u))
    return plain_objective(x, dictionary, plain_codes(x, dictionary, penalty), penalty)


def plan_of(dim, **settings):
    return DictionaryPlan(settings=DictionarySettings(**settings), dim=dim)


def trained(x, servers=1, workers=1, **settings):
    plan = plan_of(x.shape[1], **{"k": ATOMS, "regParam": PENALTY, "maxIter": PASSES, **settings})
    with training_context(servers) as ps:
        table = ArrayTable.of(sp.csr_array(x), workers=workers, columns=ColumnNames(label=None))
        return program.train(ps, table, plan)


@pytest.mark.parametrize("positive", [False, True])
def test_codes_when_found_then_are_numpys(positive):
    x, rng = digits(40), np.random.default_rng(1)
    dictionary = rng.normal(size=(ATOMS, x.shape[1])) / 6
    dictionary[3] = 0.0
    expected = plain_codes(x, dictionary, PENALTY, positive)
    coder = SparseCoder(dictionary, PENALTY, positive)
    result = coder.transform(sp.csr_array(x))
    np.testing.assert_allclose(result.toarray(), expected, atol=1e-3)
    np.testing.assert_allclose(coder.transform(x).toarray(), result.toarray(), rtol=1e-12)
    assert coder.objective(x) == pytest.approx(plain_objective(x, dictionary, expected, PENALTY), rel=1e-8)


def test_fit_when_done_then_objective_is_no_worse():
    x = digits()
    fitted = trained(x)
    expected = plain_fit(x, ATOMS, PENALTY, PASSES)
    history = fitted.history.objective
    assert history[-1] < 1.01 * expected
    assert (np.diff(history) <= 0).all()
    codes = plain_codes(x, fitted.model.dictionary, PENALTY)
    assert history[-1] == pytest.approx(plain_objective(x, fitted.model.dictionary, codes, PENALTY), rel=1e-8)
    assert np.linalg.norm(fitted.model.dictionary, axis=1).max() <= 1 + 1e-12


@pytest.mark.parametrize("positive", [False, True])
def test_fit_when_fleets_differ_then_dictionary_is_the_same(positive):
    x = np.hstack([digits(60), np.zeros((60, 1000)), digits(60)])
    one, other = (trained(x, *fleet, maxIter=4, nonnegative=positive) for fleet in ((1, 1), (3, 2)))
    np.testing.assert_array_equal(one.model.dictionary, other.model.dictionary)
    assert one.history.objective == other.history.objective


def test_fit_when_workers_start_again_then_is_the_same(monkeypatch):
    class StartsAgain:
        """It knows nothing of the clocks before."""

        def __init__(self, *arguments):
            self._arguments = arguments

        def __call__(self, task_worker, task):
            worker.DictionaryWorker(*self._arguments)(task_worker, task)

    expected = trained(digits(60), maxIter=4)
    monkeypatch.setattr(program, "DictionaryWorker", StartsAgain)
    np.testing.assert_array_equal(trained(digits(60), maxIter=4).model.dictionary, expected.model.dictionary)


def test_fit_when_squares_overflow_then_is_as_of_small():
    x = digits(60)
    small = trained(x, maxIter=5)
    for exponent in (520, -520):
        scale = 2.0**exponent
        fitted = trained(scale * x, maxIter=5, regParam=scale * PENALTY)
        assert np.isfinite(fitted.model.dictionary).all()
        losses = SparseCoder(fitted.model.dictionary, PENALTY).objective(x)
        assert losses == pytest.approx(small.history.objective[-1], rel=0.2)
        codes = SparseCoder(small.model.dictionary, scale * PENALTY).transform(scale * x)
        np.testing.assert_allclose(codes.toarray() / scale, plain_codes(x, small.model.dictionary, PENALTY), atol=1e-3)


def test_fit_when_few_rows_differ_then_atoms_are_zero(caplog):
    fitted = trained(np.repeat(digits(3), 5, axis=0), k=5, maxIter=0)
    assert (np.linalg.norm(fitted.model.dictionary, axis=1) > 0).sum() == 3
    assert "k is 5, and 2 atoms are 0" in caplog.text


def test_fit_when_a_row_is_an_outlier_then_a_warning_says_so(caplog):
    x = digits(60)
    trained(x, maxIter=1)
    assert not caplog.text
    x[5, 3] = 1e12
    trained(x, maxIter=1)
    assert "small rows may have no effect, and the training may end early" in caplog.text


def test_objective_when_entries_repeat_then_is_of_their_sums():
    coder = SparseCoder(np.array([[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]), 0.1)
    x = sp.csr_array((np.array([9.0, 9.0, 1.0]), [0, 0, 1], [0, 3]), shape=(1, 3))
    assert coder.objective(x) == pytest.approx(coder.objective(x.toarray()))
    assert x.nnz == 3  # the caller's matrix stays


@pytest.mark.parametrize(
    ("x", "message"), [(np.zeros((20, 3)), "got 20 rows of zeros alone"), (np.full((20, 3), np.inf), "NaN or infinite")]
)
def test_fit_when_rows_are_bad_then_error_says_so(x, message):
    with pytest.raises(InputError, match=message):
        trained(x)


def test_update_when_made_by_products_then_is_plain_descent():
    rng = np.random.default_rng(0)
    codes, x = rng.normal(size=(40, 6)), rng.normal(size=(40, 9))
    dictionary = rng.normal(size=(6, 9)) / 3
    pairs, sums = codes.T @ codes, codes.T @ x
    inputs = pairs, dictionary @ dictionary.T, dictionary @ sums.T, sums @ sums.T
    of_atoms, of_sums = update(*inputs, np.arange(6) == 2)
    result = of_atoms @ dictionary + of_sums @ sums
    pairs[2], pairs[:, 2], pairs[2, 2] = 0.0, 0.0, 1.0
    for _ in range(SWEEPS):
        for k in range(6):
            u = dictionary[k] + (sums[k] - pairs[k] @ dictionary) / pairs[k, k]
            dictionary[k] = u / (np.linalg.norm(u) if k == 2 else max(1.0, np.linalg.norm(u)))
    np.testing.assert_allclose(result, dictionary, atol=1e-12)


def test_operations_when_cut_into_shards_then_sums_are_the_same():
    rng = np.random.default_rng(0)
    atoms, sums = rng.normal(size=(600, 4)), rng.normal(size=(600, 4))
    parts = [(atoms[:512].copy(), sums[:512].copy()), (atoms[512:].copy(), sums[512:].copy())]
    of_shards = np.concatenate([ops.products(*part) for part in parts])
    result = sum_of_shards(of_shards, 2)
    np.testing.assert_array_equal(result, sum_of_shards(ops.products(atoms, sums), 2))
    np.testing.assert_allclose(result, [atoms.T @ sums, sums.T @ sums], rtol=1e-12)
    a, b = rng.normal(size=(4, 4)), rng.normal(size=(4, 4))
    expected = atoms @ a.T + sums @ b.T
    result = np.concatenate([ops.combine(*part, a, b) for part in parts])
    np.testing.assert_allclose(np.concatenate([part[0] for part in parts]), expected, rtol=1e-12)
    np.testing.assert_array_equal(sum_of_shards(result, 1)[0], sum_of_shards(ops.combine(atoms, sums, a, b), 1)[0])
    assert not sums.any()


def test_options_when_impossible_then_error_says_why():
    with pytest.raises(ConfigError, match="k: expected at most the number of rows, 5, got 6"):
        plan_of(3, k=6).check(5)
    with pytest.raises(LimitError, match="at most 1,024 atoms, got 2,000"):
        plan_of(3, k=2000).check(5000)
    with pytest.raises(LimitError, match="make 100,000,000 values"):
        plan_of(100_000, k=1000).check(5000)


def test_coder_when_given_nonsense_then_error_says_so(tmp_path):
    coder = SparseCoder(np.eye(3), 0.0)
    with pytest.raises(ShapeError, match=r"expected shape \(n, 3\) of numbers, got \(1, 2\)"):
        coder.transform([[1.0, 2.0]])
    with pytest.raises(InputError, match="expected finite numbers"):
        coder.transform([[np.nan, 0, 0]])
    with pytest.raises(InputError, match="too large for float64"):
        SparseCoder(np.eye(3) / 16, 0.0).transform([[1.5e308, 0, 0]])
    with pytest.raises(ShapeError, match="dictionary: expected shape"):
        SparseCoder(np.ones(3))
    with pytest.raises(ConfigError, match="penalty: expected a finite number that is not negative"):
        SparseCoder(np.eye(3), -1.0)
    coder.save(str(tmp_path / "m"))
    np.testing.assert_array_equal(SparseCoder.load(str(tmp_path / "m")).dictionary, np.eye(3))
