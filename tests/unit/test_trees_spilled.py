"""Trees from rows in files: they are the trees from rows in memory, bit for bit."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.classification import GBTClassifier, RandomForestClassifier
from ps2.algorithms.frame import settings
from ps2.algorithms.ranking import GBTRanker
from ps2.algorithms.regression import GBTRegressor, RandomForestRegressor
from ps2.algorithms.trees.boosted_rows import BoostedRows
from ps2.algorithms.trees.forests.worker import ForestRows, GrowingTrees
from ps2.algorithms.trees.gradients import Objective, sum_bounds
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.data.row_spill import RowSpill
from ps2.data.rows import Rows
from ps2.data.spilling import Spill
from tests import plans
from tests.tree_estimators import fit

ROWS = 300


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Let a worker's rows be in many blocks, and let selections of rows stay in files."""
    monkeypatch.setattr(settings, "Spill", partial(Spill, limit_bytes=0, block_bytes=1500))


def table(sparse=False, distinct=0):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(ROWS, 5)) if not distinct else rng.integers(0, distinct, size=(ROWS, 5)).astype(float)
    if sparse:
        x = np.hstack([x, rng.normal(size=(ROWS, 60))]) * (rng.random((ROWS, 65)) < 0.1)
    y = x[:, 0] * x[:, 1] + x[:, 2] + 0.1 * rng.normal(size=ROWS)
    return (sp.csr_matrix(x) if sparse else x), y


def models(make, x, y, **others):
    """Return the trees in words from rows in files and in memory, and the number of the first one's files."""
    fitted = [fit(make(spill=spill), x, y, **others) for spill in ("always", "never")]
    assert not fitted[1].summary.spilled
    return [model.toDebugString.split("\n", 1)[1] for model in fitted], len(fitted[0].summary.spilled)


def check(make, x, y, workers, **others):
    (spilled, expected), files = models(make, x, y, **others)
    assert files == workers
    assert spilled == expected
    assert "If" in spilled


VIA = {"local": {"via": "local"}, "servers": {"via": "servers", "numWorkers": 2}}


@pytest.mark.parametrize("growth", ["level", "leaf"])
@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize("sparse", [False, True])
def test_boosting_when_rows_are_in_files_then_same_trees(via, sparse, growth):
    make = partial(GBTRegressor, maxIter=4, maxDepth=4, maxBins=16, growth=growth, **VIA[via])
    check(make, *table(sparse), workers=1 + (via == "servers"))


@pytest.mark.parametrize("via", VIA)
def test_boosting_when_bins_need_two_bytes_then_same_trees(via):
    make = partial(GBTRegressor, maxIter=2, maxDepth=3, maxBins=280, **VIA[via])
    check(make, *table(), workers=1 + (via == "servers"))


@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize("sparse", [False, True])
def test_boosting_when_rows_are_sampled_then_same_trees(via, sparse):
    make = partial(GBTRegressor, maxIter=4, maxDepth=3, subsamplingRate=0.5, lossType="absolute", **VIA[via])
    check(make, *table(sparse), workers=1 + (via == "servers"))


@pytest.mark.parametrize("via", VIA)
def test_boosting_when_rows_have_weights_then_same_trees(via):
    x, y = table()
    weight = np.random.default_rng(1).integers(0, 4, ROWS) / 2.0
    make = partial(GBTRegressor, maxIter=3, maxDepth=3, minInfoGain=0.01, weightCol="weight", **VIA[via])
    check(make, x, y, workers=1 + (via == "servers"), weight=weight)


@pytest.mark.parametrize("via", VIA)
def test_boosting_when_rows_are_held_out_then_same_trees(via):
    x, y = table()
    is_held_out = np.random.default_rng(1).random(ROWS) < 0.3
    make = partial(
        GBTClassifier, maxIter=30, validationIndicatorCol="out", evalMetric="auc", earlyStoppingRounds=2, **VIA[via]
    )
    check(make, x, y > 0, workers=1 + (via == "servers"), out=is_held_out)


@pytest.mark.parametrize("via", VIA)
def test_boosting_when_no_row_is_held_out_then_same_trees(via):
    make = partial(GBTClassifier, maxIter=3, validationIndicatorCol="out", evalMetric="auc", **VIA[via])
    x, y = table()
    check(make, x, y > 0, workers=1 + (via == "servers"), out=np.arange(ROWS) == 0)


@pytest.mark.parametrize("via", VIA)
def test_boosting_when_features_are_categories_then_same_trees(via):
    x, y = table(distinct=9)
    x[::7, 3] = np.nan
    make = partial(GBTRegressor, maxIter=4, maxDepth=4, **VIA[via])
    check(make, x, y, workers=1 + (via == "servers"), categories={0: 9, 1: 9})


