"""Online variational Bayes: one batch of documents per clock, with lambda on the servers.

Hoffman, Blei and Bach, "Online learning for latent Dirichlet allocation" (2010), Algorithm 2, with the params of
pyspark.ml's "online" optimizer. In a clock each worker draws its documents of the batch, reads the blocks of their
words, and adds the documents' statistics. Then the servers take the step of lambda, and the driver that of alpha. So
the whole model is on the servers, and a batch depends on seed, iteration and documents only: an attempt that repeats a
clock does the same again, and its additions count once.
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
from ps2.algorithms.topics.options import FittedTopics, OnlineOptions
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Record, StepReport, Words
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.training.run import FIRST_CLOCK, Training, run_training
from ps2.algorithms.training.table import Table
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.data.rows import LocalRows
from ps2.errors import PS2Error
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s

UInt64s = npt.NDArray[np.uint64]

# The dtype of lambda on the servers. Rounding to 24 bits is far below the noise of a batch.
DTYPE = "float32"
# Maximum bytes of a worker's weights at a time; its statistics take as many.
ROOM_BYTES = 256 << 20


def train_online(
    ps: Any, table: Table, options: OnlineOptions, on_step: Callable[[StepReport], None] = lambda step: None
) -> FittedTopics:
    """Find topics on the servers of a context; in a restored context, continue: see ``OnlineOptions.name``.

    The batches are the same for any number of workers and servers. So are the results, except for the order of sums.

    Args:
        ps: the PS2Context.
        table: documents; features are counts of words.
        options: the options.
        on_step: called in the driver after each iteration.

    Returns:
        The topics. The history's objective is minus the bound of a batch's log-likelihood per token, at the beginning
        of its iteration.

    Raises:
        LimitError: lambda does not fit on the servers.
        NotFoundError, ConfigError: the context was restored from a checkpoint without a training of this name, or with
            another one.
        InputError: rows cannot be used; says how many, and names one.
        PS2Error: the training has diverged: a result is not finite.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    names = CheckpointNames.of(options.name, ps)
    driver = _Driver(options, Record(on_step, Words("iteration", "-bound a token")), names)
    try:
        if names.begun >= FIRST_CLOCK + options.iterations:
            return driver.fitted()
        training = Training(
            table, options.form, driver.program, driver.on_clock, 0, options.seed, names.begun, driver.journal
        )
        return run_training(ps, training, driver.fitted)
    finally:
        driver.free()


def alpha_after(alpha: Float64s, log_shares: Float64s, documents: float, weight: float) -> Float64s:
    """Return alpha after a step of Newton's method (Hoffman et al., section 3.3; exactly as in pyspark.ml).

    Args:
        log_shares: E[log theta], summed over the documents.
        documents: number of documents.
        weight: of the step. A step that makes alpha non-positive is not taken.
    """
    gradient = documents * (psi(alpha.sum()) - psi(alpha)) + log_shares
    diagonal, rest = -documents * polygamma(1, alpha), documents * polygamma(1, alpha.sum())
    shared = (gradient / diagonal).sum() / (1 / rest + (1 / diagonal).sum())
    moved = alpha - weight * (gradient - shared) / diagonal
    return np.asarray(moved if (moved > 0).all() else alpha)


