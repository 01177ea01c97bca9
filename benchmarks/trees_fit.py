"""PS2's trainings of ``benchmarks.trees``, and settings that all libraries share."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.frame import tell
from benchmarks.ml_part import Line
from benchmarks.ml_sets import auc
from benchmarks.trees_data import Array, Rows
from benchmarks.trees_part import Score

OURS = "ours"


@dataclass(frozen=True)
class Settings:
    """Settings of all libraries, translated into each one's parameters.

    Attributes:
        trees, depth, bins, rate: number of trees, splits above a leaf, bins of a feature, learning rate.
        leaves: maximum number in a tree; 0: as many as the depth allows.
        reg_lambda: L2 penalty on leaves.
        min_rows, min_hessian: minimum of a leaf.
        via: PS2's, where trees grow.
    """

    trees: int
    depth: int
    bins: int
    rate: float = 0.1
    leaves: int = 0
    reg_lambda: float = 1.0
    min_rows: int = 1
    min_hessian: float = 1.0
    via: str = "auto"

    def ours(self) -> dict[str, Any]:
        return {
            "defaults": "xgboost",
            "maxIter": self.trees,
            "maxDepth": self.depth,
            "maxBins": self.bins,
            "stepSize": self.rate,
            "regLambda": self.reg_lambda,
            "minInstancesPerNode": self.min_rows,
            "minChildWeight": self.min_hessian,
            "via": self.via,
            **({"growth": "leaf", "maxLeaves": self.leaves} if self.leaves else {}),
        }


@dataclass(frozen=True, eq=False)
class Fitted:
    """A training.

    Attributes:
        seconds: of ``fit``, or from a matrix in memory to a model.
        margins: returns scores of rows that grow with the probability.
    """

    seconds: float
    margins: Callable[[Any], Array]


Training = Callable[[], Fitted]


def fit(rows: Rows, settings: Settings) -> Fitted:
    """Train with PS2.

    Spark ends Python workers that idle for a minute, and new ones begin with imports. So a training of a few rows
    precedes.
    """
    from ps2.algorithms import GBTClassifier

    GBTClassifier(**{**settings.ours(), "maxIter": 1}).fit(rows.few)
    began_s = time.monotonic()
    model = GBTClassifier(**settings.ours()).fit(rows.frame)
    return Fitted(time.monotonic() - began_s, alone(model).margins)


def alone(model: Any) -> Any:
    """Return a model of PS2 as a ``GBTModel``, which needs no Spark."""
    from ps2.algorithms import GBTModel

    with tempfile.TemporaryDirectory() as folder:
        model.write().overwrite().save(f"{folder}/model")
        return GBTModel.load(f"{folder}/model")


def take_turns(ours: Training, others: Mapping[str, Training], rounds: int) -> dict[str, list[Fitted]]:
    """Let trainings alternate, PS2's before the others; return all of them by name."""
    trainings = {OURS: ours, **others}
    found: dict[str, list[Fitted]] = {name: [] for name in trainings}
    for _ in range(rounds):
        for name, train in trainings.items():
            found[name].append(train())
            tell(f"{name}: {found[name][-1].seconds:.2f} s")
    return found


def compared(
    what: str, found: Mapping[str, list[Fitted]], test: tuple[Any, Array], goals: Mapping[str, float]
) -> list[Line | Score]:
    """Compare PS2 with each other library: seconds, and AUC on held-out rows.

    Args:
        found: result of ``take_turns``.
        test: features and labels of held-out rows.
        goals: by which factor PS2 should take less time, by name; for ``OURS``, the AUC to reach.
    """
    x, y = test
    seconds = {name: [fitted.seconds for fitted in turns] for name, turns in found.items()}
    scores = {name: auc(turns[-1].margins(x).reshape(-1), y) for name, turns in found.items()}
    for name, score in scores.items():
        tell(f"{name}: {median(seconds[name]):.2f} s, AUC {score:.6f}")
    goal = goals.get(OURS)
    lines: list[Line | Score] = []
    for name in found:
        if name != OURS:
            lines.append(Line(f"{what}: seconds of fit", name, "s", goals.get(name), seconds[name], seconds[OURS]))
            lines.append(Score(f"{what}: rows held out", name, "AUC", goal, scores[name], scores[OURS]))
    return lines or [Score(f"{what}: rows held out", "the goal", "AUC", goal, goal or 0.0, scores[OURS])]
