"""Online variational Bayes as a durable program: one batch of documents per clock, with lambda on the servers.

Hoffman, Blei and Bach, "Online learning for latent Dirichlet allocation" (2010), Algorithm 2, with the params of
pyspark.ml's "online" optimizer. In a clock, each worker draws its documents of the batch, pulls lambda of their words,
and adds the documents' statistics on the servers. Then the servers update lambda, and the driver updates alpha. A batch
depends only on the seed, the iteration and the documents. So a worker that repeats a clock computes the same
statistics, and its additions count once.

With ``sync`` "average" (Zhang et al., "MLlib*", section 4, Algorithm 6), each worker takes ``localBatches`` steps with
a copy of lambda in a clock, each with a batch of its documents. Then the servers average. For the words of its batches,
a worker sends the difference between its lambda and the initial lambda times the decay of its steps. The lambda of all
other words was only multiplied by this decay. So lambda is sent once in each direction per clock, and the average is
exact for all words.

A worker represents lambda minus beta as a product s u, with a number s and a matrix u. The decay of a step only
multiplies s. So the cost of a step depends only on the words of its batch (the paper's lazy update).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import polygamma, psi

from ps2.algorithms.frame.memory import check_worker
from ps2.algorithms.frame.program import Ask, DoTask, Program, Steps, Task
from ps2.algorithms.topics import online_kernels as kernels
from ps2.algorithms.topics.corpus import iteration_key
from ps2.algorithms.topics.model import LDATopics
from ps2.algorithms.topics.plan import OnlinePlan
from ps2.algorithms.topics.settings import resolved_inference
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.reading import Reading, SpillableReading
from ps2.algorithms.training.record import Record, Trained, Words
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows
from ps2.errors import PS2Error
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s
from ps2.server.memory import free_bytes

log = logging.getLogger(__name__)

# The dtype of lambda on the servers. Its rounding errors are far below the noise of a batch.
DTYPE = "float32"
# The warning if all batches were empty.
NO_DOCUMENT = (
    "no batch had a document, so the topics are the random ones that the training began with: use a subsamplingRate "
    "above %g, or more documents (equal documents are in the same batches)"
)
UInt64s = npt.NDArray[np.uint64]

# The maximum bytes of lambda that a worker pulls at a time. The statistics need the same amount of memory.
MAX_PART_BYTES = 256 << 20
# If s is below this, u is multiplied by s, and s is set to 1: a very small s would make u overflow.
MIN_SCALE = 1e-6
# The bytes of a value of a worker's lambda: the pulled float32, and the float64 that steps change.
VALUE_BYTES = 12
# The maximum fraction of a worker's free memory that its lambda may take.
MEMORY_FRACTION = 0.5


@dataclass(frozen=True, eq=False)
class CountDocuments(Task):
    """Report the number of documents with words."""


@dataclass(frozen=True, eq=False)
class InferBatch(Task):
    """Infer the topics of an iteration's documents, add their statistics on the servers, and report on the documents.

    Attributes:
        iteration: the number of the iteration, from 0.
        documents: the number of all workers' documents with words; 0: the workers do not need it.
        alpha: shape (topics,).
        totals: lambda's sums over all words, shape (topics,).
    """

    iteration: int
    documents: int
    alpha: Float64s
    totals: Float64s


@dataclass
class BatchReport:
    """A worker's report on its documents of a batch.

    Attributes:
        log_shares: E[log theta], summed over the documents of the batch, shape (topics,).
        documents: the number of all documents of the worker.
        drawn, tokens: the number of documents, and of tokens, in the batch.
        bound: the lower bound of the batch's log-likelihood.
    """

    log_shares: Float64s
    documents: int
    drawn: int = 0
    tokens: float = 0.0
    bound: float = 0.0
    bytes: int = 0

    def add(self, part: KeptRows, log_shares: Float64s, bound: float) -> None:
        self.bound += bound
        self.tokens += float(sum(block.x.data.sum() for block in part.blocks()))
        self.drawn += len(part)
        self.log_shares += log_shares


@dataclass
class AveragedReport(BatchReport):
    """A worker's report on its local steps.

    Attributes:
        decay: the number of the worker's documents times the decay of its steps (see ``LocalLambda``).
        alphas: the number of the worker's documents times its alpha, shape (topics,).
    """

    decay: float = 0.0
    alphas: Float64s = field(default_factory=lambda: np.zeros(0))


def infer_statistics(
    part: KeptRows, counts: kernels.Array, beta: float, alpha: Float64s, totals: Float64s, key: np.uint64
) -> tuple[Float64s, Float64s, float]:
    """Infer the topics of documents (the E-step). ``counts`` are lambda minus beta of the documents' words.

    Return the expected number of tokens of each word in each topic, the sum of E[log theta], and the bound.

    The initial gamma of each document is random. With equal gammas, most documents would converge to the same topics,
    which would mix all subjects.
    """
    weights, stats, log_shares = np.empty(counts.shape), np.zeros(counts.shape), np.zeros(len(alpha))
    kernels.weigh(readable(counts), beta, readable(totals), weights)
    bound = 0.0
    for block in part.blocks():
        matrix = readable(block.x.indptr), readable(block.x.indices), readable(block.x.data)
        seeds, no_gammas = readable(document_ids(block) + key), np.empty((0, len(alpha)))
        inputs = readable(weights), readable(alpha), seeds, no_gammas
        bound = kernels.infer(*matrix, *inputs, stats, log_shares, bound)
    stats *= weights
    return stats, log_shares, bound


def document_ids(rows: LocalRows) -> UInt64s:
    """Return an id for each document that depends only on its words and counts."""
    ids = np.empty(len(rows), np.uint64)
    tokens = rows.x.data.astype(np.float64).view(np.uint64)
    kernels.identify(readable(rows.x.indptr), readable(rows.keys[rows.x.indices]), readable(tokens), ids)
    return readable(ids)


def alpha_after(alpha: Float64s, log_shares: Float64s, documents: float, weight: float) -> Float64s:
    """Return alpha after a step of Newton's method (Hoffman et al., section 3.3; exactly as in pyspark.ml).

    ``weight`` is rho, the weight of the step. If the step would make alpha non-positive, alpha does not change.
    """
    gradient = documents * (psi(alpha.sum()) - psi(alpha)) + log_shares
    diagonal, sum_diagonal = -documents * polygamma(1, alpha), documents * polygamma(1, alpha.sum())
    shared = (gradient / diagonal).sum() / (1 / sum_diagonal + (1 / diagonal).sum())
    next_alpha = alpha - weight * (gradient - shared) / diagonal
    return np.asarray(next_alpha if (next_alpha > 0).all() else alpha)


@dataclass(frozen=True, eq=False)
class OnlineWork:
    """A function from a worker's documents to its ``DoTask``; picklable.

    Attributes:
        counts: lambda minus beta; its columns are words.
        stats: the sum of all workers' statistics, or of their differences of lambda, in a clock.
    """

    plan: OnlinePlan
    counts: DCVMatrix
    stats: DCVMatrix


class GradientWork(OnlineWork):
    """The work for ``sync`` "gradient": add the statistics of documents on the servers."""

    def __call__(self, reading: Reading | SpillableReading) -> DoTask:
        documents = _Documents.of(reading.training)
        rows, ids = documents.rows, documents.ids

        def do_task(worker: Any, task: Any) -> None:
            key = iteration_key(self.plan.seed, task.iteration)
            report = BatchReport(np.zeros(self.plan.topics), documents=len(rows))
            for part in self._parts(documents, kernels.draw(ids, key, self.plan.settings.subsamplingRate)):
                self._add_statistics(part, key, task, report)
            worker.report(asdict(report))

        return do_task

    def _parts(self, documents: _Documents, mask: kernels.Mask) -> Iterator[KeptRows]:
        """Yield the drawn documents in parts; lambda of the words of a part takes at most about MAX_PART_BYTES."""
        rows, max_words = documents.rows, max(1, MAX_PART_BYTES // (8 * self.plan.topics))
        if mask.all() and len(rows.keys) <= max_words:
            yield rows
            return
        drawn = np.flatnonzero(mask)
        # The documents of a part have at most as many distinct words as entries.
        ends = np.cumsum(documents.sizes[drawn])
        bounds = [0, len(drawn)]
        if len(drawn) and len(rows.keys) > max_words and ends[-1] > max_words:
            bounds = [0, *(np.flatnonzero(np.diff(ends // max_words)) + 1).tolist(), len(drawn)]
        for begin, end in pairwise(bounds):
            if begin < end:
                yield rows.take(drawn[begin:end])

    def _add_statistics(self, part: KeptRows, key: np.uint64, task: InferBatch, report: BatchReport) -> None:
        """Pull lambda of the words of some documents, and add the documents' statistics on the servers."""
        counts = self.counts.pull(columns=part.keys)
        stats, log_shares, bound = infer_statistics(part, counts, self.plan.beta, task.alpha, task.totals, key)
        report.add(part, log_shares, bound)
        values = stats.astype(counts.dtype)
        report.bytes += counts.nbytes + values.nbytes
        self.stats.add(columns=part.keys, values=values)


