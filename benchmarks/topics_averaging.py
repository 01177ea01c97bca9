"""Online variational Bayes by model averaging (MA-LDA of "MLlib*") on generated articles: steps, perplexity, seconds.

Beside it: ours by gradients, which does what one process does; gensim's LdaModel and LdaMulticore; pyspark.ml's online.
All have the same concentrations, weights of steps, and passes over the documents. Perplexity is by one function.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks import topics_data
from benchmarks.frame import Part, answer, tell
from benchmarks.ml_part import Line
from benchmarks.topics_fit import fit, perplexity
from benchmarks.topics_part import WORKERS, Asked, spark_and_servers
from ps2.array_types import Float64s

TOPICS, WORDS, PASSES = 100, 30_000, 2
# A batch's share of the documents; step t weighs (OFFSET + t) ** -DECAY. Gensim's own offset, 1, is worse for ours.
BATCH, OFFSET, DECAY = 0.05, 64.0, 0.5
STEPS_A_PASS = round(1 / BATCH)
LOCAL_BATCHES = 10
# Averages that ours tries, until it is as good as another.
TRIED = (1, 2, 3, 4, 6, 8)
WEIGHTS: dict[str, Any] = {"learningOffset": OFFSET, "learningDecay": DECAY, "subsamplingRate": BATCH}
GRADIENT: dict[str, Any] = {"optimizer": "online", "optimizeDocConcentration": False, **WEIGHTS}
AVERAGE: dict[str, Any] = {**GRADIENT, "sync": "average", "localBatches": LOCAL_BATCHES}
AVERAGES = PASSES * STEPS_A_PASS // LOCAL_BATCHES
# The paper's: 40 communication steps in place of 300; 9 times less seconds than MLlib's.
STEPS_GOAL, PYSPARK_GOAL = 5.0, 9.0
# Times less perplexity that is still no worse: what a seed changes.
NO_WORSE = 0.99

Score = Callable[[Float64s, Float64s], float]


@dataclass(frozen=True)
class Trained:
    """A training.

    Attributes:
        way: that trained.
        steps: communication steps, or batches where nothing is communicated.
        passes: over the documents.
        seconds: of the training.
        perplexity: of documents held out.
    """

    way: str
    steps: int
    passes: float
    seconds: float
    perplexity: float

    def row(self) -> dict[str, str]:
        return {
            "way": self.way,
            "steps": str(self.steps),
            "passes": f"{self.passes:g}",
            "s": f"{self.seconds:.1f}",
            "perplexity": f"{self.perplexity:.1f}",
        }


def measure(asked: Asked) -> Part:
    counts, held = topics_data.parted(topics_data.articles(asked.documents, WORDS))
    observed, scored = topics_data.halves(held)

    def score(weights: Float64s, alpha: Float64s) -> float:
        return perplexity(weights, alpha, observed, scored)

    turns: list[dict[str, Trained]] = []
    sizes: list[dict[str, str]] = []
    with spark_and_servers(asked, "averaging") as spark:
        frame = topics_data.framed(spark, counts, WORKERS)
        for seed in range(1, asked.rounds + 1):
            found = []
            for one in _trained(frame, counts, score, seed):
                tell(", ".join(f"{name} {value}" for name, value in one.row().items()))
                found.append(one)
            sizes += [one.row() for one in found]
            turns.append({f"{one.way} {one.steps}": one for one in found})
    entries = f"{counts.nnz / counts.shape[0]:.0f}"
    facts = {"documents": counts.shape[0], "words": WORDS, "words a document": entries, "topics": TOPICS}
    return Part(list(_lines(turns)), facts={**facts, "batch": BATCH, "local batches": LOCAL_BATCHES}, sizes=sizes)


def _trained(frame: Any, counts: sp.csr_array, score: Score, seed: int) -> Iterator[Trained]:
    """Train in all ways, ours by averages once for each number of them."""
    for averages in TRIED:
        if averages <= AVERAGES:
            yield _ours("average", AVERAGE, frame, score, seed, averages)
    yield _ours("gradient", GRADIENT, frame, score, seed, PASSES * STEPS_A_PASS)
    yield _pyspark(frame, score, seed)
    yield _gensim("LdaMulticore", counts, score, seed)
    yield _gensim("LdaModel", counts, score, seed)


def _ours(way: str, params: dict[str, Any], frame: Any, score: Score, seed: int, steps: int) -> Trained:
    model, seconds = fit(frame, TOPICS, steps, {**params, "seed": seed})
    batches = LOCAL_BATCHES if way == "average" else 1
    found = score(model.topicsMatrix().toArray(), np.array(model.estimatedDocConcentration().toArray()))
    return Trained(way, steps, steps * batches * BATCH, seconds, found)


def _pyspark(frame: Any, score: Score, seed: int) -> Trained:
    from pyspark.ml.clustering import LDA

    LDA(k=2, maxIter=1, optimizer="online").fit(frame)
    steps = PASSES * STEPS_A_PASS
    began_s = time.monotonic()
    model = LDA(k=TOPICS, maxIter=steps, seed=seed, **GRADIENT).fit(frame)
    seconds = time.monotonic() - began_s
    found = score(model.topicsMatrix().toArray(), np.array(model.estimatedDocConcentration().toArray()))
    return Trained("pyspark.ml", steps, PASSES, seconds, found)


def _gensim(name: str, counts: sp.csr_array, score: Score, seed: int) -> Trained:
    """Train with gensim: in this process, or with as many others as we have workers, each with a part of a batch."""
    from gensim import matutils, models

    parts = WORKERS if name == "LdaMulticore" else 1
    own = {"workers": WORKERS} if name == "LdaMulticore" else {}
    given = {"num_topics": TOPICS, "id2word": {word: str(word) for word in range(counts.shape[1])}, "eval_every": None}
    corpus = matutils.Sparse2Corpus(counts.T)
    weights = {"offset": OFFSET, "decay": DECAY, "passes": PASSES, "random_state": seed}
    began_s = time.monotonic()
    size = round(BATCH * counts.shape[0] / parts)
    model = getattr(models, name)(corpus, chunksize=size, **given, **weights, **own)
    seconds = time.monotonic() - began_s
    found = score(model.state.get_lambda().T.astype(np.float64), model.alpha.astype(np.float64))
    return Trained(f"gensim {name}", PASSES * STEPS_A_PASS * parts, PASSES, seconds, found)


def _lines(turns: list[dict[str, Trained]]) -> Iterator[Line]:
    """Compare ours by averages with all others, turn by turn."""
    ways = [name for name in turns[0] if not name.startswith("average")]
    whole = f"average {AVERAGES}"
    for name in ways:
        against, ours = ([turn[one].perplexity for turn in turns] for one in (name, whole))
        yield Line(f"perplexity after {PASSES} passes", name, "perplexity", NO_WORSE, against, ours)
    for name in ways:
        pairs = [(turn[name], _as_good(turn, turn[name].perplexity)) for turn in turns]
        reached = [(theirs, ours) for theirs, ours in pairs if ours is not None]
        if len(reached) < len(turns):
            tell(f"ours by averages is not as good as {name} in each turn")
            continue
        if name.startswith("gradient"):
            steps = [(float(theirs.steps), float(ours.steps)) for theirs, ours in reached]
            yield Line("communication steps to its perplexity", name, "steps", STEPS_GOAL, *zip(*steps, strict=True))
        seconds = [(theirs.seconds, ours.seconds) for theirs, ours in reached]
        goal = PYSPARK_GOAL if name.startswith("pyspark") else None
        yield Line("s to its perplexity", name, "s", goal, *zip(*seconds, strict=True))


def _as_good(turn: dict[str, Trained], target: float) -> Trained | None:
    """Return the training of ours with the fewest averages that comes to a perplexity."""
    ours = [one for one in turn.values() if one.way == "average" and one.perplexity <= target]
    return min(ours, key=lambda one: one.steps, default=None)


if __name__ == "__main__":
    answer(Asked, measure)
