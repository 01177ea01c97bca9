"""Online variational Bayes by model averaging: local lambdas, averaged by the servers (Zhang et al., "MLlib*").

In a clock each worker takes ``local_batches`` steps of its own lambda, each by a batch of its documents (section 4,
Algorithm 6). Then the servers average. A worker adds, at the words of its batches, the difference of its lambda from
the global one that has decayed by its steps. The decay of all other words is one factor. So one lambda travels each way
in a clock, and the average is exact, whichever words a worker has.

A worker represents lambda minus beta as s u. So the decay of a step is one product, and a step costs only the words of
its batch. Only these get expectations of their logarithms (the paper's lazy update).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ps2.algorithms.frame.memory import check_worker
from ps2.algorithms.frame.program import DoTask, Task
from ps2.algorithms.topics import online_kernels as kernels
from ps2.algorithms.topics.corpus import iteration_key
from ps2.algorithms.topics.evidence import BatchReport, InferBatch, alpha_after, document_ids, infer_statistics
from ps2.algorithms.topics.plan import OnlinePlan
from ps2.algorithms.training.reading import Reading
from ps2.client.matrix import DCVMatrix
from ps2.data.rows import LocalRows
from ps2.ops.kernels import Float64s
from ps2.server.memory import free_bytes

# A smaller scale s is multiplied into u.
MIN_SCALE = 1e-6
# Bytes of a number of a local lambda: as pulled, and as changed by steps.
NUMBER_BYTES = 12
# The share of a worker's free memory that its lambda may take.
SHARE_OF_MEMORY = 0.5


@dataclass
class AveragedReport(BatchReport):
    """A worker's report on its local steps.

    Attributes:
        decay: the factor of the worker's steps for words that no batch has, times its documents.
        alphas: shape (topics,): the worker's alpha, times its documents.
    """

    decay: float = 0.0
    alphas: Float64s = field(default_factory=lambda: np.zeros(0))


class LocalLambda:
    """A worker's lambda minus beta, and alpha, over local steps.

    Attributes:
        decay: the product of all steps' decay.
        alpha: float64, shape (topics,).
    """

    def __init__(self, plan: OnlinePlan, counts: kernels.Array, alpha: Float64s, totals: Float64s) -> None:
        """Args:
        counts: shape (words, topics): lambda minus beta of the worker's words.
        totals: shape (topics,): lambda's sums over all words.
        """
        self._plan = plan
        self._initial = counts
        self._u = counts.astype(np.float64)
        self._scale = 1.0
        self._rest = plan.beta * plan.vocabulary
        self._totals = totals - self._rest
        self._touched = np.zeros(len(counts), np.bool_)
        self.alpha, self.decay = alpha, 1.0

    def step(self, part: LocalRows, words: Any, key: np.uint64, weight: float, documents: float, report: Any) -> None:
        """Take a step by a batch of documents.

        Args:
            part: the documents.
            words: int64: the positions of its keys among the worker's words.
            key: the key of seed and step.
            weight: rho, the weight of the step.
            documents: the number of all workers' documents.
            report: an ``AveragedReport`` to which the batch is added.
        """
        own = self._scale * self._u[words]
        inferred = infer_statistics(part, own, self._plan.beta, self.alpha, self._totals + self._rest, key)
        share = weight * documents / len(part)
        self._shrink(1.0 - weight)
        self._u[words] += share / self._scale * inferred.stats
        self._totals = (1.0 - weight) * self._totals + share * inferred.stats.sum(axis=0)
        self._touched[words] = True
        if self._plan.settings.optimizeDocConcentration:
            self.alpha = alpha_after(self.alpha, inferred.log_shares, len(part), weight)
        report.bound += inferred.bound
        report.tokens += float(part.x.data.sum())
        report.drawn += len(part)
        report.log_shares += inferred.log_shares

    def change(self) -> tuple[Any, Float64s]:
        """Return the positions of the words of all steps, and the differences of their lambdas from decayed ones."""
        words = np.flatnonzero(self._touched)
        return words, self._scale * self._u[words] - self.decay * self._initial[words]

    def _shrink(self, factor: float) -> None:
        self.decay *= factor
        self._scale *= factor
        if self._scale < MIN_SCALE:
            self._u *= self._scale
            self._scale = 1.0


@dataclass(frozen=True, eq=False)
class CountDocuments(Task):
    """Report the number of documents with words."""


@dataclass(frozen=True, eq=False)
class AveragingWork:
    """Makes a worker of its documents; picklable.

    Attributes:
        counts: lambda minus beta; its columns are words.
        stats: the sum over workers of differences of lambda, times documents.
    """

    plan: OnlinePlan
    counts: DCVMatrix
    stats: DCVMatrix

    def __call__(self, reading: Reading) -> DoTask:
        rows = reading.training
        rows = rows.chosen(np.flatnonzero(rows.x.sum(axis=1) > 0))
        ids, topics = document_ids(rows), self.plan.topics
        check_lambda(len(rows.keys), topics, free_bytes())

        def do(worker: Any, task: Any) -> None:
            if isinstance(task, CountDocuments):
                worker.report({"documents": len(rows)})
                return
            report = AveragedReport(np.zeros(topics), len(rows), alphas=np.zeros(topics))
            self._step(task, rows, ids, report)
            worker.report(asdict(report))

        return do

    def _step(self, task: InferBatch, rows: LocalRows, ids: Any, report: AveragedReport) -> None:
        plan, batches = self.plan, self.plan.settings.localBatches
        first = task.iteration * batches
        keys = [iteration_key(plan.seed, first + number) for number in range(batches)]
        drawn = [kernels.draw(ids, key, plan.settings.subsamplingRate) for key in keys]
        used = rows.take(np.flatnonzero(np.any(drawn, axis=0)))
        counts = self.counts.pull(columns=used.keys)
        local = LocalLambda(plan, counts, task.alpha, task.totals)
        for number, (key, mask) in enumerate(zip(keys, drawn, strict=True)):
            if mask.any():
                part = rows.take(np.flatnonzero(mask))
                words = np.searchsorted(used.keys, part.keys)
                local.step(part, words, key, plan.weight(first + number + 1), task.documents, report)
        words, change = local.change()
        report.decay, report.alphas = len(rows) * local.decay, len(rows) * local.alpha
        sent = (len(rows) * change).astype(counts.dtype)
        report.bytes += counts.nbytes + sent.nbytes
        if len(words):
            self.stats.add(columns=used.keys[words], values=sent)


def check_lambda(words: int, topics: int, free: int) -> None:
    """Raise LimitError if a worker has no memory for the lambda of its words."""
    what = f"sync='average': a worker's lambda of {words:,} words and {topics:,} topics takes"
    advice = "sync='gradient' reads it in parts"
    check_worker(what, NUMBER_BYTES * words * topics, int(SHARE_OF_MEMORY * free), advice)
