"""How workers share counts while they sample: what each of them does, clock by clock."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import numpy as np

from ps2.algorithms.topics.blocks import Blocks
from ps2.algorithms.topics.corpus import Corpus
from ps2.algorithms.topics.part import START, Part
from ps2.algorithms.topics.problem import Recipe

# Tokens between two looks at the time, where turns end by time.
PIECE_TOKENS = 1 << 14
# Groups of words for each worker: who has a group next is far enough behind to read what was changed there.
GROUPS = 2


def ssp(worker: Any, part: Part) -> None:
    """Sample with counts that are as stale as the run is: an iteration is a clock.

    Slices of words are read and told one by one, while others do the same (Xing et al., "Strategies and Principles of
    Distributed Machine Learning on Big Data", section 3.2). Each worker begins with other words: if all had the same
    ones at once, none would see what the others change there.
    """
    slices = list(chain(*groups_of(part.corpus, part.recipe, GROUPS, worker.rank, worker.workers)))
    asked = None
    for clock in worker.clocks(START + 1 + part.recipe.iterations):
        iteration = clock - START
        for number, (begin, end) in enumerate(slices if part.enter(clock, iteration) else ()):
            counts = (part.ask(begin, end) if asked is None else asked).result()
            following = (number + 1) % len(slices)
            asked = part.ask(*slices[following], ahead=int(following == 0))
            before = part.topics_of(begin, end)
            part.sample(begin, end, counts, iteration)
            part.tell(begin, end, before)
        part.leave(clock)
        part.end_iteration(clock, iteration)


def average(worker: Any, part: Part) -> None:
    """Sample with counts as they were when a round began, and add up what all have changed when all are done.

    What averaging of models is for counts (Zhang et al., "MLlib*: Fast Training of GLMs using Spark MLlib", 4.1; Newman
    et al., "Distributed Algorithms for Topic Models", section 3.1). An iteration is a clock, and has as many rounds as
    there are workers: in each of them a worker has other words than the others have.
    """
    rounds = groups_of(part.corpus, part.recipe, 1, worker.rank, worker.workers)
    for clock in worker.clocks(START + 1 + part.recipe.iterations):
        iteration = clock - START
        is_in_step = part.enter(clock, iteration)
        for slices in rounds:
            _take_part(worker, part, slices if is_in_step else [], iteration)
        part.leave(clock)
        part.end_iteration(clock, iteration)


def _take_part(worker: Any, part: Part, slices: list[tuple[int, int]], iteration: int) -> None:
    """Sample in a round, and tell what has changed when all have sampled."""
    before = [part.topics_of(begin, end) for begin, end in slices]
    asked = None
    for number, (begin, end) in enumerate(slices):
        counts = (part.ask(begin, end) if asked is None else asked).result()
        asked = part.ask(*slices[number + 1]) if number + 1 < len(slices) else None
        part.sample(begin, end, counts, iteration)
    worker.barrier()
    for (begin, end), topics in zip(slices, before, strict=True):
        part.tell(begin, end, topics)
    worker.barrier()


def groups_of(corpus: Corpus, recipe: Recipe, each: int, rank: int, workers: int) -> list[list[tuple[int, int]]]:
    """Divide words into groups, alike for all workers; return slices of each, in the order that a worker takes.

    Args:
        each: groups for each worker: so many lie between those that two workers begin with.
    """
    count = each * workers
    bounds = np.searchsorted(corpus.words, recipe.vocabulary * np.arange(count + 1) // count)
    groups = [corpus.slices(recipe.width, int(begin), int(end)) for begin, end in pairwise(bounds)]
    return groups[each * rank :] + groups[: each * rank]


def rotation(worker: Any, part: Part, blocks: Blocks, done: int) -> None:
    """Sample with counts of words that nobody else has meanwhile: an iteration is a rotation.

    Zhang et al., "Parallelizing Big Data Machine Learning Algorithms with Model Rotation", section IV.

    Args:
        done: iterations that were done by a driver before.
    """
    recipe = part.recipe

    def fetch(block: int) -> Any:
        return part.ask(*blocks.bounds(block), ahead=1)

    ring = blocks.ring
    left = recipe.iterations - done
    for turn in worker.rotate(ring.blocks, left, ring.slices, budgetS=recipe.budget_s, fetch=fetch):
        clock, iteration = worker.clock, done + turn.rotation + 1
        if part.enter(clock, iteration):
            counts = turn.pull()
            first, last = blocks.bounds(turn.block)
            pieces = part.corpus.slices(last - first, first, last, None if recipe.budget_s is None else PIECE_TOKENS)
            before = part.topics_of(first, last)
            for begin, end in turn.parts(pieces):
                part.sample(begin, end, counts[begin - first : end - first], iteration)
            for begin, end in part.corpus.slices(last - first, first, last):
                of_words = slice(*(int(part.corpus.begins[at] - part.corpus.begins[first]) for at in (begin, end)))
                part.tell(begin, end, before[of_words])
        part.leave(clock)
        if turn.isLast:
            part.end_iteration(clock, iteration)
