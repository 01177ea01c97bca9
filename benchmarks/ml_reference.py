"""Linear models by L-BFGS against reference values: objective, and accuracy on test rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.frame import Check, Part, answer, tell
from benchmarks.ml_fit import fit, plain, spark_and_servers
from benchmarks.ml_part import Asked
from benchmarks.ml_sets import A9A, NEWS20, Reference, Set, accuracy, auc

ITERATIONS = 300
TOL = 1e-9
# What an objective may be above the optimum, relatively, and what accuracy and AUC may differ by.
LOGISTIC_GAP = 1e-3
HINGE_GAP = 5e-3
WORTH_GAP = 2e-3


def measure(asked: Asked) -> Part:
    checks: list[Check] = []
    with spark_and_servers(asked, "reference") as spark:
        for one in (A9A, NEWS20):
            checks += _checks(spark, asked, one)
    return Part(checks=checks, facts={"solver": "l-bfgs", "tol": TOL, "maxIter": ITERATIONS})


def _checks(spark: Any, asked: Asked, one: Set) -> list[Check]:
    train, test = one.load(spark, asked.data_dir), one.load_test(spark, asked.data_dir)
    strength = 1.0 / train.rows
    params = plain(strength, maxIter=ITERATIONS, tol=TOL)
    checks = []
    for words, loss, estimator, its, reference, gap in (
        ("LR", "logistic", "LogisticRegression", {}, one.logistic, LOGISTIC_GAP),
        ("L2-SVM", "squaredHinge", "LinearSVC", {"loss": "squaredHinge"}, one.squared_hinge, HINGE_GAP),
    ):
        found = fit(train, {**params, **its}, estimator)
        objective = train.rows * train.objective(loss, found.w, strength)
        tell(f"{one.name}, {words}: f {objective:.4f} after {len(found.step_s)} iterations, {found.seconds:.1f} s")
        checks.append(
            Check(f"{one.name}, {words}: objective above the optimum", objective / reference.objective - 1.0, gap)
        )
        margins = _margins(found.w, train.keys, test)
        checks += _worth(f"{one.name}, {words}", margins, test.y, reference)
    return checks


def _margins(w: Any, keys: Any, test: Any) -> Any:
    """Return margins of test rows: features that no training row has are not in the model."""
    places = np.minimum(np.searchsorted(keys, test.keys), len(keys) - 1)
    return test.margins(np.where(keys[places] == test.keys, w[places], 0.0))


def _worth(words: str, margins: Any, y: Any, reference: Reference) -> list[Check]:
    gap = abs(accuracy(margins, y) - reference.accuracy)
    checks = [Check(f"{words}: difference of the test accuracy", gap, WORTH_GAP)]
    if reference.auc is not None:
        gap = abs(auc(margins, y) - reference.auc)
        checks.append(Check(f"{words}: difference of the test AUC", gap, WORTH_GAP))
    return checks


if __name__ == "__main__":
    answer(Asked, measure)
