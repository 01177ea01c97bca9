"""A click log with a million features: workers that stay, the estimator, and pyspark.ml on the same rows.

python examples/clicks.py [--rows N] [--features N] [--out FOLDER]

The log is generated from a model that is known, so it is known too how good any model can be.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from pyspark.ml import classification
from pyspark.ml.linalg import SparseVector, VectorUDT
from pyspark.sql.types import DoubleType, StructField, StructType
from scipy.stats import rankdata

from ps2 import DCV, PS2Context
from ps2.algorithms import LogisticRegression
from ps2.data.rows import Rows
from ps2.run.spark.session import get_or_create_session

FIELDS = 20  # of a row, such as site, advertiser and hour; each has one of its many values
WORKERS = 2
POPULARITY = 20  # the larger, the more of the rows have one of few values
STEPS, FRACTION, RATE = 100, 0.05, 0.01
ITERATIONS, PENALTY = 10, 3e-4
SEED = 7

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--rows", type=int, default=100_000)
parser.add_argument("--features", type=int, default=1_000_000)
parser.add_argument("--out", type=Path, default=Path("out"))
asked = parser.parse_args()
dim, values = asked.features, asked.features // FIELDS


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def clicks(part, count):
    """Rows of one part of the log: features, of which few are popular and most are rare, clicks, and the true odds."""
    truth = np.random.default_rng(SEED).standard_normal(dim, np.float32) / 2
    rng = np.random.default_rng([SEED, part])
    popularity = (values * rng.random((count, FIELDS)) ** POPULARITY).astype(np.int32)
    features = popularity + values * np.arange(FIELDS, dtype=np.int32)
    odds = truth[features].sum(axis=1)
    return features, (rng.random(count) < sigmoid(odds)).astype(float), odds


def rows(part):
    """The same for Spark."""
    features, clicked, _ = clicks(part, asked.rows // WORKERS)
    ones = np.ones(FIELDS)
    for label, row in zip(clicked.tolist(), features, strict=True):
        yield label, SparseVector(dim, row, ones)


def auc(clicked, scores):
    """Area under the ROC curve: how often a click has a higher score than no click."""
    positive = clicked > 0
    ranks, count = rankdata(scores)[positive], int(positive.sum())
    return (ranks.sum() - count * (count + 1) / 2) / (count * (len(clicked) - count))


spark = get_or_create_session(f"local[{WORKERS}]", "clicks")
ps = PS2Context.getOrCreate(spark, servers=2)

schema = StructType([StructField("label", DoubleType()), StructField("features", VectorUDT())])
parts = spark.sparkContext.parallelize(range(WORKERS), WORKERS)
log = spark.createDataFrame(parts.flatMap(rows), schema, verifySchema=False).persist()
print(f"{log.count():,} rows of {FIELDS} features out of {dim:,}")
features, clicked, odds = clicks(WORKERS, 10_000)  # a part that nobody trains on
print(f"test AUC of the true model: {auc(clicked, odds):.4f}")

# -- workers that stay: Adam on the servers, one batch of calls a step ------------------------------------------------

weight = DCV.dense(dim, 4)
velocity, square, gradient = weight.derive(), weight.derive(), weight.derive()


def work(worker, batches):
    """A worker's part of each step: the gradient of a sample of its rows."""
    mine = Rows.fromBatches(batches).localize()
    for _ in worker.clocks(STEPS):
        part = mine.sample(FRACTION, worker.rng())
        w = weight.pull(part.keys)
        gradient.add(part.x.T @ (sigmoid(part.x @ w) - part.y), part.keys)


def update(step):
    """After each step: Adam where the vectors are. Now and then, a look at the rows that nobody trains on."""
    with ps.batch():
        gradient.div(FRACTION * asked.rows)
        weight.zip(velocity, square, gradient).apply("adam", lr=RATE, step=step + 1)
        gradient.zero()
    if step + 1 in (1, 5, 15, 50, STEPS):
        print(f"step {step + 1:4d}  test AUC {auc(clicked, weight.pull()[features].sum(axis=1)):.4f}")


result = ps.run(log, work, workers=WORKERS, onClock=update)
result.summary()
asked.out.mkdir(parents=True, exist_ok=True)
result.plot(asked.out / "clicks.png", clocks=(50, 80))
print(f"what each worker did when, in 30 of the clocks: {asked.out / 'clicks.png'}")

# -- the estimator, and pyspark.ml's beside it: one objective, the same number of iterations of L-BFGS -----------------


def fit(name, estimator):
    """Fit, and print how long that took and how good it is; return the seconds."""
    began_s = time.monotonic()
    model = estimator.fit(log)
    taken_s = time.monotonic() - began_s
    scores = model.coefficients.toArray()[features].sum(axis=1)
    objective = model.summary.objectiveHistory[-1]
    print(f"{name:36s} {taken_s:6.1f} s   objective {objective:.4f}   test AUC {auc(clicked, scores):.4f}", flush=True)
    return taken_s


params = {"maxIter": ITERATIONS, "regParam": PENALTY, "standardization": False, "tol": 0.0}
ours_s = fit(f"ps2 LogisticRegression, {WORKERS} workers", LogisticRegression(numWorkers=WORKERS, **params))
theirs_s = fit("pyspark.ml LogisticRegression", classification.LogisticRegression(**params))
print(f"{ITERATIONS} iterations of L-BFGS, {dim:,} features: pyspark.ml takes {theirs_s / ours_s:.1f} times as long")
ps.stop()
spark.stop()
