"""Nearest centres, sums and first centres of k-means agree with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from compiled_kernels import compiled

from ps2.algorithms.clusters import kernels, ops, start, warm
from ps2.algorithms.clusters.model import KMeansClusters
from ps2.algorithms.clusters.plan import KMeansPlan
from ps2.algorithms.clusters.program import train
from ps2.algorithms.clusters.settings import KMeansSettings
from ps2.algorithms.training import row_draws
from ps2.algorithms.training.faults import ColumnNames
from ps2.errors import InputError
from tests.in_process import ArrayTable, training_context


def rows(share=1.0, shift=0.0, n=200, dim=7):
    """Some rows, of whose values a share is not 0."""
    rng = np.random.default_rng(1)
    return (rng.normal(size=(n, dim)) + shift) * (rng.random((n, dim)) < share)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("share", "shift"), [(1.0, 0.0), (1.0, 1e3), (0.4, 0.0), (0.4, 1e3)])
def test_nearest_when_rows_are_given_then_is_numpys(dtype, share, shift):
    x = rows(share, shift).astype(dtype).astype(np.float64)
    centres = rows(shift=shift, n=33)[::-1].astype(dtype)
    distances = ((x[:, None] - centres.astype(np.float64)) ** 2).sum(axis=2)
    model = KMeansClusters(centres)
    assert model.predict(sp.csr_array(x)).tolist() == distances.argmin(axis=1).tolist()
    np.testing.assert_allclose(model.cost(x), distances.min(axis=1).sum(), rtol=1e-6)


def test_nearest_when_squares_overflow_then_is_found():
    assert KMeansClusters([[1e300, 0], [-1e300, 0]]).predict([[1e307, 0], [-1e290, 0]]).tolist() == [0, 1]


def test_predict_when_a_row_has_no_cosine_then_error_says_so():
    with pytest.raises(InputError, match="1 rows hold zeros alone"):
        KMeansClusters(np.eye(2), "cosine").predict([[0, 0], [1, 0]])


def test_sums_when_listed_or_whole_then_are_equal():
    x, weights = sp.csr_array(rows(0.3)), np.random.default_rng(2).random(200)
    assigned, units = np.random.default_rng(3).integers(0, 5, 200), np.full(7, 2.0**-30)
    whole, listed = np.zeros((7, 5)), np.zeros((7, 5))
    kernels.sum_rows(x.indptr, x.indices, x.data, weights, assigned, units, whole)
    columns = x.tocsc()
    sizes, clusters, values = np.zeros(7, np.int32), np.zeros(x.nnz, np.int32), np.zeros(x.nnz)
    inputs = columns.indptr, columns.indices, columns.data, weights, assigned, units
    count = kernels.sum_columns(*inputs, sizes, clusters, values, 5)
    ops.gather(listed, np.arange(7), sizes, clusters[:count], values[:count])
    assert listed.tolist() == whole.tolist()
    expected = np.stack([(weights * (assigned == c)) @ x.toarray() for c in range(5)], axis=1)
    np.testing.assert_allclose(whole, expected, atol=1e-6)


def test_centres_when_moved_then_are_means_and_empty_stays():
    centres, sums = np.array([[1.0, 5.0], [2.0, 6.0]]), np.array([[4.0, 0.0], [6.0, 0.0]])
    result = ops.move(centres, sums, np.array([2.0, 0.0]))
    assert (centres.tolist(), sums.any()) == ([[2.0, 5.0], [3.0, 6.0]], False)
    assert result[[0, 2]].tolist() == [[13.0, 61.0], [2.0, 0.0]]


def test_hash_when_form_and_order_differ_then_is_the_same():
    dense = sp.csr_array((np.array([1.0, 0.0, 3.0]), [0, 1, 2], [0, 3]), shape=(1, 3))
    sparse = sp.csr_array((np.array([3.0, 1.0]), [1, 0], [0, 2]), shape=(1, 2))
    assert row_draws.hashes(dense, np.arange(3)) == row_draws.hashes(sparse, np.array([0, 2]))


def test_least_when_rows_repeat_then_each_counts_once():
    result, ids = np.array([3.0, 1.0, 1.0, 2.0, np.inf]), np.array([7, 5, 5, 6, 8], np.uint64)
    assert ids[row_draws.smallest(result, ids, 2)].tolist() == [5, 6]
    assert len(row_draws.smallest(result, ids, 9)) == 3


def test_plus_plus_when_groups_are_apart_then_one_of_each():
    x = np.repeat(np.array([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]]), 4, axis=0)
    assert {int(row) // 4 for row in start.plus_plus(sp.csr_array(x), np.ones(12), 3, 1)} == {0, 1, 2}
    assert len(start.plus_plus(sp.csr_array(x), np.ones(12), 9, 1)) == 3


@pytest.mark.parametrize("name", ["model", "m[1]", "{a,b}", "x*", "é ü%20"])
def test_clusters_when_saved_then_load_without_spark(tmp_path, name):
    KMeansClusters(rows(n=3), "cosine").save(str(tmp_path / name))
    result = KMeansClusters.load(str(tmp_path / name))
    assert (result.centres.tolist(), result.distance) == (rows(n=3).tolist(), "cosine")


def test_clusters_when_warm_then_compile_nothing():
    warm.warm()
    before = compiled((kernels, ops))
    for dtype in (np.float32, np.float64):
        model = KMeansClusters(rows(n=4).astype(dtype))
        model.cost(rows())
        model.cost(rows(0.3))
    assert compiled((kernels, ops)) == before


def test_plus_plus_when_rows_are_close_far_from_0_then_differ():
    x = sp.csr_array(np.array([[1e9, 0.0], [1e9, 1.0], [0.0, 5.0], [0.0, 6.0]]))
    assert sorted(start.plus_plus(x, np.ones(4), 4, seed=1).tolist()) == [0, 1, 2, 3]


def test_shift_when_all_rows_hold_a_feature_then_its_middle():
    highs, lows = np.array([8.0, -4.0, 8.0, 3.0, -np.inf]), np.array([-6.0, 6.0, -6.0, 1.0, -np.inf])
    sizes, shifts = np.empty(5), np.empty(5)
    ops.shift(highs, lows, np.array([9.0, 9.0, 8.0, 9.0, 0.0]), sizes, shifts, rows=9.0)
    assert (shifts.tolist(), sizes.tolist()) == ([7.0, -5.0, 0.0, 0.0, 0.0], [1.0, 1.0, 8.0, 3.0, 0.0])


def trained(x, weights=None, servers=1, workers=1, **settings):
    settings = KMeansSettings(**{"k": 6, "seed": 3, **settings})
    plan = KMeansPlan(settings=settings, dim=x.shape[1], clusters=settings.k)
    weighted = {} if weights is None else {"w": weights}
    columns = ColumnNames(label=None, weight=None if weights is None else "w")
    with training_context(servers) as ps:
        return train(ps, ArrayTable.of(x, None, workers, columns, **weighted), plan)


def lloyd(x, weights, centres, iterations):
    for _ in range(iterations):
        nearest = ((x[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        some = [nearest == c for c in range(len(centres))]
        centres = np.array(
            [np.average(x[a], axis=0, weights=weights[a]) if a.any() else c for a, c in zip(some, centres, strict=True)]
        )
    return centres


@pytest.mark.parametrize("mode", ["k-means||", "random"])
def test_fit_when_fleets_differ_then_all_are_lloyds(mode):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(6, 4)) * 3)[rng.integers(6, size=300)] + rng.normal(size=(300, 4))
    points = x, rng.random(300)
    first = trained(*points, initMode=mode, maxIter=0)
    one, other = (trained(*points, *fleet, initMode=mode, maxIter=5, tol=0.0) for fleet in ((1, 1), (2, 2)))
    np.testing.assert_allclose(one.centres, lloyd(*points, first.centres, one.history.steps), rtol=1e-9)
    assert one.centres.tolist() == other.centres.tolist()
    assert one.history.objective == other.history.objective
    assert one.sizes.sum() == 300


@pytest.mark.parametrize(
    ("row", "distance", "message"),
    [([np.nan, 1.0], "euclidean", "hold NaN or infinite"), ([0.0, 0.0], "cosine", "1 of 2 rows hold zeros alone")],
)
def test_fit_when_a_row_is_bad_then_error_says_so(row, distance, message):
    with pytest.raises(InputError, match=message):
        trained(np.array([row, [1.0, 1.0]]), k=1, distanceMeasure=distance)


@pytest.mark.parametrize("mode", ["k-means||", "random"])
def test_cosine_when_directions_repeat_then_starts_differ(mode):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 4))[np.arange(200) % 5] * rng.random((200, 1))
    assert len(trained(x, k=20, distanceMeasure="cosine", initMode=mode, maxIter=0).centres) == 5


@pytest.mark.parametrize("fleet", [(1, 1), (2, 2)], ids=str)
def test_fit_when_values_have_offsets_then_centres_are_exact(fleet):
    numbers = np.arange(200)
    groups = np.where(numbers % 2, 0.0, 2000.0) + np.random.default_rng(0).integers(0, 200, 200)
    x = np.stack([1.7e15 + groups, np.full(200, -1e300)], axis=1)
    result = trained(x, None, *fleet, k=2)
    parts = [groups[numbers % 2 == side] for side in (1, 0)]
    np.testing.assert_allclose(np.sort(result.centres[:, 0] - 1.7e15), [part.mean() for part in parts], atol=0.25)
    assert result.centres[:, 1].tolist() == [-1e300, -1e300]
    assert result.sizes.tolist() == [100, 100]
    assert result.history.objective[-1] == pytest.approx(sum(((part - part.mean()) ** 2).sum() for part in parts))
