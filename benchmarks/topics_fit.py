"""Trainings of ``benchmarks.topics``: ours and the others', and how good their topics are."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from click import ClickException

from benchmarks.topics_part import ALPHA, BETA, WORKERS
from ps2.array_types import Float64s

# Of a document's topics, with the words' given.
FOLD_INS = 100
SAMPLING = {"docConcentration": [ALPHA], "topicConcentration": BETA, "seed": 1}


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


def fit(
    frame: Any, topics: int, iterations: int, params: Mapping[str, Any], workers: int | None = WORKERS
) -> tuple[Any, float]:
    """Train with ours; return the model, and seconds of ``fit``.

    Args:
        workers: with servers; None: as ``via="auto"`` chooses.

    Spark ends Python workers that have idled for a minute, and new ones begin with imports: an iteration comes first.
    """
    from ps2.algorithms.clustering import LDA

    given = {"k": topics, **params, **({} if workers is None else {"numWorkers": workers})}
    LDA(**given, maxIter=1).fit(frame)
    began_s = time.monotonic()
    model = LDA(**given, maxIter=iterations).fit(frame)
    return model, time.monotonic() - began_s


def curve_of(model: Any) -> Curve:
    """Return how a training of ours by sampling went."""
    history = model.summary.history
    likelihoods = np.array(history.metrics["log_likelihood"])
    return Curve(np.arange(1, len(likelihoods) + 1), np.cumsum(history.seconds), likelihoods)


def peer_model(counts: sp.csr_array, topics: int) -> Any:
    """Return tomotopy's model of documents, untrained."""
    import tomotopy as tp

    model = tp.LDAModel(tw=tp.TermWeight.ONE, k=topics, alpha=ALPHA, eta=BETA, seed=1)
    model.optim_interval = 0
    for begin, end in zip(counts.indptr[:-1], counts.indptr[1:], strict=True):
        model.add_doc([str(word) for word in np.repeat(counts.indices[begin:end], counts.data[begin:end])])
    return model


def tomotopy(counts: sp.csr_array, topics: int, iterations: int, every: int) -> Curve:
    """Train with tomotopy and as many threads as we have workers; its likelihood is computed beside the time."""
    model = peer_model(counts, topics)
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
