"""A worker's loop in a training by sampling: three ways to share counts, clock by clock."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np

from ps2.algorithms.topics.corpus import Corpus, document_numbers
from ps2.algorithms.topics.plan import SamplingPlan
from ps2.algorithms.topics.sampling_worker import START, SamplingWorker
from ps2.algorithms.topics.shared_counts import SharedCounts
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.table import deal_by_cost
from ps2.client.dcv import DCV
from ps2.data.rows import LocalRows
from ps2.ops.kernels import Int64s
from ps2.run.rotation import RotationSchedule

# With a time budget, the time is checked after this many tokens.
PIECE_TOKENS = 1 << 12
# The number of groups of words per worker. With two, a worker reaches a group only after the previous worker's changes
# there have arrived.
GROUPS = 2


@dataclass(frozen=True, eq=False)
class Blocks:
    """The words of each block in a worker's corpus; ``begins`` has the first position of each block, and the end."""

    ring: RotationSchedule
    begins: Int64s

    def bounds(self, block: int) -> tuple[int, int]:
        return int(self.begins[block]), int(self.begins[block + 1])


@dataclass(frozen=True, eq=False)
class SamplingLoop:
    """The loop of each worker; picklable. It continues after the iterations that an earlier driver has recorded."""

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
                self.shared.saved.announce_size(worker.rank, part.corpus.size)
            part.start()
            worker.barrier()
        if part is None:  # a crashed worker, or a worker of another driver, has done the first clock
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
        """Return the order of a worker's words, block by block, and the blocks."""
        ring = self.plan.ring(workers)
        word_blocks = deal_by_cost(frequencies.pull(), ring.blocks)[rows.keys]
        # The corpus lacks words whose stored counts are all 0.
        word_blocks = np.where(np.asarray(rows.x.sum(axis=0)).reshape(-1) > 0, word_blocks, ring.blocks)
        ends = np.cumsum(np.bincount(word_blocks, minlength=ring.blocks)[: ring.blocks])
        return np.argsort(word_blocks, kind="stable"), Blocks(ring, np.append(0, ends))


def ssp(worker: Any, part: SamplingWorker) -> None:
    """Sample with counts that may lack other workers' changes of as many clocks as the staleness allows.

    An iteration is one clock. Workers pull and update slices of words concurrently (Xing et al., "Strategies and
    Principles of Distributed Machine Learning on Big Data", section 3.2). Each worker begins with different words: if
    all took the same slice at once, none would see the changes of the others.
    """
    slices = list(chain(*word_groups(part.corpus, part.plan, GROUPS, worker.rank, worker.workers)))
    prefetched = None
    for clock in worker.clocks(START + 1 + part.plan.settings.maxIter):
        iteration = clock - START
        for number, (begin, end) in enumerate(slices if part.enter(clock, iteration) else ()):
            counts = (part.prefetch(begin, end) if prefetched is None else prefetched).result()
            following = (number + 1) % len(slices)
            prefetched = part.prefetch(*slices[following], ahead=int(following == 0))
            before = part.word_topics(begin, end)
            part.sample(begin, end, counts, iteration)
            part.send_changes(begin, end, before)
        part.leave(clock)
        part.end_iteration(iteration)


def average(worker: Any, part: SamplingWorker) -> None:
    """Sample with the counts from the beginning of a round; at its end, add up the changes of all workers.

    This is model averaging for counts (Zhang et al., "MLlib*: Fast Training of GLMs using Spark MLlib", 4.1; Newman et
    al., "Distributed Algorithms for Topic Models", section 3.1). An iteration is one clock with as many rounds as there
    are workers; in each round the workers sample different words.
    """
    rounds = word_groups(part.corpus, part.plan, 1, worker.rank, worker.workers)
    for clock in worker.clocks(START + 1 + part.plan.settings.maxIter):
        iteration = clock - START
        is_counted = part.enter(clock, iteration)
        for slices in rounds:
            _sample_round(worker, part, slices if is_counted else [], iteration)
        part.leave(clock)
        part.end_iteration(iteration)


def _sample_round(worker: Any, part: SamplingWorker, slices: list[tuple[int, int]], iteration: int) -> None:
    """Sample in one round, and send the changes after all workers have sampled."""
    before = [part.word_topics(begin, end) for begin, end in slices]
    prefetched = None
    for number, (begin, end) in enumerate(slices):
        counts = (part.prefetch(begin, end) if prefetched is None else prefetched).result()
        prefetched = part.prefetch(*slices[number + 1]) if number + 1 < len(slices) else None
        part.sample(begin, end, counts, iteration)
    worker.barrier()
    for (begin, end), topics in zip(slices, before, strict=True):
        part.send_changes(begin, end, topics)
    worker.barrier()


def word_groups(
    corpus: Corpus, plan: SamplingPlan, groups_per_worker: int, rank: int, workers: int
) -> list[list[tuple[int, int]]]:
    """Divide the vocabulary into groups, the same for all workers; return the slices of each group in a worker's order.

    Each worker begins ``groups_per_worker`` groups after the previous worker.
    """
    count = groups_per_worker * workers
    bounds = np.searchsorted(corpus.words, plan.vocabulary * np.arange(count + 1) // count)
    groups = [corpus.slices(plan.width, int(begin), int(end)) for begin, end in pairwise(bounds)]
    return groups[groups_per_worker * rank :] + groups[: groups_per_worker * rank]


def rotation(worker: Any, part: SamplingWorker, blocks: Blocks, recorded_iterations: int) -> None:
    """Sample with exclusive access to the counts of a block of words; an iteration is one rotation of all blocks.

    Zhang et al., "Parallelizing Big Data Machine Learning Algorithms with Model Rotation", section IV.
    """
    settings = part.plan.settings

    def fetch(block: int) -> Any:
        return part.prefetch(*blocks.bounds(block), ahead=1)

    ring = blocks.ring
    left = settings.maxIter - recorded_iterations
    for turn in worker.rotate(ring.blocks, left, ring.slices, budgetS=settings.budgetS, fetch=fetch):
        clock, iteration = worker.clock, recorded_iterations + turn.rotation + 1
        if part.enter(clock, iteration, turn.isLast):
            counts = turn.pull()
            first, last = blocks.bounds(turn.block)
            piece_tokens = None if settings.budgetS is None else PIECE_TOKENS
            pieces = part.corpus.slices(last - first, first, last, piece_tokens)
            before = part.word_topics(first, last)
            for begin, end in turn.parts(pieces):
                part.sample(begin, end, counts[begin - first : end - first], iteration)
            for begin, end in part.corpus.slices(last - first, first, last):
                tokens = slice(*(int(part.corpus.begins[word] - part.corpus.begins[first]) for word in (begin, end)))
                part.send_changes(begin, end, before[tokens])
        part.leave(clock)
        if turn.isLast:
            part.end_iteration(iteration)
