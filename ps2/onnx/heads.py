"""Heads as nodes of ONNX: predictions of margins, by the same rules as ``ps2.algorithms.estimators.heads``."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from ps2.algorithms.estimators.heads import ClassHead, ClusterHead, ValueHead, VotesHead
from ps2.errors import UsageError
from ps2.onnx.graph import Graph


def add_head(graph: Graph, head: object, margins: str, unusable: str | None) -> dict[str, tuple[str, int | None]]:
    """Add the nodes of a head; return the name and width of each kind of prediction.

    Args:
        margins: of shape (n, outputs).
        unusable: 0, or NaN for rows that ``transform`` refuses, shape (n, 1), which makes their predictions NaN; None:
            there are no such rows.

    Raises:
        UsageError: ONNX has no such head here.
    """
    if isinstance(head, ValueHead):
        raw = graph.node("Exp", margins) if head.link == "exp" else margins
        return {"prediction": (_flat(graph, raw), None)}
    if isinstance(head, ClusterHead):
        return {"prediction": (_marked(graph, _flat(graph, margins), unusable), None)}
    if isinstance(head, ClassHead):
        raw, probability = _class_scores(graph, head, margins)
        score = raw if probability is None else probability
        if head.threshold is not None:
            above = graph.node("Greater", _column(graph, score, 1), graph.constant([head.threshold]))
            decided = graph.node("Cast", above, to=TensorProto.DOUBLE)
        else:
            decided = _largest(graph, score, head.thresholds)
        found = {"raw": (raw, head.classes), "prediction": (_marked(graph, decided, unusable), None)}
        return found if probability is None else {**found, "probability": (probability, head.classes)}
    if isinstance(head, VotesHead):
        total = graph.node("ReduceSum", margins, graph.constant([1], np.int64), keepdims=1)
        none = graph.node("LessOrEqual", total, graph.constant([0.0]))
        share = graph.node("Div", margins, graph.node("Where", none, graph.constant([1.0]), total))
        probability = graph.node("Where", none, graph.constant(np.full((1, head.classes), 1.0 / head.classes)), share)
        return {
            "raw": (margins, head.classes),
            "probability": (probability, head.classes),
            "prediction": (_largest(graph, probability, head.thresholds), None),
        }
    raise UsageError(f"export: ONNX has no counterpart of {type(head).__name__} here")


def _class_scores(graph: Graph, head: ClassHead, margins: str) -> tuple[str, str | None]:
    """Return raw predictions and probabilities, shape (n, classes)."""
    if head.link == "softmax":
        return margins, graph.node("Softmax", margins, axis=1)
    raw = graph.node("Concat", graph.node("Neg", margins), margins, axis=1)
    if head.link is None:
        return raw, None
    of_0 = graph.node("Sigmoid", graph.node("Neg", margins))
    return raw, graph.node("Concat", of_0, graph.node("Sub", graph.constant([1.0]), of_0), axis=1)


def _largest(graph: Graph, score: str, thresholds: tuple[float, ...] | None) -> str:
    """Return the number of the largest score, divided by the classes' thresholds if there are any; 0 / 0 never wins."""
    if thresholds is not None:
        divided = graph.node("Div", score, graph.constant([thresholds]))
        score = graph.node("Where", graph.node("IsNaN", divided), graph.constant([-np.inf]), divided)
    return graph.node("Cast", graph.node("ArgMax", score, axis=1, keepdims=0), to=TensorProto.DOUBLE)


def _marked(graph: Graph, prediction: str, unusable: str | None) -> str:
    return prediction if unusable is None else graph.node("Add", prediction, _flat(graph, unusable))


def _column(graph: Graph, values: str, number: int) -> str:
    return graph.node("Gather", values, graph.constant(number, np.int64), axis=1)


def _flat(graph: Graph, values: str) -> str:
    """Return values of shape (n, 1) as (n,)."""
    return graph.node("Squeeze", values, graph.constant([1], np.int64))
