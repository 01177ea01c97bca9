"""How workers share counts while they sample: what each of them does, clock by clock."""

from __future__ import annotations

from typing import Any

from ps2.algorithms.topics.blocks import Blocks
from ps2.algorithms.topics.part import START, Part

# Tokens between two looks at the time, where turns end by time.
PIECE_TOKENS = 1 << 14


def ssp(worker: Any, part: Part) -> None:
    """Sample with counts that are as stale as the run is: an iteration is a clock.

    Slices of words are read and told one by one, while others do the same (Xing et al., "Strategies and Principles of
    Distributed Machine Learning on Big Data", section 3.2).
    """
    slices = part.corpus.slices(part.recipe.width)
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
    """Sample with counts as they were when the clock began, and add up what all have changed when all are done.

    What averaging of models is for counts (Zhang et al., "MLlib*: Fast Training of GLMs using Spark MLlib", 4.1; Newman
    et al., "Distributed Algorithms for Topic Models", section 3.1).
    """
    slices = part.corpus.slices(part.recipe.width)
    for clock in worker.clocks(START + 1 + part.recipe.iterations):
        iteration = clock - START
        is_in_step = part.enter(clock, iteration)
        before = part.topics.copy()
        asked = None
        for number, (begin, end) in enumerate(slices if is_in_step else ()):
            counts = (part.ask(begin, end) if asked is None else asked).result()
            asked = part.ask(*slices[number + 1]) if number + 1 < len(slices) else None
            part.sample(begin, end, counts, iteration)
        worker.barrier()
        for begin, end in slices if is_in_step else ():
            part.tell(begin, end, before[part.corpus.begins[begin] : part.corpus.begins[end]])
        part.leave(clock)
        part.end_iteration(clock, iteration)


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
