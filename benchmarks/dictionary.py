"""Dictionary learning beside scikit-learn's DictionaryLearning and MiniBatchDictionaryLearning.

docs/performance/representations.md says how to read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks import frame
from benchmarks.frame import Benchmark, Check, Line, Part, option, take_turns, timed
from benchmarks.local_spark import spark_and_servers
from benchmarks.metric import Labelled

ATOMS, ALPHA, ITERATIONS, EPOCHS = 50, 5.0, 50, 50
# How much worse than scikit-learn's objective ours may be.
MAX_RATIO = 1.01


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(1, "Turns that the medians are of.", least=1)


def digits(args: Args) -> Part:
    """Compare on scikit-learn's pictures of digits: 1,797 rows of 64 features."""
    from sklearn import decomposition
    from sklearn.datasets import load_digits

    from ps2.algorithms import DictionaryLearning, SparseCoder

    x = load_digits().data
    common: dict[str, Any] = {
        "n_components": ATOMS, "alpha": ALPHA, "fit_algorithm": "cd", "random_state": 0, "tol": 0.0
    }  # fmt: skip
    peers: dict[str, Any] = {
        "DictionaryLearning": decomposition.DictionaryLearning(max_iter=ITERATIONS, **common),
        "MiniBatchDictionaryLearning": decomposition.MiniBatchDictionaryLearning(
            max_iter=EPOCHS, max_no_improvement=None, **common
        ),
    }
    params: dict[str, Any] = {"k": ATOMS, "regParam": ALPHA, "maxIter": ITERATIONS, "tol": 0.0}
    with spark_and_servers("dictionary", args.memory) as (spark, _):
        rows = Labelled(x, np.zeros(len(x))).frame(spark)
        variants: dict[str, Any] = {name: partial(timed, peer.fit, x) for name, peer in peers.items()}
        for via in ("servers", "local"):
            DictionaryLearning(k=2, maxIter=1, via=via).fit(rows)  # Python workers start
            variants[via] = partial(timed, DictionaryLearning(via=via, **params).fit, rows)
        turns = take_turns(variants, args.rounds, warm_ups=0)
    seconds = {variant: [taken for _, taken in result] for variant, result in turns.items()}
    atoms = {
        variant: result[-1][0].components_ if variant in peers else result[-1][0].dictionary
        for variant, result in turns.items()
    }
    objectives = {variant: SparseCoder(dictionary, ALPHA).objective(x) for variant, dictionary in atoms.items()}
    lines = [
        Line(f"{ITERATIONS} iterations, {via}", peer, "s", None, seconds[peer], seconds[via])
        for via in ("servers", "local")
        for peer in peers
    ]
    share = objectives["servers"] / min(objectives[peer] for peer in peers)
    table = [
        {"way": variant, "objective": f"{objectives[variant]:,.0f}", "s": f"{median(seconds[variant]):.1f}"}
        for variant in objectives
    ]
    checks = [Check("objective over the best of scikit-learn's", share, MAX_RATIO)]
    return Part(lines, checks, {"rows": len(x), "k": ATOMS, "alpha": ALPHA}, table)


BENCHMARK = Benchmark("dictionary", Args, {"digits": digits}, packages=("scikit-learn",))

if __name__ == "__main__":
    BENCHMARK.main()