@dataclass
class BatchReport:
    """A worker's report on its documents of a batch.

    Attributes:
        log_shares: shape (topics,): E[log theta], summed over the documents.
        documents: number of the worker's documents, inside and outside of the batch.
        drawn: number of documents in the batch.
        tokens: of the batch.
        bound: of the log-likelihood.
        bytes: moved between worker and servers.
    """

    log_shares: Float64s
    documents: int
    drawn: int = 0
    tokens: float = 0.0
    bound: float = 0.0
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class OnlineProgram:
    """What each worker runs; picklable.

    Attributes:
        counts: lambda minus beta; its columns are words.
        stats: the workers' sum of statistics in a clock.
        control: alpha, and lambda's sums over words, by topic; the driver writes, the workers read.
    """

    options: OnlineOptions
    counts: DCVMatrix
    stats: DCVMatrix
    control: DCV

    def __call__(self, worker: Any, reading: Reading) -> None:
        rows = reading.training
        rows = rows.chosen(np.flatnonzero(rows.x.sum(axis=1) > 0))
        ids = ids_of(rows)
        for clock in worker.clocks(FIRST_CLOCK + self.options.iterations):
            key = key_of(self.options.seed, clock - FIRST_CLOCK)
            batch_of = BatchReport(np.zeros(self.options.topics), documents=len(rows))
            for part in self._parts(rows, kernels.draw(ids, key, self.options.fraction)):
                self._infer(part, key, batch_of)
            worker.report(asdict(batch_of))

    def _parts(self, rows: LocalRows, drawn: kernels.Mask) -> Iterator[LocalRows]:
        """Yield batches of documents whose words' weights fit into a worker's memory."""
        words = max(1, ROOM_BYTES // (8 * self.options.topics))
        if drawn.all() and len(rows.keys) <= words:
            yield rows
            return
        numbers = np.flatnonzero(drawn)
        # A document has at most as many words as entries.
        ends = np.cumsum(np.diff(rows.x.indptr)[numbers])
        cuts = [0, len(numbers)]
        if len(numbers) and len(rows.keys) > words and ends[-1] > words:
            cuts = [0, *(np.flatnonzero(np.diff(ends // words)) + 1).tolist(), len(numbers)]
        for begin, end in pairwise(cuts):
            if begin < end:
                yield rows.take(numbers[begin:end])

    def _infer(self, part: LocalRows, key: np.uint64, report: BatchReport) -> None:
        """Read the blocks of some documents' words, and add the documents' statistics."""
        topics = self.options.topics
        with batch():
            asked = self.control.pull(), self.counts.pull(columns=part.keys)
        control, counts = asked[0].result(), asked[1].result()
        told = infer_statistics(part, counts, self.options.beta, control[:topics], control[topics:], key)
        stats = told.stats.astype(counts.dtype)
        report.bound += told.bound
        report.tokens += float(part.x.data.sum())
        report.drawn += len(part)
        report.bytes += counts.nbytes + stats.nbytes
        report.log_shares += told.log_shares
        self.stats.add(columns=part.keys, values=stats)


@dataclass(frozen=True, eq=False)
class DocumentStatistics:
    """Statistics of documents.

    Attributes:
        stats: shape (words, topics): expected tokens of their words in topics.
        log_shares: shape (topics,): E[log theta], summed up.
        bound: of their log-likelihood.
    """

    stats: Float64s
    log_shares: Float64s
    bound: float


def infer_statistics(
    part: LocalRows, counts: kernels.Array, beta: float, alpha: Float64s, totals: Float64s, key: np.uint64
) -> DocumentStatistics:
    """Infer the topics of documents (the E-step).

    Each document begins with random topics. If all began with equal topics, most would converge to the same ones, and
    those topics would become a mixture of everything.

    Args:
        counts: shape (words, topics): lambda minus beta, of the documents' words.
        totals: shape (topics,): lambda's sums over all words.
        key: of seed and iteration.
    """
    weights, stats, log_shares = np.empty(counts.shape), np.zeros(counts.shape), np.zeros(len(alpha))
    kernels.weigh(readable(counts), beta, readable(totals), weights)
    entries = readable(part.x.indptr), readable(part.x.indices), readable(part.x.data)
    seeds, no_gammas = readable(ids_of(part) + key), np.empty((0, len(alpha)))
    bound = kernels.infer(*entries, readable(weights), readable(alpha), seeds, no_gammas, stats, log_shares)
    stats *= weights
    return DocumentStatistics(stats, log_shares, bound)


def ids_of(rows: LocalRows) -> UInt64s:
    """Return an id for each document that depends on its words and counts only."""
    ids = np.empty(len(rows), np.uint64)
    tokens = rows.x.data.astype(np.float64).view(np.uint64)
    kernels.identify(readable(rows.x.indptr), readable(rows.keys[rows.x.indices]), readable(tokens), ids)
    return readable(ids)


class _Driver:
    """The driver's program."""

    def __init__(self, options: OnlineOptions, record: Record, names: CheckpointNames) -> None:
        self._options, self._record = options, record
        settings = {name: value for name, value in asdict(options).items() if name not in ("iterations", "name")}
        self.journal = ReplayJournal.of(names, settings)
        topics, words = options.topics, options.vocabulary
        counts = names.give(lambda name: DCV.dense(words, topics, DTYPE, layout="column", name=name))
        control = names.give(lambda name: DCV.dense(2 * topics, 1, "float64", name=name))
        stats = DCV.dense(words, topics, DTYPE, layout="column").matrix()
        self.program = OnlineProgram(options, counts.matrix(), stats, control)
        if not names.begun:
            sums = self.program.counts.apply("variational.begin", seed=options.seed, beta=options.beta)
            self._tell(options.alphas, sums)
        record.start()

    def on_clock(self, iteration: int, reports: Sequence[Any]) -> None:
        """Take the step of an iteration after all workers have added their statistics."""
        options, program, record = self._options, self.program, self._record
        record.enter(iteration)
        report, alpha = BatchReport(**reports[0]), program.control.pull()[: options.topics]
        weight = options.weight(iteration + 1)
        if report.drawn:
            scale = weight * report.documents / report.drawn
            sums = program.counts.apply("variational.step", stats=program.stats, keep=1 - weight, scale=scale)
            if options.optimize_alpha:
                alpha = alpha_after(alpha, report.log_shares, report.drawn, weight)
            self._tell(alpha, sums)
        record.add(report.drawn, report.bytes)
        tokens = report.tokens
        if not (math.isfinite(report.bound) and np.isfinite(report.log_shares).all() and np.isfinite(alpha).all()):
            raise PS2Error(
                f"iteration {iteration + 1}: the bound of the likelihood, or alpha, is not finite: the training has "
                "diverged; a larger learningOffset, or another docConcentration or topicConcentration, may help"
            )
        told = {"tokens_per_s": tokens / record.lap_s}
        record.step(-report.bound / tokens if tokens else math.nan, told)

    def fitted(self) -> FittedTopics:
        """Return the result."""
        options, program = self._options, self.program
        counts = program.counts.pull(columns=np.arange(options.vocabulary)).astype(np.float64)
        alpha = program.control.pull()[: options.topics]
        return FittedTopics(counts, alpha, options.beta, self._record.history())

    def free(self) -> None:
        """Free the state on the servers."""
        for vector in (self.program.counts, self.program.stats, self.program.control):
            vector.free()

    def _tell(self, alpha: Float64s, sums: Float64s) -> None:
        """Publish alpha, and lambda's sums over all words, to the workers."""
        self.program.control.push(np.concatenate([alpha, sums + self._options.beta * self._options.vocabulary]))
