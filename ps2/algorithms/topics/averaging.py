"""Online variational Bayes by model averaging: local lambdas, averaged by the servers (Zhang et al., "MLlib*").

In a clock each worker takes ``local_batches`` steps of its own lambda, each of a batch of its documents (section 4,
Algorithm 6).
Then the servers average: a worker adds, at the words of its batches, by how much its lambda differs from the global one
that has decayed by its steps; the decay of all other words is one factor. So what travels is one lambda each way a
clock, and the average is exact, whichever words a worker has.

Lambda less beta is s u: the decay of a step is one product, and a step costs only the words of its batch. These alone
get expectations of their logarithms (the paper's lazy update).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import DoTask, Task
from ps2.algorithms.topics import online_kernels as kernels
from ps2.algorithms.topics.corpus import key_of
from ps2.algorithms.topics.evidence import BatchReport, InferBatch, alpha_after, ids_of, infer_statistics
from ps2.algorithms.topics.options import OnlineOptions
from ps2.algorithms.training.reading import Reading
from ps2.client.matrix import DCVMatrix
from ps2.data.rows import LocalRows
from ps2.errors import LimitError
from ps2.ops.kernels import Float64s
from ps2.server.memory import free_bytes

# Below this, the scale goes into the local lambda.
MIN_SCALE = 1e-6
# Bytes of a local lambda's number: as it was pulled, and as it steps.
NUMBER_BYTES = 12
# Of a worker's free memory, for its lambda.
SHARE_OF_MEMORY = 0.5


@dataclass
class AveragedReport(BatchReport):
    """A worker's report on its local steps.

    Attributes:
        kept: by which its steps multiply words that no batch has, times its documents.
        alphas: shape (topics,): its alpha, times its documents.
    """

    kept: float = 0.0
    alphas: Float64s = field(default_factory=lambda: np.zeros(0))


class LocalLambda:
    """A worker's lambda less beta, and alpha, over local steps.

    Attributes:
        kept: the product of all steps' decay.
        alpha: float64, shape (topics,).
    """

    def __init__(self, options: OnlineOptions, counts: kernels.Array, alpha: Float64s, totals: Float64s) -> None:
        """Args:
        counts: shape (words, topics): lambda minus beta of the worker's words.
        totals: shape (topics,): lambda's sums over all words.
        """
        self._options = options
        self._begun = counts
        self._u = counts.astype(np.float64)
        self._scale = 1.0
        self._rest = options.beta * options.vocabulary
        self._totals = totals - self._rest
        self._touched = np.zeros(len(counts), np.bool_)
        self.alpha, self.kept = alpha, 1.0

    def step(self, part: LocalRows, words: Any, key: np.uint64, weight: float, documents: float, report: Any) -> None:
        """Take a step by a batch of documents.

        Args:
            part: the documents.
            words: int64: the numbers of its keys among the worker's words.
            key: of seed and step.
            weight: of the step: rho.
            documents: the number of all workers' documents.
            report: gets what the batch tells.
        """
        own = self._scale * self._u[words]
        found = infer_statistics(part, own, self._options.beta, self.alpha, self._totals + self._rest, key)
        share = weight * documents / len(part)
        self._decay(1.0 - weight)
        self._u[words] += share / self._scale * found.stats
        self._totals = (1.0 - weight) * self._totals + share * found.stats.sum(axis=0)
        self._touched[words] = True
        if self._options.optimize_alpha:
            self.alpha = alpha_after(self.alpha, found.log_shares, len(part), weight)
        report.bound += found.bound
        report.tokens += float(part.x.data.sum())
        report.drawn += len(part)
        report.log_shares += found.log_shares

    def change(self) -> tuple[Any, Float64s]:
        """Return the numbers of words that steps were of, and how their lambdas differ from decayed ones."""
        words = np.flatnonzero(self._touched)
        return words, self._scale * self._u[words] - self.kept * self._begun[words]

    def _decay(self, kept: float) -> None:
        self.kept *= kept
        self._scale *= kept
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
        stats: the workers' sum of differences of lambda, times documents.
    """

    options: OnlineOptions
    counts: DCVMatrix
    stats: DCVMatrix

    def __call__(self, reading: Reading) -> DoTask:
        rows = reading.training
        rows = rows.chosen(np.flatnonzero(rows.x.sum(axis=1) > 0))
        ids, topics = ids_of(rows), self.options.topics
        check_room(len(rows.keys), topics, free_bytes())

        def do(worker: Any, task: Any) -> None:
            if isinstance(task, CountDocuments):
                worker.report({"documents": len(rows)})
                return
            report = AveragedReport(np.zeros(topics), len(rows), alphas=np.zeros(topics))
            self._step(task, rows, ids, report)
            worker.report(asdict(report))

        return do

    def _step(self, task: InferBatch, rows: LocalRows, ids: Any, report: AveragedReport) -> None:
        options = self.options
        first = task.iteration * options.local_batches
        keys = [key_of(options.seed, first + number) for number in range(options.local_batches)]
        drawn = [kernels.draw(ids, key, options.fraction) for key in keys]
        used = rows.take(np.flatnonzero(np.any(drawn, axis=0)))
        counts = self.counts.pull(columns=used.keys)
        local = LocalLambda(options, counts, task.alpha, task.totals)
        for number, (key, mask) in enumerate(zip(keys, drawn, strict=True)):
            if mask.any():
                part = rows.take(np.flatnonzero(mask))
                words = np.searchsorted(used.keys, part.keys)
                local.step(part, words, key, options.weight(first + number + 1), task.documents, report)
        words, change = local.change()
        report.kept, report.alphas = len(rows) * local.kept, len(rows) * local.alpha
        sent = (len(rows) * change).astype(counts.dtype)
        report.bytes += counts.nbytes + sent.nbytes
        if len(words):
            self.stats.add(columns=used.keys[words], values=sent)


def check_room(words: int, topics: int, free: int) -> None:
    """Raise LimitError if a worker has no memory for the lambda of its words."""
    needed = NUMBER_BYTES * words * topics
    if needed > SHARE_OF_MEMORY * free:
        raise LimitError(
            f"sync='average': a worker's lambda of {words:,} words and {topics:,} topics takes {needed:,} bytes, and "
            f"{free:,} are free; sync='gradient' reads it in parts"
        )
