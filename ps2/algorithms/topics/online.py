"""Online variational Bayes: a batch of documents each clock, and lambda on the servers.

Hoffman, Blei and Bach, "Online learning for latent Dirichlet allocation" (2010), Algorithm 2, with the params of
pyspark.ml's "online" optimizer. In a clock each worker draws its documents of the batch, reads the blocks of their
words, and adds what the documents tell of them; when all have, the servers take the step, and the driver that of alpha.
So all that the training has become is on the servers, and a batch depends on nothing but seed, iteration and documents:
a worker that comes again does the same once more, and what it had added counts once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import polygamma, psi

from ps2.algorithms.topics import online_kernels as kernels
from ps2.algorithms.topics.corpus import key_of
from ps2.algorithms.topics.problem import Fitted, OnlineRecipe
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Record, StepReport, Words
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.training.run import FIRST_CLOCK, Training, run_training
from ps2.algorithms.training.table import Table
from ps2.algorithms.training.tally import BYTES, LOSS, ROWS, SUMS, WEIGHT
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.data.rows import LocalRows
from ps2.errors import PS2Error
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s

UInt64s = npt.NDArray[np.uint64]

# Of lambda on the servers. Steps round it to 24 bits: far below what a batch tells.
DTYPE = "float32"
# A worker has so many bytes of weights at once, and as many of statistics.
ROOM_BYTES = 256 << 20
# What workers add up for the driver: behind what all trainings have, the documents of all, and log shares by topic.
DOCUMENTS = SUMS
LOG_SHARES = SUMS + 1


def train_online(
    ps: Any, table: Table, recipe: OnlineRecipe, on_step: Callable[[StepReport], None] = lambda step: None
) -> Fitted:
    """Find topics on the servers of a context, or go on in one that was restored: see ``OnlineRecipe.name``.

    On any number of workers and servers batches are the same, and results are, but for the order in which numbers are
    added up.

    Args:
        ps: the PS2Context.
        table: documents; features are how often each word comes.
        recipe: how to find topics.
        on_step: called in the driver after each iteration.

    Returns:
        Of which the history's objective is minus the bound of a batch's log-likelihood as its iteration began, a token.

    Raises:
        LimitError: lambda cannot fit the servers.
        NotFoundError, ConfigError: the context was restored from a checkpoint without a training of this name, or with
            another one.
        InputError: a row cannot be used; says how many, and names one.
        PS2Error: the training has diverged: what it computes is not finite any more.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    names = CheckpointNames.of(recipe.name, ps)
    driver = _Driver(recipe, Record(on_step, Words("iteration", "-bound a token")), names)
    try:
        if names.begun >= FIRST_CLOCK + recipe.iterations:
            return driver.fitted()
        training = Training(
            table, recipe.form, driver.half, driver.on_clock, 0, recipe.seed, names.begun, driver.journal
        )
        return run_training(ps, training, driver.fitted)
    finally:
        driver.free()


def alpha_after(alpha: Float64s, log_shares: Float64s, documents: float, weight: float) -> Float64s:
    """Return alpha after a step of Newton's method (Hoffman et al., section 3.3; pyspark.ml's, to the letter).

    Args:
        log_shares: E[log theta], summed over so many documents.
        weight: of the step. One that would lead out of what alpha may be is not taken.
    """
    gradient = documents * (psi(alpha.sum()) - psi(alpha)) + log_shares
    diagonal, rest = -documents * polygamma(1, alpha), documents * polygamma(1, alpha.sum())
    shared = (gradient / diagonal).sum() / (1 / rest + (1 / diagonal).sum())
    moved = alpha - weight * (gradient - shared) / diagonal
    return np.asarray(moved if (moved > 0).all() else alpha)


