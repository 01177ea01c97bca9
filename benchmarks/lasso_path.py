"""A path of lassos on both data sets: all its models, against celer's path in process and against fits one by one."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.frame import Check, Part, answer, tell
from benchmarks.lasso_data import Data, correlated, news20
from benchmarks.lasso_part import NEAR, OURS, Asked, Trained, ours, path_of, peers, spark_and_servers
from benchmarks.ml_part import Line
from ps2 import PS2Context

GOAL_PEER = 1.0 / 3.0
# celer's is a part of the first objective, ours of each.
TOL = NEAR / 2.0


def measure(asked: Asked) -> Part:
    with spark_and_servers(asked, "path") as (spark, ps):
        sets = {"correlated": correlated(spark, asked.rows, asked.features)}
        if asked.data_dir:
            sets["news20-bigram"] = news20(spark, asked.data_dir)
        found = [_of_set(asked, ps, data, name) for name, data in sets.items()]
    lines = [line for part in found for line in part.lines]
    checks = [check for part in found for check in part.checks]
    return Part(lines, checks, {"models": asked.models, "last strength": f"{asked.ratio:g} of the largest"})


def _of_set(asked: Asked, ps: PS2Context, data: Data, name: str) -> Part:
    options = path_of(replace(OURS, tol=TOL), asked.models, asked.ratio)
    seconds, steps_s = [], []
    for turn in range(asked.rounds + 1):
        made = ours(ps, data, 1.0, options)
        tell(f"{name}: the path {made.at_s[-1]:.2f} s, the call {made.seconds:.2f} s")
        if turn:
            seconds.append(made.seconds)
            steps_s.append(float(made.at_s[-1]))
    what = f"{name}: sap, a path of {asked.models}"
    if "celer" not in peers():
        return Part()
    theirs_s, worst = _celer(data, made, asked.rounds)
    lines = [
        Line(f"{what}, its steps", "celer_path in process", "s", GOAL_PEER, theirs_s, steps_s),
        Line(f"{what}, the whole call", "celer_path in process", "s", None, theirs_s, seconds),
    ]
    return Part(lines, [Check(f"{name}: path, objectives above celer's at most", worst, NEAR)])


def _celer(data: Data, made: Trained, rounds: int) -> tuple[list[float], float]:
    """Return the seconds of celer's path, and how far an objective of ours is above its, relatively."""
    import celer
    import scipy.sparse as sp

    x, y = sp.csc_matrix(data.x), data.y - data.y.mean()
    alphas, seconds = np.array([point.strength for point in made.path]), []
    found: Any = None
    for _ in range(max(2, rounds)):
        began_s = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = celer.celer_path(x, y, "lasso", alphas=alphas, tol=NEAR)
        seconds.append(time.monotonic() - began_s)
        tell(f"celer_path {seconds[-1]:.2f} s")
    worst = 0.0
    for number, point in enumerate(made.path):
        w = np.zeros(x.shape[1])
        w[point.columns] = point.w
        worst = max(
            worst, data.objective(w, point.strength) / data.objective(found[1][:, number], point.strength) - 1.0
        )
    return seconds, worst


if __name__ == "__main__":
    answer(Asked, measure)
