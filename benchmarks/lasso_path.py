"""A path of lassos on generated rows: all its models, against other schedules, OWL-QN and celer's path in process."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.frame import Check, Part, answer, tell
from benchmarks.lasso_data import Data, correlated
from benchmarks.lasso_part import NEAR, OURS, OWLQN, Asked, Trained, ours, path_of, peers, spark_and_servers
from benchmarks.ml_part import Line
from ps2 import PS2Context
from ps2.algorithms.linear.problem import ScheduleName

GOAL_PEER, GOAL_RANDOM, GOAL_OWLQN = 1.0 / 3.0, 2.0, 2.0
OTHERS: dict[ScheduleName, float | None] = {"random": GOAL_RANDOM, "cyclic": None}
# OWL-QN trains one model of so many, each from zeros, as it has no path.
EVERY = 10
# celer's is a part of the first objective, ours of each.
TOL = NEAR / 2.0


def measure(asked: Asked) -> Part:
    with spark_and_servers(asked, "path") as (spark, ps):
        return compare(asked, ps, correlated(spark, asked.rows, asked.features), "correlated")


def compare(asked: Asked, ps: PS2Context, data: Data, name: str) -> Part:
    """Compare the ways to train a path on one data set."""
    options = path_of(replace(OURS, tol=TOL), asked.models, asked.ratio)
    seconds, steps_s = [], []
    for turn in range(asked.rounds + 1):
        made = ours(ps, data, 1.0, options)
        tell(f"{name}: the path {made.at_s[-1]:.2f} s, the call {made.seconds:.2f} s")
        if turn:
            seconds.append(made.seconds)
            steps_s.append(float(made.at_s[-1]))
    what = f"{name}: sap, a path of {asked.models}"
    facts = {"models": asked.models, "last strength": f"{asked.ratio:g} of the largest"}
    lines = _others(asked, ps, data, made, (what, steps_s))
    if "celer" not in peers():
        return Part(lines, facts=facts)
    theirs_s, worst = _celer(data, made, asked.rounds)
    lines += [
        Line(f"{what}, its steps", "celer_path in process", "s", GOAL_PEER, theirs_s, steps_s),
        Line(f"{what}, the whole call", "celer_path in process", "s", None, theirs_s, seconds),
    ]
    return Part(lines, [Check(f"{name}: path, objectives above celer's at most", worst, NEAR)], facts)


def _others(asked: Asked, ps: PS2Context, data: Data, made: Trained, ours_s: tuple[str, Sequence[float]]) -> list[Line]:
    """Compare with the path by other schedules, and with OWL-QN's models; a path that takes too long is given up."""
    what, steps_s = ours_s
    lines = []
    for schedule, goal in OTHERS.items():
        options = path_of(replace(OURS, tol=TOL, schedule=schedule), asked.models, asked.ratio)
        found = ours(ps, data, 1.0, options, most_s=asked.most_s)
        done = f"{len(found.path)} of {asked.models} models" if found.path else f"given up after {asked.most_s:g} s"
        tell(f"schedule {schedule}: {found.at_s[-1]:.2f} s, {done}")
        against = f"schedule {schedule}" + ("" if found.path else ", given up")
        lines.append(Line(f"{what}, its steps", against, "s", goal, [float(found.at_s[-1])], steps_s))
        ours(ps, data, made.path[0].strength, replace(OURS, steps=2))  # what was given up has ended Python workers
    chosen = made.path[EVERY // 2 :: EVERY]
    seconds = [_owlqn_s(asked, ps, data, point.strength, point.history.objective[-1]) for point in chosen]
    about = len(made.path) / len(chosen) * sum(one for one, _ in seconds)
    are_there = all(is_there for _, is_there in seconds)
    against = f"l-bfgs, by {len(chosen)} models" + ("" if are_there else ", some given up")
    lines.append(Line(f"{what}, its steps", against, "s", GOAL_OWLQN, [about], steps_s))
    return lines


def _owlqn_s(asked: Asked, ps: PS2Context, data: Data, strength: float, objective: float) -> tuple[float, bool]:
    """Return the seconds of OWL-QN's steps to an objective, and whether it came there in time."""
    target = objective * (1.0 + NEAR)
    found = ours(ps, data, strength, OWLQN, most_s=asked.most_s, target=target)
    seconds, is_there = float(found.at_s[-1]), bool(found.objectives[-1] <= target)
    tell(f"l-bfgs, strength {strength:.3g}: {seconds:.2f} s{'' if is_there else ', not there'}")
    ours(ps, data, strength, replace(OURS, steps=2))
    return seconds, is_there


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