class AveragingWork(OnlineWork):
    """The work for ``sync`` "average": take local steps, and add lambda's change times the number of documents."""

    def __call__(self, reading: Reading | SpillableReading) -> DoTask:
        documents = _Documents.of(reading.training)
        rows, ids, topics = documents.rows, documents.ids, self.plan.topics
        check_lambda(len(rows.keys), topics, free_bytes())

        def do_task(worker: Any, task: Any) -> None:
            if isinstance(task, CountDocuments):
                worker.report({"documents": len(rows)})
                return
            report = AveragedReport(np.zeros(topics), len(rows), alphas=np.zeros(topics))
            self._step(task, rows, ids, report)
            worker.report(asdict(report))

        return do_task

    def _step(self, task: InferBatch, rows: KeptRows, ids: Any, report: AveragedReport) -> None:
        plan, batches = self.plan, self.plan.settings.localBatches
        first_step = task.iteration * batches
        keys = [iteration_key(plan.seed, first_step + batch) for batch in range(batches)]
        masks = [kernels.draw(ids, key, plan.settings.subsamplingRate) for key in keys]
        drawn = rows.take(np.flatnonzero(np.any(masks, axis=0)))
        counts = self.counts.pull(columns=drawn.keys)
        local = LocalLambda(plan, counts, task.alpha, task.totals)
        for batch, (key, mask) in enumerate(zip(keys, masks, strict=True)):
            if mask.any():
                part = rows.take(np.flatnonzero(mask))
                words = np.searchsorted(drawn.keys, part.keys)
                report.add(part, *local.step(part, words, key, plan.weight(first_step + batch + 1), task.documents))
        words, change = local.change()
        report.decay, report.alphas = len(rows) * local.decay, len(rows) * local.alpha
        values = (len(rows) * change).astype(counts.dtype)
        report.bytes += counts.nbytes + values.nbytes
        if len(words):
            self.stats.add(columns=drawn.keys[words], values=values)


