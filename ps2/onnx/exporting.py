"""``export``: a trained model as an ONNX file."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from ps2.algorithms.clusters.model import KMeansClusters
from ps2.algorithms.frame.heads import ClassHead, ClusterHead, ValueHead, VotesHead
from ps2.algorithms.frame.scoring import FeatureScoring
from ps2.algorithms.linear.model import Weights
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.tree import leaf_tree
from ps2.errors import UsageError
from ps2.onnx.checking import check_scores
from ps2.onnx.graph import FEATURES, Graph, add_trees
from ps2.storage.files import resolve_url, write_atomically
from ps2.version import __version__

# The maximum size of a protocol buffer, and thus of an ONNX file.
MAX_BYTES = 2**31 - 1
# The classes of trained models that can be exported, and their names in messages.
FITTED_CLASSES = (Weights, GBTModel, RandomForest, KMeansClusters)
MODEL_NAMES = "linear models, factorization machines, boosted trees, random forests and k-means"


def export(model: Any, path: str) -> None:
    """Write a trained model as an ONNX file for ONNX Runtime and other scorers.

    The graph has one input, ``features``: float64 of shape (n, features), in the order of training. Its outputs are the
    columns that ``transform`` adds, float64: for classes, rawPrediction and probability of shape (n, classes), and
    prediction of shape (n,). All computations are in float64: thresholds of trees must separate the same values as in
    ``transform``. A runtime refuses float32 input. NaN is a missing value for trees. With other
    models, ``transform`` raises an error for rows with NaN or infinity; the graph's prediction for them is NaN.

    The file needs ONNX Runtime 1.18; with trees 1.21; with sets of categories 1.23. If the package onnxruntime is
    installed, it scores a sample of rows before the file is written; with an older version, there is a warning in the
    log instead.

    Args:
        model: a trained linear model (LogisticRegression, LinearSVC, LinearRegression), factorization machine, boosted
            trees, random forest, or k-means by Euclidean distances.
        path: a local file or an fsspec URL; the new file replaces an existing one when it is complete.

    Raises:
        UsageError: ONNX cannot express the model, or ONNX Runtime scores the sample differently; the message gives the
            reason, and nothing is written.
        RecoveryError: the file system fails.
    """
    proto = as_onnx(model)
    size = proto.ByteSize()
    if size > MAX_BYTES:
        raise UsageError(f"export: expected at most {MAX_BYTES:,} bytes, the limit of an ONNX file, got {size:,}")
    onnx.checker.check_model(proto)
    fs, file_path = resolve_url(path, "path")
    file = proto.SerializeToString()
    check_scores(file, model.scoring(), model.fitted)
    write_atomically(fs, file_path, [file])


def as_onnx(model: Any) -> onnx.ModelProto:
    """Return the graph that ``export`` writes; for the errors, see ``export``."""
    scoring = model.scoring() if hasattr(model, "scoring") else None
    fitted = model.fitted if isinstance(scoring, FeatureScoring) else None
    if not isinstance(scoring, FeatureScoring) or not isinstance(fitted, FITTED_CLASSES):
        raise UsageError(f"export: expected {MODEL_NAMES}, got a {type(model).__name__}")
    if scoring.margin is not None:
        raise UsageError("export: baseMarginCol is set, but the graph has no such input: clear it first")
    graph = Graph(scoring.dim)
    margins, unusable = _margins(graph, fitted)
    predictions = add_head(graph, scoring.head, margins, unusable)
    for name, kind in scoring.outputs:
        if kind not in predictions:
            raise UsageError(f"export: column {name!r} cannot be computed by ONNX: set its param to '' first")
        graph.output(name, *predictions[kind])
    names = [scoring.features] if isinstance(scoring.features, str) else list(scoring.features)
    return graph.model(__version__, repr(model), {"model": type(model).__name__, "columns": json.dumps(names)})


def _margins(graph: Graph, fitted: Any) -> tuple[str, str | None]:
    """Add the nodes of a model's margins; return the names of the margins and of ``unusable`` (see ``add_head``)."""
    if isinstance(fitted, GBTModel):
        forest = fitted.forest
        # The operator needs at least one tree: without trees, add trees of one leaf with the value 0.
        trees = forest.trees or tuple(leaf_tree(0.0) for _ in range(forest.width))
        sums = add_trees(graph, trees, [[tree.value] for tree in trees], forest.width)
        return graph.node("Add", sums, graph.constant(forest.base)), None
    if isinstance(fitted, RandomForest):
        trees = fitted.forest.trees
        if fitted.shares:
            values = [list(np.ascontiguousarray(shares.T)) for shares in fitted.shares]
            return add_trees(graph, trees, values, fitted.classes or 1), None
        sums = add_trees(graph, trees, [[tree.value] for tree in trees], 1)
        return graph.node("Div", sums, graph.constant([float(len(trees))])), None
    # 0 times NaN or infinity is NaN, so the sum is 0 for usable rows and NaN for others.
    zeros = graph.node("Mul", FEATURES, graph.constant([0.0]))
    unusable = graph.node("ReduceSum", zeros, graph.constant([1], np.int64), keepdims=1)
    margins = _nearest(graph, fitted) if isinstance(fitted, KMeansClusters) else _weighted(graph, fitted)
    return graph.node("Add", margins, unusable), unusable


