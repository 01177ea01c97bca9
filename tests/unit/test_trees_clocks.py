"""What workers are told in the clocks of a training of trees that ends early."""

from __future__ import annotations

import numpy as np
from boosting import PROBLEM, RECIPE, facts_of, table
from in_process import ArrayTable, training_context

from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.trees.driver_messages import AddHistograms, GrowTask, PlantTrees, SumGradients
from ps2.algorithms.trees.program import train
from ps2.algorithms.trees.worker import TreeWorker
from tests import plans


def test_trees_when_training_ends_early_then_no_extra_clock(monkeypatch):
    """The loss of rows held out comes with the root of the tree after: of that one nothing else is built."""
    tasks, do = [], TreeWorker.__call__

    def noting(self, worker, task):
        if worker.rank == 0 and isinstance(task, GrowTask):
            tasks.append(type(task))
        do(self, worker, task)

    monkeypatch.setattr(TreeWorker, "__call__", noting)
    recipe = plans.changed(RECIPE, maxIter=6, stepSize=0.7, validationIndicatorCol="held", validationTol=0.001)
    x, y = table()
    held = np.arange(len(y)) % 3 == 0
    rows = ArrayTable.of(x, y, 2, ColumnNames(validation="held"), held=held)
    with training_context(servers=2) as ps:
        created = train(ps, rows, PROBLEM, recipe, facts_of(y[~held]))
    grown = created.history.steps
    assert len(created.model.trees) < grown < recipe.settings.maxIter
    assert [tasks.count(task) for task in (SumGradients, PlantTrees)] == [1, grown + 1]
    assert tasks[-1] is PlantTrees
    assert tasks.count(AddHistograms) + 2 + grown == len(tasks)
    assert tasks.count(AddHistograms) <= grown * recipe.settings.maxDepth
