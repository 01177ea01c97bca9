"""Boosted trees: Figure 8 of the PS2 paper, nearly line for line.

spark-submit examples/gbdt.py FILE.libsvm [TREES]

A node's histograms are built and searched in a Spark stage each, as in the figure, so take few rows and features;
``ps2.algorithms.GBTClassifier`` is for many.
"""

import sys

import numpy as np
from pyspark.sql import SparkSession

from ps2 import DCV, PS2Context

path = sys.argv[1]
num_trees = int(sys.argv[2]) if len(sys.argv) > 2 else 5
bins, splits, learning_rate, reg_lambda, least_hessian = 16, 3, 0.3, 1.0, 1.0

spark = SparkSession.builder.appName("gbdt").getOrCreate()
ps = PS2Context.getOrCreate(spark, servers=2)


def leaf_of(tree, x):
    """The leaf of each row; ``tree`` has, by inner node: the feature, the last bin on the left, and the left child."""
    leaf = np.zeros(len(x), np.int64)
    for node, (feature, last, left) in tree.items():  # parents come before their children
        here = leaf == node
        leaf[here] = left + (x[here, feature] > last)
    return leaf


def gradients(trees, x, y):
    """First and second derivatives of the log-loss, and its sum, after some trees and their leaves' values."""
    margin = sum((values[leaf_of(tree, x)] for tree, values in trees), np.zeros(len(x)))
    p = 1 / (1 + np.exp(-margin))
    return p - y, p * (1 - p), np.logaddexp(0, margin) - y * margin


def build(x, some, by):
    """The histogram of some rows: the sum of ``by`` in each bin of each feature."""
    at = np.arange(x.shape[1]) * bins + x[some]
    return np.bincount(at.ravel(), np.repeat(by[some], x.shape[1]), x.shape[1] * bins)


def compute_info_gain(partition, grad, hess):
    """The best split of the features on this server: its gain, the feature and the last bin on the left."""
    g, h = grad.reshape(-1, bins).astype(float), hess.reshape(-1, bins).astype(float)
    left, total = (g.cumsum(1), h.cumsum(1)), (g.sum(1, keepdims=True), h.sum(1, keepdims=True))
    right = total[0] - left[0], total[1] - left[1]
    score = [part[0] ** 2 / (part[1] + reg_lambda) for part in (left, right, total)]
    gain = np.where(np.minimum(left[1], right[1]) < least_hessian, -np.inf, score[0] + score[1] - score[2])
    feature, last = np.unravel_index(gain.argmax(), gain.shape)
    return float(gain[feature, last]), partition.begin // bins + int(feature), int(last)


# Load the data, each partition as two arrays: bins of equal counts, and labels 0 and 1.
rows = spark.read.format("libsvm").load(path).repartition(2).rdd.map(lambda row: (row.features.toArray(), row.label))
sample = np.array([x for x, _ in rows.takeSample(False, 10_000, seed=1)])
cuts = np.quantile(sample, np.arange(1, bins) / bins, axis=0)


def binned(part):
    x, y = map(np.array, zip(*part, strict=True))
    yield np.stack([np.searchsorted(cut, column) for cut, column in zip(cuts.T, x.T, strict=True)], 1), y > 0


data = rows.mapPartitions(binned).cache()
count = rows.count()
dim = sample.shape[1] * bins

# Allocate two DCVs to store gradient histograms; all bins of a feature are on one server.
grad_hist = DCV.dense(dim, 2, align=bins).fill(0.0)
hess_hist = DCV.derive(grad_hist).fill(0.0)

trees = []
for number in range(num_trees):
    tree, values = {}, np.zeros(2 * splits + 1)
    nodes = [0]
    while nodes:
        i = nodes.pop(0)
        grad_hist.zero()
        hess_hist.zero()

        def build_histograms(part, tree=tree, i=i):
            x, y = part
            grad, hess, _ = gradients(trees, x, y)
            some = leaf_of(tree, x) == i
            # Build histograms.
            local_grad = build(x, some, grad)
            local_hess = build(x, some, hess)
            grad_hist.add(local_grad)
            hess_hist.add(local_hess)

        data.foreach(build_histograms)
        # All rows of the node are in the bins of the first feature.
        first = np.arange(bins)
        values[i] = -learning_rate * grad_hist.pull(first).sum() / (hess_hist.pull(first).sum() + reg_lambda)
        if len(tree) == splits:
            continue
        # Find the optimal split, on the servers.
        gain, feature, last = grad_hist.zip(hess_hist).mapPartitionsWithIndex(compute_info_gain).max()
        if gain > 0:
            left = 2 * len(tree) + 1
            tree[i] = feature, last, left
            nodes += [left, left + 1]
    trees.append((tree, values))
    loss = data.map(lambda part: gradients(trees, *part)[2].sum()).sum()
    print(f"tree {number + 1:3d}  loss {loss / count:.4f}")
ps.stop()
spark.stop()
