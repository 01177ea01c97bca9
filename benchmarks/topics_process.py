"""One process with two threads against tomotopy: CPU seconds to its likelihood after 200 iterations, without Spark.

CPU seconds change less than seconds do while other programs share the cores.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np

from benchmarks import topics_data
from benchmarks.frame import Part, answer, tell
from benchmarks.ml_part import Line
from benchmarks.topics_fit import peer_model
from benchmarks.topics_part import ALPHA, BETA, WORKERS, Asked
from ps2.algorithms.topics import ops
from ps2.algorithms.topics.corpus import Prior
from ps2.algorithms.topics.local_sampling import LocalSampling
from ps2.algorithms.topics.options import SamplingOptions
from ps2.algorithms.topics.shared_counts import CountsSummary
from ps2.data.rows import LocalRows

TOPICS = (20, 100)
ITERATIONS, MAX_ITERATIONS = 200, 400


def measure(asked: Asked) -> Part:
    counts = topics_data.kos(asked.data_dir)
    lines: list[Any] = []
    for topics in TOPICS:
        found: list[tuple[float, float]] = []
        for _ in range(asked.rounds):
            theirs_s, target = _tomotopy(counts, topics)
            ours_s, iterations = _ours(counts, topics, target)
            found.append((theirs_s, ours_s))
            tell(
                f"K={topics}: tomotopy {theirs_s:.2f} s to {target:,.0f}; ours {ours_s:.2f} s, {iterations} iterations"
            )
        what = f"KOS, K={topics}: CPU s to its likelihood after {ITERATIONS}"
        lines.append(Line(what, "tomotopy", "s", 1 / 1.2, *zip(*found, strict=True)))
    return Part(lines, facts={"threads": WORKERS})


def _tomotopy(counts: Any, topics: int) -> tuple[float, float]:
    """Return CPU seconds, and the likelihood."""
    model = peer_model(counts, topics)
    began_s = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that threads make results differ
        model.train(ITERATIONS, workers=WORKERS)
    return time.process_time() - began_s, model.ll_per_word * model.num_words


def _ours(counts: Any, topics: int, target: float) -> tuple[float, int]:
    """Return CPU seconds to a likelihood, which each iteration computes, and the iterations."""
    vocabulary = counts.shape[1]
    options = SamplingOptions(topics, vocabulary, alpha=(ALPHA,), beta=BETA, seed=1)
    prior = Prior(options.alphas, BETA, vocabulary)
    sampling = LocalSampling(options, LocalRows(np.arange(vocabulary), counts), WORKERS)
    began_s, iteration, likelihood = time.process_time(), 0, -np.inf
    while likelihood < target and iteration < MAX_ITERATIONS:
        iteration += 1
        sampling.sample(iteration, prior)
        of_words, totals, negative = ops.look(sampling.counts, np.array([BETA]))
        look = CountsSummary(float(of_words[0]), totals, int(negative[0]))
        likelihood = sampling.likelihood(prior) + look.words_likelihood(options)
    seconds = time.process_time() - began_s
    sampling.close()
    return seconds, iteration


if __name__ == "__main__":
    answer(Asked, measure)