@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize("sparse", [False, True])
def test_boosting_when_trees_are_dropped_then_same_trees(via, sparse):
    make = partial(GBTRegressor, maxIter=5, maxDepth=3, boostingType="dart", dropRate=0.6, skipDrop=0.0, **VIA[via])
    check(make, *table(sparse), workers=1 + (via == "servers"))


@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize("sparse", [False, True])
def test_boosting_when_features_are_sampled_then_same_trees(via, sparse):
    make = partial(GBTRegressor, maxIter=4, maxDepth=3, colsampleBytree=0.6, colsampleBylevel=0.7, **VIA[via])
    check(make, *table(sparse), workers=1 + (via == "servers"))


@pytest.mark.parametrize("via", VIA)
def test_boosting_by_gradients_when_in_files_then_same_trees(via):
    make = partial(GBTRegressor, maxIter=15, maxDepth=3, dataSampleStrategy="goss", **VIA[via])
    check(make, *table(), workers=1 + (via == "servers"))


@pytest.mark.parametrize("via", VIA)
def test_custom_functions_when_rows_are_in_files_then_same_trees(via):
    functions = {"objective": lambda m, y, w: (w * (m - y), w * (1 + abs(m - y)))}
    functions |= {"customMetric": lambda m, y, w: ((w * abs(y - m)).sum(), w.sum()), "maximize": False}
    others = {"weight": 1.0 + np.arange(ROWS) % 3, "out": np.arange(ROWS) % 4 == 0}
    make = partial(GBTRegressor, maxIter=4, maxDepth=3, weightCol="weight", validationIndicatorCol="out", **functions)
    check(partial(make, **VIA[via]), *table(), workers=1 + (via == "servers"), **others)


@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize("sparse", [False, True])
def test_boosting_when_categories_are_many_then_same_trees(via, sparse):
    x, y = table(sparse)
    codes = 1000 * np.arange(ROWS) % 299_000
    x = sp.csr_matrix(sp.hstack([codes[:, None], x])) if sparse else np.column_stack([codes, x])
    make = partial(GBTRegressor, maxIter=3, maxDepth=4, **VIA[via])
    check(make, x, y + codes % 7, workers=1 + (via == "servers"), categories={0: 300_000})


@pytest.mark.parametrize("via", VIA)
def test_metrics_when_there_are_sets_then_same_in_files(via):
    x, y = table()
    relevance, query = np.clip(np.rint(y + 1), 0, 3), np.arange(ROWS) // 10
    make = partial(GBTRanker, maxIter=4, maxDepth=3, groupCol="query", validationIndicatorCol="out", **VIA[via])
    fitted = [
        fit(
            make(spill=spill),
            x,
            relevance,
            query=query,
            out=(query % 3).astype(np.int8),
            validation_sets=("one", "two"),
        )
        for spill in ("always", "never")
    ]
    assert [len(model.summary.spilled) for model in fitted] == [1 + (via == "servers"), 0]
    metrics = [{name: list(values) for name, values in model.summary.history.metrics.items()} for model in fitted]
    assert len(metrics[0]) >= 2
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize("sparse", [False, True])
def test_boosting_when_there_are_statistics_then_same_trees(via, sparse):
    x, y = table(distinct=9)
    held_out = np.arange(ROWS) % 4 == 0
    params = {"maxCtrComplexity": 2, "minCtrCategories": 2, "validationIndicatorCol": "out", "boostingType": "dart"}
    make = partial(GBTRegressor, maxIter=3, maxDepth=3, dropRate=0.9, skipDrop=0.0, **params, **VIA[via])
    x = sp.csr_matrix(x) if sparse else x
    check(make, x, y, workers=1 + (via == "servers"), categories={0: 9, 1: 9}, out=held_out)


def test_boosting_when_rows_have_margins_then_same_trees():
    make = partial(GBTRegressor, maxIter=3, baseMarginCol="margin", via="servers", numWorkers=2)
    check(make, *table(), workers=2, margin=np.linspace(-1, 1, ROWS))


def test_ranking_when_rows_are_in_files_then_same_trees():
    x, y = table()
    relevance, query = np.clip(np.rint(y + 1), 0, 3), np.arange(ROWS) // 10
    make = partial(GBTRanker, maxIter=4, maxDepth=3, groupCol="query", via="local")
    check(make, x, relevance, workers=1, query=query)