@dataclass(frozen=True, eq=False)
class Half:
    """What each worker does; picklable.

    Attributes:
        counts: lambda without beta; its columns are words.
        stats: what workers add to in a clock.
        control: alpha, and lambda's sums over words, by topic; the driver writes, the workers read.
        tally: what the workers add up.
    """

    recipe: OnlineRecipe
    counts: DCVMatrix
    stats: DCVMatrix
    control: DCV
    tally: DCV

    def __call__(self, worker: Any, reading: Reading) -> None:
        rows = reading.training
        rows = rows.chosen(np.flatnonzero(rows.x.sum(axis=1) > 0))
        ids = ids_of(rows)
        for clock in worker.clocks(FIRST_CLOCK + self.recipe.iterations):
            key = key_of(self.recipe.seed, clock - FIRST_CLOCK)
            tally = np.zeros(LOG_SHARES + self.recipe.topics)
            tally[DOCUMENTS] = len(rows)
            for part in self._parts(rows, kernels.draw(ids, key, self.recipe.fraction)):
                self._infer(part, key, tally)
            self.tally.add(tally)

    def _parts(self, rows: LocalRows, drawn: kernels.Mask) -> Iterator[LocalRows]:
        """Yield documents whose words' weights fit into a worker's memory: all at once if they do."""
        words = max(1, ROOM_BYTES // (8 * self.recipe.topics))
        if drawn.all() and len(rows.keys) <= words:
            yield rows
            return
        numbers = np.flatnonzero(drawn)
        # There are no more words than entries.
        ends = np.cumsum(np.diff(rows.x.indptr)[numbers])
        cuts = [0, len(numbers)]
        if len(numbers) and len(rows.keys) > words and ends[-1] > words:
            cuts = [0, *(np.flatnonzero(np.diff(ends // words)) + 1).tolist(), len(numbers)]
        for begin, end in pairwise(cuts):
            if begin < end:
                yield rows.take(numbers[begin:end])

    def _infer(self, part: LocalRows, key: np.uint64, tally: Float64s) -> None:
        """Read the blocks of some documents' words, and add what the documents tell of them."""
        topics = self.recipe.topics
        with batch():
            asked = self.control.pull(), self.counts.pull(columns=part.keys)
        control, counts = asked[0].result(), asked[1].result()
        told = told_of(part, counts, self.recipe.beta, control[:topics], control[topics:], key)
        stats = told.stats.astype(counts.dtype)
        tally[LOSS] -= told.bound
        tally[[WEIGHT, ROWS, BYTES]] += part.x.data.sum(), len(part), counts.nbytes + stats.nbytes
        tally[LOG_SHARES:] += told.log_shares
        self.stats.add(columns=part.keys, values=stats)


@dataclass(frozen=True, eq=False)
class Told:
    """What documents tell.

    Attributes:
        stats: shape (words, topics): expected tokens of their words in topics.
        log_shares: shape (topics,): E[log theta], summed up.
        bound: of their log-likelihood.
    """

    stats: Float64s
    log_shares: Float64s
    bound: float


def told_of(
    part: LocalRows, counts: kernels.Array, beta: float, alpha: Float64s, totals: Float64s, key: np.uint64
) -> Told:
    """Infer the topics of documents (the E-step).

    Each begins with topics of its own, at random: if all began with all topics alike, most would come to the same
    ones, of which they then had made a topic that is of everything.

    Args:
        counts: shape (words, topics): lambda without beta, of the documents' words.
        totals: shape (topics,): lambda's sums over all words.
        key: of seed and iteration.
    """
    weights, stats, log_shares = np.empty(counts.shape), np.zeros(counts.shape), np.zeros(len(alpha))
    kernels.weigh(readable(counts), beta, readable(totals), weights)
    entries = readable(part.x.indptr), readable(part.x.indices), readable(part.x.data)
    seeds, no_gammas = readable(ids_of(part) + key), np.empty((0, len(alpha)))
    bound = kernels.infer(*entries, readable(weights), readable(alpha), seeds, no_gammas, stats, log_shares)
    stats *= weights
    return Told(stats, log_shares, bound)


def ids_of(rows: LocalRows) -> UInt64s:
    """Return a number for each document that its words make, wherever it lies: documents that are equal have one."""
    ids = np.empty(len(rows), np.uint64)
    tokens = rows.x.data.astype(np.float64).view(np.uint64)
    kernels.identify(readable(rows.x.indptr), readable(rows.keys[rows.x.indices]), readable(tokens), ids)
    return readable(ids)


class _Driver:
    """The driver's half."""

    def __init__(self, recipe: OnlineRecipe, record: Record, names: CheckpointNames) -> None:
        self._recipe, self._record = recipe, record
        settings = {name: value for name, value in asdict(recipe).items() if name not in ("iterations", "name")}
        self.journal = ReplayJournal.of(names, settings)
        topics, words = recipe.topics, recipe.vocabulary
        counts = names.give(lambda name: DCV.dense(words, topics, DTYPE, layout="column", name=name))
        control = names.give(lambda name: DCV.dense(2 * topics, 1, "float64", name=name))
        stats = DCV.dense(words, topics, DTYPE, layout="column").matrix()
        tally = DCV.dense(LOG_SHARES + topics, 1, "float64")
        self.half = Half(recipe, counts.matrix(), stats, control, tally)
        if not names.begun:
            sums = self.half.counts.apply("variational.begin", seed=recipe.seed, beta=recipe.beta)
            self._tell(recipe.alphas, sums)
        record.start()

    def on_clock(self, iteration: int, reports: Sequence[Any] = ()) -> None:
        """Take the step of an iteration, in which all workers have done their share."""
        recipe, half, record = self._recipe, self.half, self._record
        record.enter(iteration)
        with batch():
            asked = half.tally.pull(), half.control.pull()
            half.tally.zero()
        tally, alpha = asked[0].result(), asked[1].result()[: recipe.topics]
        documents, weight = float(tally[ROWS]), recipe.weight(iteration + 1)
        if documents:
            scale = weight * float(tally[DOCUMENTS]) / documents
            sums = half.counts.apply("variational.step", stats=half.stats, keep=1 - weight, scale=scale)
            if recipe.optimize_alpha:
                alpha = alpha_after(alpha, tally[LOG_SHARES:], documents, weight)
            self._tell(alpha, sums)
        record.add(tally)
        tokens = float(tally[WEIGHT])
        if not (np.isfinite(tally).all() and np.isfinite(alpha).all()):
            raise PS2Error(
                f"iteration {iteration + 1}: the bound of the likelihood, or alpha, is not finite: the training has "
                "diverged; a larger learningOffset, or another docConcentration or topicConcentration, may help"
            )
        told = {"tokens_per_s": tokens / record.lap_s}
        record.step(float(tally[LOSS]) / tokens if tokens else math.nan, told)

    def fitted(self) -> Fitted:
        """Return what is on the servers."""
        recipe, half = self._recipe, self.half
        counts = half.counts.pull(columns=np.arange(recipe.vocabulary)).astype(np.float64)
        alpha = half.control.pull()[: recipe.topics]
        return Fitted(counts, alpha, recipe.beta, self._record.history())

    def free(self) -> None:
        """Give all back that is on the servers."""
        for vector in (self.half.counts, self.half.stats, self.half.control, self.half.tally):
            vector.free()

    def _tell(self, alpha: Float64s, sums: Float64s) -> None:
        """Tell the workers alpha, and lambda's sums over all words."""
        self.half.control.push(np.concatenate([alpha, sums + self._recipe.beta * self._recipe.vocabulary]))
