"""Online variational Bayes: one batch of documents per clock, with lambda on the servers.

Hoffman, Blei and Bach, "Online learning for latent Dirichlet allocation" (2010), Algorithm 2, with the params of
pyspark.ml's "online" optimizer. In a clock each worker draws its documents of the batch, reads the blocks of their
words, and adds the documents' statistics. Then the servers take the step of lambda, and the driver that of alpha. So
the whole model is on the servers, and a batch depends on seed, iteration and documents only: an attempt that repeats a
clock does the same again, and its additions count once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ps2.algorithms.topics import online_kernels as kernels
from ps2.algorithms.topics.averaging import AveragedReport, AveragingProgram
from ps2.algorithms.topics.corpus import key_of
from ps2.algorithms.topics.evidence import BatchReport, alpha_after, ids_of, infer_statistics
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
from ps2.ops.kernels import Float64s

log = logging.getLogger(__name__)

# The dtype of lambda on the servers. Rounding to 24 bits is far below the noise of a batch.
DTYPE = "float32"
# Maximum bytes of a worker's weights at a time; its statistics take as many.
ROOM_BYTES = 256 << 20


def train_online(
    ps: Any, table: Table, options: OnlineOptions, on_step: Callable[[StepReport], None] = lambda step: None
) -> FittedTopics:
    """Find topics on the servers of a context; in a restored context, continue: see ``OnlineOptions.name``.

    The batches are the same for any number of workers and servers. So are the results, except for the order of sums;
    with ``sync`` "average" they depend on which worker has which documents.

    Args:
        ps: the PS2Context.
        table: documents; features are counts of words.
        options: the options.
        on_step: called in the driver after each iteration.

    Returns:
        The topics. The history's objective is minus the bound of a batch's log-likelihood per token, at the beginning
        of its iteration; of a batch without a document, that of the batch before, or of the first one with any. NaN if
        no batch has a document.

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
        self.program: OnlineProgram | AveragingProgram
        if options.sync == "average":
            documents = names.give(lambda name: DCV.dense(1, 1, "float64", name=name))
            self.program = AveragingProgram(options, counts.matrix(), stats, control, documents)
        else:
            self.program = OnlineProgram(options, counts.matrix(), stats, control)
        if not names.begun:
            sums = self.program.counts.apply("variational.begin", seed=options.seed, beta=options.beta)
            self._tell(options.alphas, sums)
        record.start()

    def on_clock(self, iteration: int, reports: Sequence[Any]) -> None:
        """Take the step of an iteration after all workers have added their statistics."""
        options, program, record = self._options, self.program, self._record
        record.enter(iteration)
        report, alpha = self._report(reports[0]), program.control.pull()[: options.topics]
        if isinstance(report, AveragedReport):
            alpha = self._average(report)
        elif report.drawn:
            alpha = self._step(options.weight(iteration + 1), report, alpha)
        record.add(report.drawn, report.bytes)
        tokens = report.tokens
        if not (math.isfinite(report.bound) and np.isfinite(report.log_shares).all() and np.isfinite(alpha).all()):
            raise PS2Error(
                f"iteration {iteration + 1}: the bound of the likelihood, or alpha, is not finite: the training has "
                "diverged; a larger learningOffset, or another docConcentration or topicConcentration, may help"
            )
        told = {"tokens_per_s": tokens / record.lap_s}
        record.step(record.known(-report.bound / tokens if tokens else math.nan), told)

    def _report(self, told: Any) -> BatchReport:
        return AveragedReport(**told) if self._options.sync == "average" else BatchReport(**told)

    def _step(self, weight: float, report: BatchReport, alpha: Float64s) -> Float64s:
        """Take a step by the workers' statistics; return alpha after it."""
        program = self.program
        scale = weight * report.documents / report.drawn
        sums = program.counts.apply("variational.step", stats=program.stats, keep=1 - weight, scale=scale)
        if self._options.optimize_alpha:
            alpha = alpha_after(alpha, report.log_shares, report.drawn, weight)
        self._tell(alpha, sums)
        return alpha

    def _average(self, report: AveragedReport) -> Float64s:
        """Make the average of the workers' lambdas, weighted by their documents; return that of their alphas."""
        program, share = self.program, 1 / max(report.documents, 1)
        kept = share * report.kept if report.documents else 1.0
        sums = program.counts.apply("variational.step", stats=program.stats, keep=kept, scale=share)
        alpha = share * report.alphas if report.documents else program.control.pull()[: self._options.topics]
        self._tell(alpha, sums)
        return alpha

    def fitted(self) -> FittedTopics:
        """Return the result."""
        options, program = self._options, self.program
        if self._record.seconds and not self._record.rows:
            log.warning(
                "no batch had a document, so the topics are the random ones that the training began with: use a "
                "subsamplingRate above %g, or more documents (equal ones are drawn together)",
                options.fraction,
            )
        counts = program.counts.pull(columns=np.arange(options.vocabulary)).astype(np.float64)
        alpha = program.control.pull()[: options.topics]
        return FittedTopics(counts, alpha, options.beta, self._record.history())

    def free(self) -> None:
        """Free the state on the servers."""
        for vector in (self.program.counts, self.program.stats, self.program.control):
            vector.free()
        if isinstance(self.program, AveragingProgram):
            self.program.documents.free()

    def _tell(self, alpha: Float64s, sums: Float64s) -> None:
        """Publish alpha, and lambda's sums over all words, to the workers."""
        self.program.control.push(np.concatenate([alpha, sums + self._options.beta * self._options.vocabulary]))
