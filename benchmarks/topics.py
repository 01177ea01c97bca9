"""Topic models against tomotopy and pyspark.ml's LDA: seconds to their likelihood or perplexity.

docs/performance/topics.md says how to read it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from click import ClickException

from benchmarks import topics_data
from benchmarks.frame import Args, Benchmark, Line, Part, tell
from benchmarks.local_spark import WORKERS, spark_and_servers
from ps2.array_types import Float64s

ALPHA, BETA = 0.1, 0.01
# Of a document's topics, with the words' given.
FOLD_INS = 100
SAMPLING = {"docConcentration": [ALPHA], "topicConcentration": BETA, "seed": 1}
# -- of the part tomotopy
# Topics, and times less seconds than tomotopy's; iterations of ours, which may need more than tomotopy's.
TOMOTOPY_GOALS = {20: 1 / 1.5, 100: 1 / 1.2, 1000: 1 / 0.9}
ITERATIONS, MORE = 200, 260
EVERY = 10
# -- of the part pyspark
TOPICS, PYSPARK_ITERATIONS = 100, 50
# Numbers of iterations that ours tries, until it is as good.
TRIED = (5, 10, 20, 30, 50, 100, 200)
GOALS = {("em", "cgs"): 17.0, ("online", "cgs"): 17.0, ("online", "online"): 5.0}
# Of the optimizer online: a twentieth of the documents in each step, as pyspark.ml's default.
OURS: dict[str, Mapping[str, Any]] = {"cgs": SAMPLING, "online": {"optimizer": "online"}}
# What "online" comes to depends on how it begins, theirs and ours: medians of these.
SEEDS = {"em": (1,), "cgs": (1,), "online": (1, 2, 3)}
Score = Callable[[Any], float]


@dataclass(frozen=True, eq=False)
class Curve:
    """How a training went.

    Attributes:
        iterations: after which the likelihood is known.
        seconds: that they took, shape (n,); of ours with computing the likelihood.
        likelihoods: joint log-likelihood of words and topics, shape (n,).
    """

    iterations: npt.NDArray[np.int64]
    seconds: Float64s
    likelihoods: Float64s

    def seconds_to(self, likelihood: float) -> float:
        """Return when a likelihood was reached; ClickException if it was not."""
        reached = np.flatnonzero(self.likelihoods >= likelihood)
        if not len(reached):
            raise ClickException(
                f"{self.likelihoods.max():,.0f} is below {likelihood:,.0f}: more iterations are needed"
            )
        return float(self.seconds[reached[0]])

    def at(self, iteration: int) -> float:
        """Return the likelihood after an iteration."""
        return float(self.likelihoods[np.searchsorted(self.iterations, iteration)])


# -- parts -------------------------------------------------------------------------------------------------------------


def tomotopy(args: Args) -> Part:
    """Compare seconds to tomotopy's likelihood after 200 iterations, as ``via="auto"`` chooses, and with servers."""
    counts = topics_data.kos(args.data_dir)
    lines: list[Line] = []
    with spark_and_servers("topics_tomotopy", args.memory) as (spark, _):
        frame = topics_data.framed(spark, counts, 2)
        for topics, goal in TOMOTOPY_GOALS.items():
            theirs_s: list[float] = []
            ours_s: dict[int | None, list[float]] = {None: [], **({WORKERS: []} if topics == 100 else {})}
            for _ in range(args.rounds):
                theirs = _tomotopy(counts, topics, ITERATIONS, EVERY)
                theirs_s.append(float(theirs.seconds[-1]))
                for workers, seconds in ours_s.items():
                    model, _ = fit(frame, topics, MORE, SAMPLING, workers)
                    seconds.append(curve_of(model).seconds_to(theirs.at(ITERATIONS)))
                    tell(
                        f"K={topics}: tomotopy {theirs_s[-1]:.2f} s, ours {seconds[-1]:.2f}, {model.summary.placement}"
                    )
            what = f"KOS, K={topics}: s to its likelihood after {ITERATIONS}"
            lines.append(Line(what, "tomotopy", "s", goal, theirs_s, ours_s[None]))
            if WORKERS in ours_s:
                lines.append(Line(f"{what}, with servers", "tomotopy", "s", 0.4, theirs_s, ours_s[WORKERS]))
    return Part(lines, facts={"tokens": int(counts.data.sum())})


def pyspark(args: Args) -> Part:
    """Compare seconds to the perplexity of held-out documents that pyspark.ml's LDA comes to, em and online."""
    counts, held = topics_data.parted(topics_data.kos(args.data_dir))
    observed, scored = topics_data.halves(held)
    with spark_and_servers("topics_pyspark", args.memory) as (spark, _):
        frame = topics_data.framed(spark, counts, 2)

        def score(model: Any) -> float:
            weights = model.topicsMatrix().toArray()
            return perplexity(weights, np.array(model.estimatedDocConcentration().toArray()), observed, scored)

        lines, rows = [], []
        theirs = {optimizer: _pyspark(frame, optimizer, score) for optimizer in ("em", "online")}
        for (their_optimizer, optimizer), goal in GOALS.items():
            seconds, target = theirs[their_optimizer]
            taken, result, iterations = _ours(frame, optimizer, score, target)
            against = f"pyspark.ml {their_optimizer}"
            lines.append(Line(f"{optimizer}: s to its perplexity", against, "s", goal, [seconds], [taken]))
            rows.append(
                {
                    "ours": optimizer,
                    "iterations": iterations,
                    "perplexity": f"{result:.1f}",
                    "pyspark.ml": their_optimizer,
                    "its perplexity": f"{target:.1f}",
                }
            )
    return Part(lines, facts={"corpus": "KOS", "topics": TOPICS, "held out": held.shape[0]}, table=rows)