def _weighted(graph: Graph, weights: Weights) -> str:
    """Add a linear model or a factorization machine; return the name of its margins."""
    problem, w = weights.problem, weights.array("export")
    if not np.isfinite(weights.biases).all():
        raise UsageError("export: expected finite intercepts, but all training rows were of one class")
    intercepts = graph.constant(weights.biases[: problem.outputs])
    if not problem.loss.startswith("fm"):
        return graph.node("Add", graph.node("MatMul", FEATURES, graph.constant(w)), intercepts)
    # With factors v of shape (features, k), the sum over pairs of features is ((x v)^2 - x^2 v^2) / 2, summed over k.
    linear, factors = graph.constant(w[:, :1]), w[:, 1:]
    summed = graph.node("MatMul", FEATURES, graph.constant(factors))
    squares = graph.node("MatMul", graph.node("Mul", FEATURES, FEATURES), graph.constant(factors**2))
    pairs = graph.node("Sub", graph.node("Mul", summed, summed), squares)
    total = graph.node("ReduceSum", pairs, graph.constant([1], np.int64), keepdims=1)
    crossed = graph.node("Mul", total, graph.constant([0.5]))
    return graph.node("Add", graph.node("Add", graph.node("MatMul", FEATURES, linear), crossed), intercepts)


def _nearest(graph: Graph, clusters: KMeansClusters) -> str:
    """Add k-means; return the name of the rows' clusters, shape (n, 1)."""
    if clusters.distance != "euclidean":
        raise UsageError(
            f"export: expected k-means by Euclidean distances, got {clusters.distance!r}: rows of zeros, for which "
            "transform raises an error, would get a cluster"
        )
    features = FEATURES
    if clusters.centres.dtype == np.float32:  # transform also rounds features to float32
        features = graph.node("Cast", graph.node("Cast", FEATURES, to=TensorProto.FLOAT), to=TensorProto.DOUBLE)
    rows = graph.node("Unsqueeze", features, graph.constant([1], np.int64))
    differences = graph.node("Sub", rows, graph.constant(clusters.centres[None].astype(np.float64)))
    distances = graph.node("ReduceSumSquare", differences, graph.constant([2], np.int64), keepdims=0)
    return graph.node("Cast", graph.node("ArgMin", distances, axis=1, keepdims=1), to=TensorProto.DOUBLE)


def add_head(graph: Graph, head: object, margins: str, unusable: str | None) -> dict[str, tuple[str, int | None]]:
    """Add the nodes of a head; return the name and width of each kind of prediction.

    Args:
        margins: the margins, shape (n, outputs).
        unusable: the name of a value of shape (n, 1): NaN for rows for which ``transform`` raises an error, else 0. It
            is added to predictions. None: there are no such rows.
    """
    if isinstance(head, ValueHead):
        raw = graph.node("Exp", margins) if head.link == "exp" else margins
        return {"prediction": (_flat(graph, raw), None)}
    if isinstance(head, ClusterHead):
        return {"prediction": (_with_nan(graph, _flat(graph, margins), unusable), None)}
    if isinstance(head, ClassHead):
        raw, probability = _class_scores(graph, head, margins)
        score = raw if probability is None else probability
        if head.threshold is not None:
            class_1_score = graph.node("Gather", score, graph.constant(1, np.int64), axis=1)
            is_class_1 = graph.node("Greater", class_1_score, graph.constant([head.threshold]))
            prediction = graph.node("Cast", is_class_1, to=TensorProto.DOUBLE)
        else:
            prediction = _argmax(graph, score, head.thresholds)
        predictions = {"raw": (raw, head.classes), "prediction": (_with_nan(graph, prediction, unusable), None)}
        return predictions if probability is None else {**predictions, "probability": (probability, head.classes)}
    if isinstance(head, VotesHead):
        total = graph.node("ReduceSum", margins, graph.constant([1], np.int64), keepdims=1)
        is_empty = graph.node("LessOrEqual", total, graph.constant([0.0]))
        fraction = graph.node("Div", margins, graph.node("Where", is_empty, graph.constant([1.0]), total))
        probability = graph.node(
            "Where", is_empty, graph.constant(np.full((1, head.classes), 1.0 / head.classes)), fraction
        )
        return {
            "raw": (margins, head.classes),
            "probability": (probability, head.classes),
            "prediction": (_argmax(graph, probability, head.thresholds), None),
        }
    raise UsageError(f"export: {type(head).__name__} has no ONNX graph")


def _class_scores(graph: Graph, head: ClassHead, margins: str) -> tuple[str, str | None]:
    """Return the names of raw predictions and of probabilities (None: there are none), shape (n, classes)."""
    if head.link == "softmax":
        return margins, graph.node("Softmax", margins, axis=1)
    raw = graph.node("Concat", graph.node("Neg", margins), margins, axis=1)
    if head.link is None:
        return raw, None
    class_0 = graph.node("Sigmoid", graph.node("Neg", margins))
    return raw, graph.node("Concat", class_0, graph.node("Sub", graph.constant([1.0]), class_0), axis=1)


def _argmax(graph: Graph, score: str, thresholds: tuple[float, ...] | None) -> str:
    """Return the class with the largest score, or ratio of score and threshold, where 0 / 0 counts as -inf."""
    if thresholds is not None:
        ratio = graph.node("Div", score, graph.constant([thresholds]))
        score = graph.node("Where", graph.node("IsNaN", ratio), graph.constant([-np.inf]), ratio)
    return graph.node("Cast", graph.node("ArgMax", score, axis=1, keepdims=0), to=TensorProto.DOUBLE)


def _with_nan(graph: Graph, prediction: str, unusable: str | None) -> str:
    """Return the prediction, with NaN for unusable rows."""
    return prediction if unusable is None else graph.node("Add", prediction, _flat(graph, unusable))


def _flat(graph: Graph, values: str) -> str:
    """Reshape values from (n, 1) to (n,)."""
    return graph.node("Squeeze", values, graph.constant([1], np.int64))
