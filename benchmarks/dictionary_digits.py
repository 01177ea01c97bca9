"""Scikit-learn's pictures of digits: 1,797 rows of 64 features."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.frame import Check, Part, answer, tell
from benchmarks.metric_part import WORKERS, Asked, Labelled, spark_and_fleet, timed
from benchmarks.ml_part import Line

ATOMS, ALPHA, ITERATIONS, EPOCHS = 50, 5.0, 50, 50
# How much worse than scikit-learn's objective ours may be.
MAX_RATIO = 1.01


def measure(asked: Asked) -> Part:
    from sklearn.datasets import load_digits
    from sklearn.decomposition import DictionaryLearning as TheirDictionaryLearning
    from sklearn.decomposition import MiniBatchDictionaryLearning

    from ps2.algorithms import DictionaryLearning, SparseCoder

    x = load_digits().data
    common = {"n_components": ATOMS, "alpha": ALPHA, "fit_algorithm": "cd", "random_state": 0}
    peers: dict[str, Any] = {
        "DictionaryLearning": TheirDictionaryLearning(max_iter=ITERATIONS, tol=0.0, **common),
        "MiniBatchDictionaryLearning": MiniBatchDictionaryLearning(
            max_iter=EPOCHS, tol=0.0, max_no_improvement=None, **common
        ),
    }
    given: dict[str, Any] = {"k": ATOMS, "regParam": ALPHA, "maxIter": ITERATIONS, "tol": 0.0}
    seconds: dict[str, list[float]] = {}
    objectives: dict[str, float] = {}
    with spark_and_fleet(asked) as spark:
        frame = Labelled(x, np.zeros(len(x))).frame(spark)
        for via in ("servers", "local"):
            DictionaryLearning(k=2, maxIter=1, via=via).fit(frame)  # Python workers start
        for turn in range(asked.rounds):
            for via in ("servers", "local"):
                model, taken = timed(DictionaryLearning(via=via, **given).fit, frame)
                seconds.setdefault(via, []).append(taken)
                objectives[via] = SparseCoder(model.dictionary, ALPHA).objective(x)
            for name, peer in peers.items():
                _, taken = timed(peer.fit, x)
                seconds.setdefault(name, []).append(taken)
                objectives[name] = SparseCoder(peer.components_, ALPHA).objective(x)
            tell(f"turn {turn + 1}: {objectives}, {seconds}")
    lines = [
        Line(f"{ITERATIONS} iterations, {via}", peer, "s", None, seconds[peer], seconds[via])
        for via in ("servers", "local")
        for peer in peers
    ]
    best = min(objectives[peer] for peer in peers)
    share = objectives["servers"] / best
    checks = [Check("objective over the best of scikit-learn's", share, MAX_RATIO)]
    sizes = [
        {"way": way, "objective": f"{objectives[way]:,.0f}", "s": f"{min(seconds[way]):.1f}"} for way in objectives
    ]
    facts = {"rows": len(x), "k": ATOMS, "alpha": ALPHA, "workers": WORKERS}
    return Part(lines, checks, facts=facts, sizes=sizes)


if __name__ == "__main__":
    answer(Asked, measure)