# -- trainings ---------------------------------------------------------------------------------------------------------


def fit(
    frame: Any, topics: int, iterations: int, params: Mapping[str, Any], workers: int | None = WORKERS
) -> tuple[Any, float]:
    """Train with ours; return the model, and seconds of ``fit``.

    Args:
        workers: with servers; None: as ``via="auto"`` chooses.

    Spark ends Python workers that have idled for a minute, and new ones begin with imports: an iteration comes first.
    """
    from ps2.algorithms.clustering import LDA

    inputs = {"k": topics, **params, **({} if workers is None else {"numWorkers": workers})}
    LDA(**inputs, maxIter=1).fit(frame)
    began_s = time.monotonic()
    model = LDA(**inputs, maxIter=iterations).fit(frame)
    return model, time.monotonic() - began_s


def curve_of(model: Any) -> Curve:
    """Return how a training of ours by sampling went."""
    history = model.summary.history
    likelihoods = np.array(history.metrics["log_likelihood"])
    return Curve(np.arange(1, len(likelihoods) + 1), np.cumsum(history.seconds), likelihoods)


def _tomotopy(counts: sp.csr_array, topics: int, iterations: int, every: int) -> Curve:
    """Train with tomotopy and as many threads as we have workers; its likelihood is computed beside the time."""
    import tomotopy as tp

    model = tp.LDAModel(tw=tp.TermWeight.ONE, k=topics, alpha=ALPHA, eta=BETA, seed=1)
    model.optim_interval = 0
    for begin, end in pairwise(counts.indptr):
        model.add_doc([str(word) for word in np.repeat(counts.indices[begin:end], counts.data[begin:end])])
    seconds, likelihoods = [0.0], []
    ends = np.arange(every, iterations + 1, every)
    for _ in ends:
        began_s = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that threads make results differ
            model.train(every, workers=WORKERS)
        seconds.append(seconds[-1] + time.monotonic() - began_s)
        likelihoods.append(model.ll_per_word * model.num_words)
    return Curve(ends, np.array(seconds[1:]), np.array(likelihoods))


def perplexity(weights: Float64s, alpha: Float64s, observed: sp.csr_array, scored: sp.csr_array) -> float:
    """Return the perplexity of a half of each document, given the other: document completion.

    One function for all models: a document's topics are those of the largest probability, found by fixed-point
    iteration, given the words' topics.

    Args:
        weights: shape (words, topics): of words in topics, as Dirichlet's parameters.
        alpha: of topics in documents.
        observed, scored: the halves.
    """
    phi = weights / weights.sum(axis=0)
    theta = np.full((observed.shape[0], len(alpha)), 1.0 / len(alpha))
    document = np.repeat(np.arange(observed.shape[0]), np.diff(observed.indptr))
    for _ in range(FOLD_INS):
        expected = theta[document] * phi[observed.indices]
        ratios = observed.data / expected.sum(axis=1)
        sums = sp.csr_array((ratios, observed.indices, observed.indptr), observed.shape) @ phi
        theta = theta * sums + alpha
        theta /= theta.sum(axis=1, keepdims=True)
    document = np.repeat(np.arange(scored.shape[0]), np.diff(scored.indptr))
    shares = np.einsum("nk,nk->n", theta[document], phi[scored.indices])
    return float(np.exp(-(scored.data * np.log(shares)).sum() / scored.data.sum()))


def _pyspark(frame: Any, optimizer: str, score: Score) -> tuple[float, float]:
    """Return seconds and perplexity of pyspark.ml's."""
    from pyspark.ml.clustering import LDA, DistributedLDAModel, LDAModel

    LDA(k=2, maxIter=1, optimizer=optimizer).fit(frame)
    turns = []
    for seed in SEEDS[optimizer]:
        began_s = time.monotonic()
        model: LDAModel = LDA(k=TOPICS, maxIter=PYSPARK_ITERATIONS, optimizer=optimizer, seed=seed).fit(frame)
        seconds = time.monotonic() - began_s
        if isinstance(model, DistributedLDAModel):
            model = model.toLocal()
        turns.append((seconds, score(model)))
        tell(f"pyspark.ml, {optimizer}: {seconds:.1f} s, perplexity {turns[-1][1]:.1f}")
    return _medians(turns)


def _ours(frame: Any, optimizer: str, score: Score, target: float) -> tuple[float, float, int]:
    """Return seconds of ``fit``, perplexity and iterations of the shortest training that comes to a perplexity."""
    for iterations in TRIED:
        turns = []
        for seed in SEEDS[optimizer]:
            model, seconds = fit(frame, TOPICS, iterations, {**OURS[optimizer], "seed": seed})
            turns.append((seconds, score(model)))
        seconds, result = _medians(turns)
        tell(f"ours, {optimizer}, {iterations} iterations: {seconds:.1f} s, perplexity {result:.1f}")
        if result <= target:
            return seconds, result, iterations
    raise ClickException(f"{optimizer}: {result:.1f} is above {target:.1f} after {iterations} iterations")


def _medians(turns: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the median of seconds, and that of perplexities."""
    seconds, result = np.median(np.array(turns), axis=0)
    return float(seconds), float(result)


PARTS = {"tomotopy": tomotopy, "pyspark": pyspark}
BENCHMARK = Benchmark("topics", Args, PARTS, dict.fromkeys(PARTS, topics_data.KOS), packages=("tomotopy",))

if __name__ == "__main__":
    BENCHMARK.main()
