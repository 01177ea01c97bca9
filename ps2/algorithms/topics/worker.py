"""A worker's half of a training by sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ps2.algorithms.topics.corpus import Corpus, numbers_of
from ps2.algorithms.topics.on_fleet import OnFleet
from ps2.algorithms.topics.part import START, Part
from ps2.algorithms.topics.problem import Recipe
from ps2.algorithms.training.reading import Reading
from ps2.data.rows import LocalRows


@dataclass(frozen=True, eq=False)
class Half:
    """What each worker does; picklable."""

    recipe: Recipe
    fleet: OnFleet

    def __call__(self, worker: Any, reading: Reading) -> None:
        part = Part(worker, self.recipe, self.fleet, corpus_of(reading.training, worker.rank))
        for _ in worker.clocks(START + 1):
            part.start()
            worker.barrier()
        ssp(worker, part)


def corpus_of(rows: LocalRows, rank: int) -> Corpus:
    """Return the tokens of a worker's documents."""
    return Corpus.of(rows.x, rows.keys, numbers_of(rank, len(rows)))


def ssp(worker: Any, part: Part) -> None:
    """Take part in iterations of one clock each: counts are read slice by slice, and are as stale as the run is.

    "Petuum": Xing et al., "Strategies and Principles of Distributed Machine Learning on Big Data", section 3.2.
    """
    slices = part.corpus.slices(part.recipe.width)
    asked = None
    for clock in worker.clocks(START + 1 + part.recipe.iterations):
        part.enter(clock)
        for number, (begin, end) in enumerate(slices):
            counts = (part.ask(begin, end) if asked is None else asked).result()
            following = (number + 1) % len(slices)
            asked = part.ask(*slices[following], ahead=int(following == 0))
            part.sample(begin, end, counts, clock - START)
        part.leave(clock, with_likelihood=True)
