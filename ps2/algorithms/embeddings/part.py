"""A worker's part in a training: its sentences, how far it is in them, and what it tells of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.corpus import Batch, Sentences
from ps2.algorithms.embeddings.damping import ALL, Damping, Updates
from ps2.algorithms.embeddings.drawing import Drawn, Draws
from ps2.algorithms.embeddings.problem import Recipe
from ps2.algorithms.embeddings.schedule import Clocks, Reader, key_of
from ps2.algorithms.embeddings.tables import BYTES, REPORTED, TOKENS, OnFleet, Table
from ps2.cgroups import usable_cores
from ps2.ops.kernels import Float64s, Int64s

Float32s = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Plan:
    """What all workers have in common; picklable.

    Attributes:
        recipe: how to train; ``via`` is not "auto".
        clocks: how the training is divided.
        fleet: what the servers have.
        threads: of each worker, as far as there are cores.
    """

    recipe: Recipe
    clocks: Clocks
    fleet: OnFleet
    threads: int

    def known(self, keys: Int64s) -> Plan:
        """Return the plan of a worker whose words are these keys."""
        return replace(self, recipe=replace(self.recipe, vocabulary=len(keys)), fleet=self.fleet.known(keys))


class Part:
    """What a worker does in any clock, wherever it is computed.

    Attributes:
        fleet: what the servers have.
        updates: how often words are learned from.
        threads: that it trains with.
        workers: how many there are.
    """

    def __init__(self, worker: Any, plan: Plan, sentences: Sentences, frequencies: Int64s) -> None:
        self.recipe, self.fleet, self.workers = plan.recipe, plan.fleet, worker.workers
        self.threads = min(plan.threads, usable_cores())
        self._worker, self._clocks = worker, plan.clocks
        self._reader = Reader(sentences, plan.clocks)
        self.draws = Draws.of(plan.recipe, frequencies)
        self.updates = Updates.of(plan.recipe, frequencies, self.draws.chances)
        self._damping = Damping(plan.recipe, self.updates)
        self._frequencies = frequencies
        self._report = np.zeros(REPORTED)

    def clocks(self) -> Iterator[int]:
        """Yield clocks, and report each when it is over."""
        first = self._clocks.first
        for clock in self._worker.clocks(first + self._clocks.count):
            clock -= first
            self._report = np.zeros(REPORTED)
            if clock == 0:
                self.fleet.count(self._frequencies)
            yield clock
            self._worker.report(self._report)

    def batches(self, clock: int) -> Iterator[Drawn]:
        """Yield a clock's batches."""
        for batch, key in self.sentences(clock):
            yield self.draws.draw(batch, key, self.threads)

    def sentences(self, clock: int) -> Iterator[tuple[Batch, np.uint64]]:
        """Yield a clock's batches without the tokens that are left out, and the keys of what else is drawn for them."""
        for number, batch in self._reader.batches(clock):
            key = key_of(self.recipe.seed, self._clocks.epoch(clock), self._worker.rank, number)
            yield self.draws.kept(batch, key), key
            self._report[TOKENS] += len(batch[0])

    def ask(self, table: Table, words: Int64s) -> Any:
        """Ask for rows of a table; they come in the background, with all that was changed here before."""
        return self._worker.prefetch(table.matrix, columns=table.columns(words), ahead=0)

    @property
    def rate(self) -> float:
        """The step size now, by this worker's own progress (as in gensim): the same when a clock is done again."""
        return self.recipe.rate(self._reader.progress)

    @property
    def clock_tokens(self) -> float:
        """Tokens that this worker has trained on in this clock."""
        return float(self._report[TOKENS])

    @property
    def epoch(self) -> int:
        """How often the fleet has gone back to a checkpoint."""
        return int(self._worker.epoch)

    def damp(self, changes: list[Float32s], tables: list[Float32s], tokens: float, words: Sequence[Any] = ALL) -> None:
        """Make changes by so many tokens, in place, what is to be added of them: as all workers make some."""
        if self.workers > 1:
            self._damping.damp(changes, tables, tokens, self.rate, self.workers, words)

    def tell(self, told: Float64s, moved: int = 0) -> None:
        """Add what kernels have told, and bytes that have moved, to the report."""
        self._report[: len(told)] += told
        self._report[BYTES] += moved
