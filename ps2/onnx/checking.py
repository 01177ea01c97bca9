"""Checks the file of ``export`` before it is written: ONNX Runtime, if it is installed, scores a sample of rows."""

from __future__ import annotations

import logging
import re
from importlib.util import find_spec
from typing import Any

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.clusters.model import KMeansClusters
from ps2.algorithms.frame.heads import ClassHead, VotesHead, predict_all
from ps2.algorithms.frame.scoring import FeatureScoring
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.tree import LEAF, Bools
from ps2.array_types import Float64s
from ps2.errors import UsageError
from ps2.onnx.graph import FEATURES

log = logging.getLogger(__name__)

# The maximum numbers of rows, and of values, in the sample.
MAX_ROWS, MAX_VALUES = 64, 1 << 20
# Differences up to this fraction of an output's largest value are ignored: they may be rounding errors.
TOLERANCE = 1e-9
# The oldest usable ONNX Runtime for graphs without trees, with trees, and with sets of categories. Older versions copy
# the nodes below a set of n categories n times, so deep trees take minutes to load.
OLDEST, OLDEST_TREES, OLDEST_SETS = (1, 18, 0), (1, 21, 0), (1, 23, 0)


def check_scores(file: bytes, scoring: FeatureScoring, fitted: Any) -> None:
    """Compare the scores of ONNX Runtime and of the model for a sample of rows. Without the runtime, do nothing."""
    if find_spec("onnxruntime") is None:
        return
    import onnxruntime

    oldest = _oldest_runtime(fitted)
    if tuple(map(int, re.findall(r"\d+", onnxruntime.__version__)[:3])) < oldest:
        required = ".".join(map(str, oldest))
        log.warning(
            "export: ONNX Runtime %s, which is installed, cannot score the file, which needs %s or later",
            onnxruntime.__version__,
            required,
        )
        return
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    x = sample(fitted, scoring.dim)
    with np.errstate(all="ignore"):
        expected = predict_all(fitted, scoring.head, x if scoring.missing else sp.csr_array(x), 0.0, ())
    names = [name for name, _ in scoring.outputs]
    for (name, kind), scores in zip(scoring.outputs, session.run(names, {FEATURES: x}), strict=True):
        reference = expected[kind].reshape(len(x), -1)
        max_abs = np.max(np.abs(reference), initial=0.0, where=np.isfinite(reference))
        is_same = np.isclose(
            scores.reshape(reference.shape), reference, rtol=0.0, atol=TOLERANCE * max_abs, equal_nan=True
        )
        differs = ~is_same.all(axis=1)
        if kind == "prediction" and isinstance(scoring.head, (ClassHead, VotesHead)):
            differs &= ~_is_nearly_tied(scoring.head, expected)
        if isinstance(fitted, KMeansClusters):
            differs &= ~_is_equally_near(fitted, x, scores, reference[:, 0])
        if differs.any():
            row = int(np.argmax(differs))
            raise UsageError(
                f"export: ONNX Runtime {onnxruntime.__version__} scores {differs.sum()} of {len(x)} rows of a sample "
                f"differently from the model, so nothing was written: output {name!r}: expected {reference[row]}, got "
                f"{scores[row]}, for the row {x[row][:20]}"
            )


def sample(fitted: Any, dim: int) -> Float64s:
    """Return random rows: between centres of clusters; at thresholds and categories of trees, with NaN; or normal."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(max(1, min(MAX_ROWS, MAX_VALUES // max(dim, 1))), dim))
    if isinstance(fitted, KMeansClusters):
        pairs, weight = fitted.centres[rng.integers(fitted.k, size=(2, len(x)))], rng.random((len(x), 1))
        return weight * pairs[0] + (1.0 - weight) * pairs[1]
    if isinstance(fitted, (GBTModel, RandomForest)):
        for tree in fitted.forest.trees:
            feature, categories = (values[tree.feature != LEAF] for values in (tree.feature, np.diff(tree.set_begin)))
            numbers = rng.integers(categories + 2)
            if len(tree.set_codes):
                first = tree.set_begin[:-1][tree.feature != LEAF]
                numbers = tree.set_codes[np.minimum(first + numbers, len(tree.set_codes) - 1)]
            cuts = np.where(categories, numbers, tree.threshold[tree.feature != LEAF])
            x[rng.integers(len(x), size=len(cuts)), feature] = cuts
        x[rng.random(x.shape) < 1 / 8] = np.nan
    return x


def _oldest_runtime(fitted: Any) -> tuple[int, int, int]:
    if not isinstance(fitted, (GBTModel, RandomForest)):
        return OLDEST
    return OLDEST_SETS if any(len(tree.set_flags) for tree in fitted.forest.trees) else OLDEST_TREES


def _is_equally_near(clusters: KMeansClusters, x: Float64s, *choices: Float64s) -> Bools:
    """Return for each row whether two choices of a centre are equally near to it, up to rounding in float32."""
    scale = max(float(np.abs(clusters.centres).max()), np.finfo(np.float64).tiny)
    x, centres = x / scale, clusters.centres.astype(np.float64) / scale
    first, second = (np.linalg.norm(x - centres[choice.astype(int)], axis=1) for choice in choices)
    return np.abs(first - second) <= 1e-6 * np.linalg.norm(x, axis=1)


def _is_nearly_tied(head: ClassHead | VotesHead, expected: dict[str, Float64s]) -> Bools:
    """Return for each row whether its class may depend on rounding errors."""
    score = expected.get("probability", expected["raw"])
    if isinstance(head, ClassHead) and head.threshold is not None:
        return np.isclose(score[:, 1], head.threshold, rtol=TOLERANCE, atol=TOLERANCE)
    with np.errstate(all="ignore"):
        ascending = np.sort(score / np.array(head.thresholds or 1.0), axis=1)
        return ~(ascending[:, -1] - ascending[:, -2] > TOLERANCE * np.abs(ascending[:, -1]))