class LocalLambda:
    """A worker's lambda minus beta, and alpha, during local steps; ``decay`` is the product of the steps' decays."""

    def __init__(self, plan: OnlinePlan, counts: kernels.Array, alpha: Float64s, totals: Float64s) -> None:
        """Start with lambda minus beta of the worker's words, and the sums of lambda over all words."""
        self._plan = plan
        self._initial = counts
        self._u = counts.astype(np.float64)
        self._scale = 1.0
        self._all_beta = plan.beta * plan.vocabulary
        self._totals = totals - self._all_beta
        self._is_changed = np.zeros(len(counts), np.bool_)
        self.alpha, self.decay = alpha, 1.0

    def step(
        self, part: KeptRows, words: Any, key: np.uint64, weight: float, documents: float
    ) -> tuple[Float64s, float]:
        """Take a step of weight rho with a batch of documents; return their sum of E[log theta], and the bound.

        ``words`` are the positions of the batch's keys; ``documents`` is the number of all workers' documents.
        """
        counts = self._scale * self._u[words]
        totals = self._totals + self._all_beta
        stats, log_shares, bound = infer_statistics(part, counts, self._plan.beta, self.alpha, totals, key)
        stats_weight = weight * documents / len(part)
        self._shrink(1.0 - weight)
        self._u[words] += stats_weight / self._scale * stats
        self._totals = (1.0 - weight) * self._totals + stats_weight * stats.sum(axis=0)
        self._is_changed[words] = True
        if self._plan.settings.optimizeDocConcentration:
            self.alpha = alpha_after(self.alpha, log_shares, len(part), weight)
        return log_shares, bound

    def change(self) -> tuple[Any, Float64s]:
        """Return the positions of all changed words, and lambda minus the initial lambda times ``decay`` for each."""
        words = np.flatnonzero(self._is_changed)
        return words, self._scale * self._u[words] - self.decay * self._initial[words]

    def _shrink(self, factor: float) -> None:
        self.decay *= factor
        self._scale *= factor
        if self._scale < MIN_SCALE:
            self._u *= self._scale
            self._scale = 1.0


def check_lambda(words: int, topics: int, free: int) -> None:
    """Raise LimitError if a worker lacks the memory for the lambda of its words."""
    content = f"sync='average': a worker's lambda of {words:,} words and {topics:,} topics takes"
    advice = "sync='gradient' reads it in parts"
    check_worker(content, VALUE_BYTES * words * topics, int(MEMORY_FRACTION * free), advice)


