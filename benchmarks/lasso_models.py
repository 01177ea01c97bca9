"""One lasso: seconds to 0.1% of the optimum, by schedule, by OWL-QN, and by other libraries in process."""

from __future__ import annotations

from dataclasses import replace
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
    at_s: dict[str, list[float]] = {}
    whole_s: dict[str, list[float]] = {}
    options: dict[str, SolverOptions] = {"sap": OURS, "owlqn": OWLQN}
    for other in OTHERS:
        options[other] = replace(OURS, schedule=other)
    for turn in range(asked.rounds + 1):
        for which, option in options.items():
            found = train(option, most_s=asked.most_s)
            reached = found.reached(target)
            tell(f"{which}: {'not reached' if reached is None else f'{reached:.2f} s'}, the call {found.seconds:.2f} s")
            if turn:  # the first turn loads code
                at_s.setdefault(which, []).append(asked.most_s if reached is None else reached)
                whole_s.setdefault(which, []).append(found.seconds)
    what = f"{name}: sap, steps to {NEAR:.1%} of the optimum"
    lines = [
        Line(what, f"blocks by schedule {other}", "s", goal, at_s[other], at_s["sap"]) for other, goal in OTHERS.items()
    ]
    lines.append(Line(what, "owlqn", "s", GOAL_OWLQN, at_s["owlqn"], at_s["sap"]))
    for peer, fit in peers().items():
        best = peer_near(fit, data, strength, target)
        if best is None:
            tell(f"{peer}: does not reach {NEAR:.1%}")
            continue
        seconds = seconds_of(partial(fit, data, strength, best.tol), max(2, asked.rounds))
        tell(f"{peer}: tol {best.tol:g}, {median(seconds):.2f} s")
        # Ours takes turns with itself only; the lists need not be as long.
        lines.append(Line(what, f"{peer} in process", "s", GOAL_PEER, seconds, at_s["sap"]))
        lines.append(Line(f"{name}: sap, the whole call from cached rows", peer, "s", None, seconds, whole_s["sap"]))
    facts = {
        "rows": len(data.y),
        "features": data.x.shape[1],
        "non-zeros": data.x.nnz,
        "strength": f"{asked.ratio:g} of the largest",
        "weights": int(np.count_nonzero(optimum.w)),
    }
    return Part(lines, checks, facts)


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