@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize("sparse", [False, True])
def test_forest_when_rows_are_in_files_then_same_trees(via, sparse):
    make = partial(RandomForestRegressor, numTrees=5, maxDepth=5, seed=2, **VIA[via])
    check(make, *table(sparse), workers=1 + (via == "servers"))


@pytest.mark.parametrize("via", VIA)
def test_forest_when_classes_have_weights_then_same_trees(via):
    x, y = table()
    make = partial(RandomForestClassifier, numTrees=4, maxDepth=4, weightCol="weight", **VIA[via])
    check(make, x, np.digitize(y, [-1, 1]), workers=1 + (via == "servers"), weight=1.0 + np.arange(ROWS) % 3)


TRAINS = """
import resource, sys
import numpy as np, psutil, pyarrow as pa
from ps2.algorithms.training.faults import ColumnNames, Form
from ps2.algorithms.training.reading import read_spillable
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.local_worker import LocalTreeWorker
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.settings import BoostingSettings
from ps2.data.row_spill import RowSpill
from ps2.data.spilling import Spill

values = pa.array(np.random.default_rng(1).normal(size=1000 * 200))
features = pa.ListArray.from_arrays(np.arange(1001) * 200, values)
batch = pa.RecordBatch.from_pydict({"features": features, "label": np.arange(1000) % 7.0})
plan = BoostingPlan(settings=BoostingSettings(maxIter=1, maxDepth=3, maxBins=32), via="local")

def train(batches, mode):
    spill = RowSpill(Spill(mode), 0, 1)
    reading = read_spillable((batch for _ in range(batches)), ColumnNames(), Form(200, None), spill)
    worker = LocalTreeWorker(TreeProblem(Objective("squared"), 200, (3.0,)), plan, None, 1, None, reading)
    worker.catch_up(None, [])
    rounds = worker._grow_rounds()
    return type(reading.training).__name__, rounds[-1]["rows"]

train(20, "always")
room = 256 << 20
resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + room,) * 2)
print(*train(240, sys.argv[1]))
"""


@pytest.mark.parametrize("mode", ["never", "auto"])
def test_trees_when_rows_exceed_address_space_then_files(mode):
    # 384 MB of values, 576 MB in the form of rows in memory, in 256 MB.
    finished = subprocess.run([sys.executable, "-c", TRAINS, mode], capture_output=True, text=True, check=False)
    if mode == "never":
        assert "MemoryError" in finished.stderr
    else:
        assert finished.stdout.split() == ["SpilledRows", "240000"], finished.stderr


def rows_in_file(count):
    rng, spill = np.random.default_rng(1), RowSpill(Spill("always", limit_bytes=0, block_bytes=1 << 15), 0, 1)
    spill.append(Rows(sp.csr_array(rng.normal(size=(count, 2))), rng.integers(0, 2, count) + 0.0, np.ones(count)))
    return spill.finish()[0]


def boosted_state(rows, **options):
    problem, plan = TreeProblem(Objective("logistic"), 2, (0.0,)), plans.boosting(maxBins=4, **options)
    bins, _ = Quantiles.in_process(problem, 4, None).find_bins(rows)
    tracemalloc.start()
    state = BoostedRows(problem, plan, bins, (rows, None))
    state.compute_gradients()
    state.plant(0, (1.0, 1.0))
    return state


def forest_state(rows):
    problem, plan = (
        TreeProblem(Objective("logistic"), 2, (0.0,)),
        plans.forest("gini", 2, len(rows), numTrees=5, maxBins=4),
    )
    bins, _ = Quantiles.in_process(problem, 4, None).find_bins(rows)
    tracemalloc.start()
    state = ForestRows(problem, plan, rows)
    state.begin(bins, None, plan.scales(sum_bounds(state.exponents())))
    trees = GrowingTrees(problem, plan, bins, state, (1.0, 1.0))
    trees.plant(0, 2)
    return trees


@pytest.mark.parametrize(
    ("make", "row_bytes"),
    [(boosted_state, 2), (partial(boosted_state, subsamplingRate=0.5), 3), (forest_state, 4)],
    ids=["boosting", "samples", "forest"],
)
def test_rows_when_in_a_file_then_their_state_is_in_it(make, row_bytes):
    """In memory, a row has 72 bytes of ids, labels, weights, margins, gradients and numbers, or more."""
    rows = rows_in_file(100_000)
    try:
        make(rows_in_file(1000))  # loads kernels
        tracemalloc.stop()
        state = make(rows)
        held_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert state
    assert held_bytes < row_bytes * len(rows)
    assert peak_bytes < (row_bytes + 20) * len(rows)
