"""Vectors of a graph's vertices: Figure 6 of the PS2 paper, nearly line for line.

spark-submit examples/deepwalk.py EDGES.txt [ITERATIONS]

A line of the file is "source target": numbers from 0 on. Each pair is a request or two, as in the figure, so take a
small graph; ``ps2.algorithms.DeepWalk`` is for large ones.
"""

import sys

import numpy as np
from pyspark.sql import SparkSession

from ps2 import DCV, PS2Context
from ps2.algorithms import RandomWalks

path = sys.argv[1]
num_iterations = int(sys.argv[2]) if len(sys.argv) > 2 else 5
K, eta = 16, 0.1
window = 2

spark = SparkSession.builder.appName("deepwalk").getOrCreate()
ps = PS2Context.getOrCreate(spark, servers=2)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def calculate_similar(edges):
    """Pairs of vertices: those near each other in random walks are similar (1), and as many at random are not (0)."""

    def pairs(row):
        walk, rng = row["walk"], np.random.default_rng([row["epoch"], row["walk"][0]])
        for at, u in enumerate(walk):
            for v in walk[max(0, at - window) : at] + walk[at + 1 : at + 1 + window]:
                yield u, v, 1
                yield u, int(rng.integers(V)), 0

    return RandomWalks(numWalks=1, walkLength=8, seed=1).transform(edges).rdd.flatMap(pairs)


def calculate_loss(dot, similar):
    return np.logaddexp(0, -dot if similar else dot)


lines = spark.sparkContext.textFile(path, 2).map(lambda line: tuple(map(int, line.split())))
edges = spark.createDataFrame(lines, "src long, dst long").cache()
V = edges.selectExpr("max(greatest(src, dst))").first()[0] + 1

# Allocate DCVs to store the vectors of vertices: of each as the first of a pair, and as the second.
first = DCV.dense(K, V * 2)
embeddings = [first, *(DCV.duplicate(first) for _ in range(1, V * 2))]
for i in range(V):
    embeddings[i].push(np.random.default_rng(i).normal(0, 0.3, K))

# Process the input to sample similar pairs.
data = calculate_similar(edges).cache()
count = data.count()

for i in range(num_iterations):

    def update(pair):
        u, v, similar = pair
        input_u = embeddings[u]
        output_v = embeddings[v + V]
        # Dot product, on the servers.
        dot = input_u.dot(output_v)
        sig = similar - sigmoid(dot)
        # Update, on the servers.
        input_u.iaxpy(output_v, sig * eta)
        output_v.iaxpy(input_u, sig * eta)
        return calculate_loss(dot, similar)

    loss = data.map(update).sum()
    print(f"iteration {i + 1:3d}  loss {loss / count:.4f}")

vectors = np.array([embeddings[i].pull() for i in range(V)])
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
for i in range(min(V, 10)):
    nearest = np.argsort(-(vectors @ vectors[i]))[1:4]
    print(f"nearest to {i}: {' '.join(map(str, nearest))}")
ps.stop()
spark.stop()
