"""A worker's loop in a training by sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.topics.blocks import Blocks, make_ring
from ps2.algorithms.topics.corpus import Corpus, document_numbers
from ps2.algorithms.topics.plan import SamplingPlan
from ps2.algorithms.topics.sampling_worker import START, SamplingWorker
from ps2.algorithms.topics.shared_counts import SharedCounts
from ps2.algorithms.topics.sharing import average, rotation, ssp
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.table import deal_by_cost
from ps2.client.dcv import DCV
from ps2.data.rows import LocalRows


@dataclass(frozen=True, eq=False)
class SamplingLoop:
    """The loop of each worker; picklable.

    Attributes:
        recorded_iterations: the number of iterations that an earlier driver has recorded.
    """

    plan: SamplingPlan
    shared: SharedCounts
    recorded_iterations: int = 0

    def __call__(self, worker: Any, reading: Reading) -> None:
        rows, frequencies = reading.training, self.shared.frequencies
        part, blocks = None, None
        for _ in worker.clocks(START + 1):
            if frequencies is not None:
                frequencies.add(np.asarray(rows.x.sum(axis=0)).reshape(-1).astype(np.int64), rows.keys)
                worker.barrier()
            part, blocks = self._part(worker, rows)
            if self.shared.saved is not None:
                self.shared.saved.tell_size(worker.rank, part.corpus.size)
            part.start()
            worker.barrier()
        if part is None:  # an earlier attempt or another driver's worker has done the first clock
            part, blocks = self._part(worker, rows)
            part.resume()
        if blocks is not None:
            rotation(worker, part, blocks, self.recorded_iterations)
        elif self.plan.settings.sync == "average":
            average(worker, part)
        else:
            ssp(worker, part)

    def _part(self, worker: Any, rows: LocalRows) -> tuple[SamplingWorker, Blocks | None]:
        order, blocks = None, None
        if self.shared.frequencies is not None:
            order, blocks = self._by_block(self.shared.frequencies, rows, worker.workers)
        corpus = Corpus.from_counts(rows.x, rows.keys, document_numbers(worker.rank, len(rows)), order)
        return SamplingWorker(worker, self.plan, self.shared, corpus), blocks

    def _by_block(self, frequencies: DCV, rows: LocalRows, workers: int) -> tuple[Any, Blocks]:
        """Return the order of a worker's words, block by block, and the blocks' bounds."""
        ring = make_ring(workers, self.plan.vocabulary, self.plan.width)
        word_blocks = deal_by_cost(frequencies.pull(), ring.blocks)[rows.keys]
        # The corpus leaves out words that occur in documents with a count of 0.
        word_blocks = np.where(np.asarray(rows.x.sum(axis=0)).reshape(-1) > 0, word_blocks, ring.blocks)
        ends = np.cumsum(np.bincount(word_blocks, minlength=ring.blocks)[: ring.blocks])
        return np.argsort(word_blocks, kind="stable"), Blocks(ring, np.append(0, ends))
