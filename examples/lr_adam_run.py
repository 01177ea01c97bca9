"""Logistic regression with Adam, with workers that stay: Figure 3 of the PS2 paper without a Spark stage a step.

spark-submit examples/lr_adam_run.py FILE.libsvm [STEPS]
"""

import sys

import numpy as np
from pyspark.sql import SparkSession
from scipy.special import expit

from ps2 import DCV, PS2Context
from ps2.data.rows import Rows

path = sys.argv[1]
num_iterations = int(sys.argv[2]) if len(sys.argv) > 2 else 50
fraction, learning_rate = 0.5, 0.1

spark = SparkSession.builder.appName("lr_adam_run").getOrCreate()
ps = PS2Context.getOrCreate(spark, servers=2)

# Load the data as a DataFrame of labels (0 or 1; in the file -1 and 1, too) and sparse vectors.
data = spark.read.format("libsvm").load(path).selectExpr("double(label > 0) as label", "features")
dim = data.first().features.size
minibatch = fraction * data.count()

# Allocate four DCVs for the model.
weight = DCV.dense(dim, 4)
velocity = DCV.derive(weight).fill(0.0)
square = DCV.derive(weight).fill(0.0)
gradient = DCV.derive(weight).fill(0.0)


def work(worker, batches):
    """Gradient computation, in a task that keeps its rows."""
    rows = Rows.fromBatches(batches).localize()
    for _ in worker.clocks(num_iterations):
        part = rows.sample(fraction, worker.rng())
        margin = part.x @ weight.pull(part.keys)
        gradient.add(part.x.T @ (expit(margin) - part.y), part.keys)
        worker.log(loss=np.sum(np.logaddexp(0, margin) - part.y * margin) / len(part))


def update(t):
    """Model update, on the servers, whenever all workers have finished a clock: Equation 1 of the paper."""
    with ps.batch():
        gradient.div(minibatch)
        weight.zip(velocity, square, gradient).apply("adam", lr=learning_rate, step=t + 1)
        gradient.zero()


def show(rank, clock, name, value):
    """What the workers log, while they work."""
    if rank == 0 and clock % 10 == 0:
        print(f"step {clock + 1:4d}  {name} {value:.4f}")


ps.run(data, work, workers=2, onClock=update, onLog=show)
print(f"norm of the weights {weight.norm2():.4f}")
ps.stop()
spark.stop()
