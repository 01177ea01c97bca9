"""ONNX Runtime of several versions, the oldest that docs/mlflow.md names among them, scores files as the models do."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from tree_builder import TreeBuilder

import ps2.onnx
from ps2.algorithms import GBTRegressionModel
from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.tree import Forest

pytestmark = pytest.mark.nightly

DIM, CATEGORIES, FORESTS = 4, 70, 100
SCORE = """
import sys, numpy as np, onnxruntime
assert onnxruntime.__version__ == sys.argv[1], onnxruntime.__version__
x = np.load("rows.npy")
for number in range(int(sys.argv[2])):
    session = onnxruntime.InferenceSession(f"{number}.onnx", providers=["CPUExecutionProvider"])
    found, = session.run(["prediction"], {"features": x})
    np.testing.assert_allclose(found, np.load(f"{number}.npy"), rtol=1e-12, atol=1e-12)
"""


def tree(rng, has_sets):
    draft, leaves = TreeBuilder(rng.normal(), 1.0, 1), [0]
    for _ in range(rng.integers(5)):
        node, feature = leaves.pop(rng.integers(len(leaves))), int(rng.integers(DIM))
        is_set = has_sets and feature == 0
        test = rng.random(rng.integers(1, CATEGORIES)) < 0.5 if is_set else float(rng.integers(3))
        draft.split(node, feature, test, bool(rng.integers(2)), 1.0)
        leaves += [draft.add_child(node, rng.normal(), 1.0, 1) for _ in range(2)]
    return draft.finish()


@pytest.mark.parametrize(
    ("version", "has_sets"), [("1.21.0", False), ("1.23.0", True), ("1.24.4", True), ("1.29.0", True), ("1.32.0", True)]
)
def test_small_forests_when_a_runtime_scores_then_as_the_model(version, has_sets, tmp_path):
    rng = np.random.default_rng(3)
    x = rng.integers(-1, CATEGORIES, (100, DIM)).astype(float)
    x[:, 1:] %= 4
    x[rng.random(x.shape) < 0.1] = np.nan
    np.save(tmp_path / "rows.npy", x)
    for number in range(FORESTS):
        forest = Forest(tuple(tree(rng, has_sets) for _ in range(rng.integers(1, 7))), np.ones(1), DIM)
        ps2.onnx.export(GBTRegressionModel(GBTModel(forest)), str(tmp_path / f"{number}.onnx"))
        np.save(tmp_path / f"{number}.npy", GBTModel(forest).predict(x))
    runtime = tmp_path / "runtime"
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-deps")
    subprocess.run([*pip, "--target", runtime, f"onnxruntime=={version}"], check=True)
    score = [sys.executable, "-W", "ignore", "-c", SCORE, version, str(FORESTS)]
    subprocess.run(score, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(runtime)}, check=True, timeout=120)
