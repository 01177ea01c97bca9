"""A process that fits models of all families to rows that come batch by batch, in a control group of little memory.

``python -m tests.fits_in_group MODE BATCHES FOLDER`` prints for each family a hash of the model, and whether rows were
in files. The process enters the group of the folder after small trainings, which compile the kernels; "": no group.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from ps2.algorithms.clusters import program as clusters
from ps2.algorithms.clusters.plan import KMeansPlan
from ps2.algorithms.clusters.settings import KMeansSettings
from ps2.algorithms.factors.ccd_descent import SideDescent, read_ratings
from ps2.algorithms.factors.dealing import PACKED
from ps2.algorithms.factors.plan import FactorizationPlan
from ps2.algorithms.factors.settings import FactorizationSettings
from ps2.algorithms.topics.online import OnlineProgram
from ps2.algorithms.topics.plan import OnlinePlan
from ps2.algorithms.topics.settings import LDASettings
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Facts
from ps2.algorithms.trees import program as boosting
from ps2.algorithms.trees.forests import program as forests
from ps2.algorithms.trees.forests.plan import ForestPlan
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.settings import BoostingSettings, ForestSettings
from ps2.algorithms.trees.tree import tree_as_data
from ps2.data.row_spill import RowSpill
from ps2.data.spilling import Spill
from tests.in_process import ArrayTable, training_context

# A batch of dense rows has 800 kB of values, and one of ratings, by user and by item, 600 kB.
ROWS, DIM, RATINGS, USERS, ITEMS = 1000, 100, 25_000, 5000, 400
SIZES: dict[str, Any] = {"maxBins": 32, "maxDepth": 3, "seed": 1}
LABELLED, UNLABELLED = ColumnNames(), ColumnNames(label=None)


def table(batches: int, columns: ColumnNames = LABELLED) -> ArrayTable:
    """Return a table whose batches share memory."""
    x = np.random.default_rng(1).normal(size=(ROWS, DIM))
    one = ArrayTable.of(x, None if columns.label is None else x[:, 0] + np.arange(ROWS) % 7.0, columns=columns)
    return ArrayTable([one.dealt[0] * batches], columns, 1)


def fit_boosted(ps: Any, batches: int, mode: Any) -> tuple[Any, Any]:
    plan = BoostingPlan(settings=BoostingSettings(maxIter=2, spill=mode, **SIZES), via="local")
    problem, rows = TreeProblem(Objective("squared"), DIM, (3.0,)), ROWS * batches
    trained = boosting.train(ps, table(batches), problem, plan, Facts(rows, rows, rows, (), 3.0, 1.0))
    return [tree_as_data(tree) for tree in trained.model.trees], trained.history


def fit_forest(ps: Any, batches: int, mode: Any) -> tuple[Any, Any]:
    rows, settings = ROWS * batches, ForestSettings(numTrees=2, spill=mode, **SIZES)
    plan = ForestPlan(settings=settings, impurity="variance", classes=0, rows=rows, via="local")
    problem = TreeProblem(Objective("squared"), DIM, (3.0,))
    trained = forests.grow(ps, table(batches), problem, plan, Facts(rows, rows, rows, (), 3.0, 1.0))
    return [tree_as_data(tree) for tree in trained.model.forest.trees], trained.history


def fit_clusters(ps: Any, batches: int, mode: Any) -> tuple[Any, Any]:
    settings = KMeansSettings(k=3, seed=3, maxIter=2, tol=0.0, spill=mode, initMode="random")
    plan = KMeansPlan(settings=settings, dim=DIM, clusters=3)
    result = clusters.train(ps, table(batches, UNLABELLED), plan)
    return result.centres, result.history


def fit_topics(ps: Any, batches: int, mode: Any) -> tuple[Any, Any]:
    counts = sp.csr_array(np.random.default_rng(1).integers(0, 3, (ROWS, DIM)))
    documents = ArrayTable.of(counts, columns=UNLABELLED).dealt[0] * batches
    settings = LDASettings(
        k=3, maxIter=2, seed=3, optimizer="online", sync="gradient", subsamplingRate=0.02, spill=mode
    )
    plan = OnlinePlan(settings=settings, vocabulary=DIM)
    result = OnlineProgram.train(ps, ArrayTable([documents], UNLABELLED, 1), plan)
    return result.model.counts, result.history


def fit_factors(ps: Any, batches: int, mode: Any) -> tuple[Any, Any]:
    plan = FactorizationPlan(settings=FactorizationSettings(rank=4, solver="ccd"))

    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(batches):
            rng = np.random.default_rng(number)
            for by_item in (False, True):
                cells: dict[str, list[Any]] = {name: [0] for name in PACKED.names} | {"by_item": [by_item]}
                cells |= {
                    "weight": [None],
                    "held": [None],
                    "user": [rng.integers(0, USERS, RATINGS, np.int32).tobytes()],
                }
                cells["item"] = [rng.integers(0, ITEMS, RATINGS, np.int32).tobytes()]
                cells["rating"] = [rng.random(RATINGS, np.float32).tobytes()]
                yield pa.RecordBatch.from_pydict(cells, PACKED)

    ratings = read_ratings(rows(), (0, USERS), (0, ITEMS), plan, RowSpill(Spill(mode), 0, 1))
    items = np.random.default_rng(1).normal(size=(ITEMS, 4)).astype(np.float32)
    side = SideDescent(plan, ratings.users)
    side.solve(lambda columns: Answer(items[columns]), np.zeros((0, 0)))
    return side.vectors, Answer(ratings.spilled)


class Answer:
    """A value that is there at once."""

    def __init__(self, value: Any) -> None:
        self.spilled = value

    def result(self) -> Any:
        return self.spilled


FITS: dict[str, Callable[[Any, int, Any], tuple[Any, Any]]] = {
    "boosted": fit_boosted,
    "forest": fit_forest,
    "clusters": fit_clusters,
    "topics": fit_topics,
    "factors": fit_factors,
}


def main(mode: str, batches: str, folder: str) -> None:
    for fit in FITS.values():
        with training_context(1, 16 << 20) as ps:
            fit(ps, 2, "always")
    if folder:
        Path(folder, "cgroup.procs").write_text(str(os.getpid()))
    np.set_printoptions(threshold=sys.maxsize, floatmode="unique")
    for family, fit in FITS.items():
        with training_context(1, 16 << 20) as ps:
            model, history = fit(ps, int(batches), mode)
        print(family, hashlib.sha256(repr(model).encode()).hexdigest(), bool(history.spilled), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
