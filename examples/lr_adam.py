"""Logistic regression with Adam: Figure 3 of the PS2 paper, nearly line for line.

spark-submit examples/lr_adam.py FILE.libsvm [STEPS]
"""

import sys

import numpy as np
from pyspark.sql import SparkSession

from ps2 import DCV, PS2Context

path = sys.argv[1]
num_iterations = int(sys.argv[2]) if len(sys.argv) > 2 else 50
fraction, learning_rate = 0.5, 0.1
beta1, beta2, eps = 0.9, 0.999, 1e-8  # of the gradients and of their squares


def parse(line):
    """One row: its label (0 or 1), the numbers of its features from 0, and their values."""
    label, *features = line.split()
    pairs = [feature.split(":") for feature in features]
    keys = np.array([int(key) - 1 for key, _ in pairs], dtype=np.int64)
    return float(float(label) > 0), keys, np.array([float(value) for _, value in pairs])


def calculate_gradient(w, rows):
    """The summed gradient of the log-loss at ``w``, the loss, and the number of rows."""
    g, loss, count = np.zeros_like(w), 0.0, 0
    for label, keys, values in rows:
        margin = values @ w[keys]
        g[keys] += (1 / (1 + np.exp(-margin)) - label) * values
        loss += np.logaddexp(0, margin) - label * margin
        count += 1
    return g, loss, count


def update_model(step):
    """Equation 1 of the paper, run by each server on its own columns."""

    def update(w, v, s, g):
        v[:] = beta1 * v + (1 - beta1) * g
        s[:] = beta2 * s + (1 - beta2) * g**2
        w -= learning_rate / (np.sqrt(s / (1 - beta2**step)) + eps) * v / (1 - beta1**step)

    return update


spark = SparkSession.builder.appName("lr_adam").getOrCreate()
ps = PS2Context.getOrCreate(spark, servers=2)

# Load the data as an RDD.
data = spark.sparkContext.textFile(path, 2).map(parse).cache()
dim = data.map(lambda row: int(row[1].max(initial=-1)) + 1).max()

# Allocate four DCVs for the model.
weight = DCV.dense(dim, 4)
velocity = DCV.derive(weight).fill(0.0)
square = DCV.derive(weight).fill(0.0)
gradient = DCV.derive(weight)

for i in range(1, num_iterations + 1):
    gradient.zero()

    # Gradient computation, in the tasks.
    def compute(rows):
        local_weight = weight.pull()
        local_gradient, loss, count = calculate_gradient(local_weight, rows)
        gradient.add(local_gradient)
        yield loss, count

    loss, count = (
        data.sample(False, fraction, seed=i).mapPartitions(compute).reduce(lambda a, b: (a[0] + b[0], a[1] + b[1]))
    )

    # Model update, on the servers.
    weight.zip(velocity, square, gradient.div(count)).mapPartitions(update_model(i))
    if i == 1 or i % 10 == 0:
        print(f"step {i:4d}  loss {loss / count:.4f}")

print(f"norm of the weights {weight.norm2():.4f}")
ps.stop()
spark.stop()
