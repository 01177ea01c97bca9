"""A program that grows trees with a checkpoint after each clock, and is killed (-9) in the middle of the second tree.

python trees_killed_app.py FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from boosting import PROBLEM, RECIPE, facts_of, table

from ps2 import PS2Context
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Table
from ps2.algorithms.trees import trainer

NAMED = replace(RECIPE, rounds=6, rate=0.9, validate=True, validation_tol=0.001, name="trees")
SEARCHES = 7


def grow(ps, spark, recipe=NAMED, workers=2, on_step=lambda step: None):
    """Train on the table, a third of whose rows are held out."""
    x, y = table()
    held = np.arange(len(y)) % 3 == 0
    rows = [(row.tolist(), float(label), bool(out)) for row, label, out in zip(x, y, held, strict=True)]
    frame = spark.createDataFrame(rows, "features array<double>, label double, held boolean").repartition(workers)
    columns = ColumnNames(validation="held")
    return trainer.train(ps, Table(frame, columns, workers), PROBLEM, recipe, facts_of(y[~held]), on_step)


def main(folder):
    searches, search = [], trainer.OnFleet.best_splits

    def dying(fleet, growth, recipe):
        searches.append(1)
        if len(searches) == SEARCHES:
            os.kill(os.getpid(), signal.SIGKILL)
        return search(fleet, growth, recipe)

    trainer.OnFleet.best_splits = dying
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=folder, checkpointEverySteps=1) as ps:
        grow(ps, spark)


if __name__ == "__main__":
    main(sys.argv[1])
