"""One lasso: seconds to 0.1% of the optimum, by schedule, by OWL-QN, and by other libraries in process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

import numpy as np

from benchmarks.frame import Check, Part, tell
from benchmarks.lasso_data import Data
from benchmarks.lasso_part import NEAR, OURS, OWLQN, SAME, Asked, Trained, ours, peer_near, peers, seconds_of
from benchmarks.ml_part import Line
from ps2 import PS2Context
from ps2.algorithms.linear.problem import ScheduleName, SolverOptions

# Schedules that "sap" is compared with, each with its goal.
OTHERS: dict[ScheduleName, float | None] = {"random": 2.0, "cyclic": None, "greedy": None}
GOAL_OWLQN, GOAL_PEER = 2.0, 1.0 / 3.0
# The optimum, to compare others with.
EXACT = replace(OURS, tol=1e-8)


@dataclass
class _Way:
    """A training of ours to the target.

    Attributes:
        options: with the steps that it takes.
        is_there: whether it gets to the target in time.
        at_s, whole_s: seconds of its steps, and of the whole call.
    """

    name: str
    options: SolverOptions
    is_there: bool = True
    at_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)


def compare(asked: Asked, ps: PS2Context, data: Data, name: str) -> Part:
    """Let all trainings take turns on one data set."""
    strength = asked.ratio * data.largest
    train = partial(ours, ps, data, strength)
    optimum = train(EXACT)
    target = optimum.objectives[-1] * (1.0 + NEAR)
    tell(
        f"{name}: strength {strength:.3g}, optimum {optimum.objectives[-1]:.8g}, {np.count_nonzero(optimum.w)} weights"
    )
    checks = [_same(data, strength, optimum, name)]
    ways = [_Way("sap", OURS), _Way("owlqn", OWLQN)]
    ways += [_Way(f"schedule {other}", replace(OURS, schedule=other)) for other in OTHERS]
    for way in ways:
        _find_steps(way, train, target, asked.most_s)
    for _ in range(asked.rounds):
        for way in ways:
            if way.is_there:
                found = train(way.options)
                way.at_s.append(float(found.at_s[-1]))
                way.whole_s.append(found.seconds)
                tell(f"{way.name}: {found.at_s[-1]:.2f} s, the call {found.seconds:.2f} s")
    sap, what = ways[0], f"{name}: sap, its steps to {NEAR:.1%} of the optimum"
    goals = {"owlqn": GOAL_OWLQN, **{f"schedule {other}": goal for other, goal in OTHERS.items()}}
    lines = [Line(what, way.name, "s", goals[way.name], way.at_s, sap.at_s) for way in ways[1:]]
    for peer, fit in peers().items():
        best = peer_near(fit, data, strength, target)
        if best is None:
            tell(f"{peer}: does not reach {NEAR:.1%}")
            continue
        seconds = seconds_of(partial(fit, data, strength, best.tol), asked.rounds)
        tell(f"{peer}: tol {best.tol:g}, {median(seconds):.2f} s")
        lines.append(Line(what, f"{peer} in process", "s", GOAL_PEER, seconds, sap.at_s))
        lines.append(
            Line(f"{name}: sap, the call on cached rows", f"{peer} in process", "s", None, seconds, sap.whole_s)
        )
    facts = {
        "rows": len(data.y),
        "features": data.x.shape[1],
        "non-zeros": data.x.nnz,
        "strength": f"{asked.ratio:g} of the largest",
        "weights": int(np.count_nonzero(optimum.w)),
        "steps": {way.name: way.options.steps if way.is_there else "not reached" for way in ways},
    }
    return Part(lines, checks, facts)


def _find_steps(way: _Way, train: Callable[..., Trained], target: float, most_s: float) -> None:
    """Find the steps that a way takes; what it takes is one turn's figure if that is too long."""
    found = train(way.options, most_s=most_s)
    there = np.flatnonzero(found.objectives <= target)
    if len(there):
        way.options = replace(way.options, steps=int(there[0]) + 1)
        tell(f"{way.name}: {way.options.steps} steps")
    else:
        way.is_there, way.at_s = False, [float(found.at_s[-1])]
        tell(
            f"{way.name}: at {found.objectives[-1] / target * (1.0 + NEAR) - 1.0:.2%} of the optimum after {most_s:g} s"
        )
    train(replace(OURS, steps=2))  # a training that was given up has ended Spark's Python workers


def _same(data: Data, strength: float, optimum: Trained, name: str) -> Check:
    """Compare the optimum with scikit-learn's, or celer's; without them with the gap that ours has proven."""
    found = peers()
    ours_value = data.objective(optimum.w, strength)
    for peer in ("celer", "scikit-learn"):
        if peer in found:
            value = data.objective(found[peer](data, strength, 1e-8), strength)
            return Check(f"{name}: the optimum, against {peer}'s", abs(ours_value / value - 1.0), SAME)
    return Check(
        f"{name}: the optimum, by our history and by NumPy", abs(ours_value / optimum.objectives[-1] - 1), SAME
    )
