"""A worker's half of a training by sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.topics.blocks import Blocks, deal_words, ring_of
from ps2.algorithms.topics.corpus import Corpus, numbers_of
from ps2.algorithms.topics.on_fleet import OnFleet
from ps2.algorithms.topics.part import START, Part
from ps2.algorithms.topics.problem import Recipe
from ps2.algorithms.topics.syncs import average, rotation, ssp
from ps2.algorithms.training.reading import Reading
from ps2.client.dcv import DCV
from ps2.data.rows import LocalRows


@dataclass(frozen=True, eq=False)
class Half:
    """What each worker does; picklable.

    Attributes:
        done: iterations that were done by a driver before.
    """

    recipe: Recipe
    fleet: OnFleet
    done: int = 0

    def __call__(self, worker: Any, reading: Reading) -> None:
        rows, frequencies = reading.training, self.fleet.frequencies
        part, blocks = None, None
        for _ in worker.clocks(START + 1):
            if frequencies is not None:
                frequencies.add(np.asarray(rows.x.sum(axis=0)).reshape(-1).astype(np.int64), rows.keys)
                worker.barrier()
            part, blocks = self._part(worker, rows)
            if self.fleet.saved is not None:
                self.fleet.saved.tell_size(worker.rank, part.corpus)
            part.start()
            worker.barrier()
        if part is None:  # another attempt has been there, or another driver
            part, blocks = self._part(worker, rows)
            part.go_on()
        if blocks is not None:
            rotation(worker, part, blocks, self.done)
        elif self.recipe.sync == "average":
            average(worker, part)
        else:
            ssp(worker, part)

    def _part(self, worker: Any, rows: LocalRows) -> tuple[Part, Blocks | None]:
        order, blocks = None, None
        if self.fleet.frequencies is not None:
            order, blocks = self._by_block(self.fleet.frequencies, rows, worker.workers)
        corpus = Corpus.of(rows.x, rows.keys, numbers_of(worker.rank, len(rows)), order)
        return Part(worker, self.recipe, self.fleet, corpus), blocks

    def _by_block(self, frequencies: DCV, rows: LocalRows, workers: int) -> tuple[Any, Blocks]:
        """Return the order in which a worker's words lie, block by block, and where each block begins."""
        ring = ring_of(workers, self.recipe.vocabulary, self.recipe.width)
        mine = deal_words(frequencies.pull(), ring.blocks)[rows.keys]
        # A word that documents hold, but without a token, is left out of the corpus.
        mine = np.where(np.asarray(rows.x.sum(axis=0)).reshape(-1) > 0, mine, ring.blocks)
        ends = np.cumsum(np.bincount(mine, minlength=ring.blocks)[: ring.blocks])
        return np.argsort(mine, kind="stable"), Blocks(ring, np.append(0, ends))