@dataclass(frozen=True, eq=False)
class _Documents:
    """A worker's documents with words: the id and the number of distinct words of each."""

    rows: KeptRows
    ids: UInt64s
    sizes: Int64s

    @staticmethod
    def of(rows: KeptRows) -> _Documents:
        has_words = [block.x.sum(axis=1) > 0 for block in rows.blocks()]
        rows = rows.chosen(np.flatnonzero(np.concatenate([np.zeros(0, np.bool_), *has_words])))
        ids, sizes = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
        for block in rows.blocks():
            ids.append(document_ids(block))
            sizes.append(np.diff(block.x.indptr).astype(np.int64))
        return _Documents(rows, readable(np.concatenate(ids)), np.concatenate(sizes))


class OnlineProgram(Program[Trained[LDATopics]]):
    """Online variational Bayes.

    Batches and results are the same for any number of workers and servers, except for rounding errors of sums. With
    ``sync`` "average", results also depend on the distribution of documents among workers. The history's objective is
    minus the bound of a batch's log-likelihood per token, before the step. A batch without documents has the value of
    the previous batch, or of the first batch with documents. NaN: all batches are empty.
    """

    number = 2

    def __init__(self, plan: OnlinePlan, record: Record, names: CheckpointNames) -> None:
        super().__init__(plan, plan.form, record)
        record.words = Words("iteration", "-bound a token")

        def matrix() -> DCVMatrix:
            shape = plan.vocabulary, plan.topics
            return names.vector(lambda name: DCV.dense(*shape, DTYPE, layout="column", name=name)).matrix()

        self._counts, self._stats = matrix(), matrix()

    def drive(self, ask: Ask) -> Steps[Float64s]:
        plan, documents = self.plan, 0
        if plan.settings.sync == "average":
            report = yield CountDocuments()
            documents = report.documents
        alpha, totals = plan.alphas, ask(self._draw_lambda)
        ask.start_timer()
        iteration = 0
        while iteration < ask.setting(lambda: plan.settings.maxIter):
            report = yield InferBatch(iteration, documents, alpha, totals)  # the E-step
            iteration += 1
            if plan.settings.sync == "average" and documents:  # the workers took steps: compute their average
                totals = ask(partial(self._update_lambda, report.decay / documents, 1 / documents))
                alpha = report.alphas / documents
            elif report.drawn:  # the M-step: lambda = (1 - rho) lambda + rho (beta + D / |batch| statistics)
                rho = plan.weight(iteration)
                totals = ask(partial(self._update_lambda, 1 - rho, rho * report.documents / report.drawn))
                if plan.settings.optimizeDocConcentration:
                    alpha = alpha_after(alpha, report.log_shares, report.drawn, rho)
            if not (math.isfinite(report.bound) and np.isfinite(report.log_shares).all() and np.isfinite(alpha).all()):
                raise PS2Error(
                    f"iteration {iteration}: the bound of the likelihood, or alpha, is not finite: the training has "
                    "diverged; a larger learningOffset, or another docConcentration or topicConcentration, may help"
                )
            objective = -report.bound / report.tokens if report.tokens else math.nan
            ask.record_step(self.record.fill_missing(objective), report.drawn, report.bytes, tokens=report.tokens)
        if iteration and not self.record.rows:
            ask(partial(log.warning, NO_DOCUMENT, plan.settings.subsamplingRate))
        return alpha

    def _draw_lambda(self) -> Float64s:
        """Draw lambda; return its sums over all words."""
        return self._totals(self._counts.apply("variational.begin", seed=self.plan.seed, beta=self.plan.beta))

    def _update_lambda(self, decay: float, scale: float) -> Float64s:
        """Add ``scale`` times the workers' statistics to ``decay`` times (lambda - beta); return lambda's sums."""
        return self._totals(self._counts.apply("variational.step", stats=self._stats, keep=decay, scale=scale))

    def _totals(self, sums: Float64s) -> Float64s:
        """Return lambda's sums over all words from the sums of lambda minus beta."""
        return sums + self.plan.beta * self.plan.vocabulary

    def worker(self) -> GradientWork | AveragingWork:
        work = AveragingWork if self.plan.settings.sync == "average" else GradientWork
        return work(self.plan, self._counts, self._stats)

    def result(self, alpha: Float64s) -> Trained[LDATopics]:
        plan, settings = self.plan, self.plan.settings
        counts = self._counts.pull(columns=np.arange(plan.vocabulary)).astype(np.float64)
        inference = resolved_inference(settings.inference, settings.optimizer)
        return Trained(LDATopics(counts, alpha, plan.beta, inference, plan.seed), self.record.history())

    def free(self) -> None:
        for matrix in (self._counts, self._stats):
            matrix.free()
