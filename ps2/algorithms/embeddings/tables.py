"""What the servers have of a training: the two tables, and what workers report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.problem import Recipe
from ps2.algorithms.embeddings.slices import Slices, row_of
from ps2.algorithms.embeddings.training_kernels import TOLD
from ps2.algorithms.training.names import Names
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.errors import LimitError
from ps2.ops.kernels import Float64s, Int64s

Float32s = npt.NDArray[np.float32]

# What a worker reports of a clock besides what kernels tell: tokens, and bytes that have moved.
TOKENS, BYTES = TOLD, TOLD + 1
REPORTED = TOLD + 2
# Clocks that a worker may be ahead of the slowest one.
STALENESS = 1
# Of a table, what one request moves.
REQUEST_BYTES = 32 << 20


@dataclass(frozen=True, eq=False)
class Table:
    """One table: layout "column", in which each word's vector is one slice of a server.

    Attributes:
        matrix: float32: a column for each word, with its vector.
    """

    matrix: DCVMatrix

    def fill(self, seed: int) -> None:
        """Fill it as gensim does: uniformly between -1 and 1, over the size of a vector."""
        most = 1.0 / self.matrix.rows
        self.matrix.fillRandom("uniform", seed, low=-most, high=most)

    def pull(self, words: Int64s | None = None, out: Any = None) -> Float32s:
        """Return the vectors of some words, or of all, shape (words, size), into ``out`` if any."""
        count = self.matrix.dim if words is None else len(words)
        found: Float32s = np.empty((count, self.matrix.rows), np.float32) if out is None else out
        for some in self._some(count):
            columns = np.arange(some.start, some.stop) if words is None else words[some]
            self.matrix.pull(columns=columns, out=found[some])
        return found

    def add(self, words: Int64s, changes: Float32s) -> None:
        """Add to vectors of words, in the background."""
        for some in self._some(len(words)):
            self.matrix.add(columns=words[some], values=changes[some], wait=False)

    def free(self) -> None:
        self.matrix.free()

    def _some(self, count: int) -> Iterator[slice]:
        step = max(1, REQUEST_BYTES // (4 * self.matrix.rows))
        for begin in range(0, count, step):
            yield slice(begin, min(begin + step, count))


@dataclass(frozen=True, eq=False)
class OnFleet:
    """Tables and reports; picklable.

    Attributes:
        vectors: of words.
        contexts: None: those are the vectors; of slices there always are some, as servers keep aliases there.
        done: float64, one number: tokens, or edges, that all workers have had.
        reports: float64, REPORTED columns: sums of what workers have told, in a row for each of the last epochs.
    """

    vectors: Table | Slices
    contexts: Table | Slices | None
    done: DCV
    reports: DCVMatrix

    @staticmethod
    def make(recipe: Recipe, servers: int, names: Names) -> OnFleet:
        """Make them, or find those of a driver before.

        Raises:
            LimitError: they do not fit.
        """

        def make() -> Table | Slices:
            with _explaining(recipe):
                if recipe.via == "servers":
                    return Slices(recipe, names.give(lambda name: row_of(recipe, servers, name)).matrix())
                return Table(names.give(lambda name: columns_of(recipe, name)).matrix())

        vectors, contexts = make(), None
        try:
            if recipe.via == "servers" or not recipe.shares_table:
                contexts = make()
        except LimitError:
            vectors.free()
            raise
        done = names.give(lambda name: DCV.dense(1, 1, "float64", name=name))
        reports = names.give(lambda name: DCV.dense(REPORTED, STALENESS + 3, "float64", name=name))
        return OnFleet(vectors, contexts, done, reports.matrix())

    def report_row(self, epoch: int) -> int:
        """Return where reports of an epoch are: others may be in later ones, but not in so many."""
        return epoch % self.reports.rows

    def heard(self, epoch: int) -> Float64s:
        """Return the sums of what was reported of an epoch, once."""
        row = [self.report_row(epoch)]
        sums: Float64s = self.reports.pull(row)[0]
        self.reports.zero(row)
        return sums

    def free(self) -> None:
        for thing in (self.vectors, self.contexts, self.done, self.reports):
            if thing is not None:
                thing.free()


def columns_of(recipe: Recipe, name: str | None) -> DCV:
    """Make what a ``Table`` is of."""
    return DCV.dense(recipe.vocabulary, recipe.size, layout="column", name=name)


@contextmanager
def _explaining(recipe: Recipe) -> Iterator[None]:
    """Say what it is that does not fit."""
    try:
        yield
    except LimitError as error:
        need = recipe.tables * recipe.table_bytes
        raise LimitError(
            f"vectors of {recipe.vocabulary:,} words with {recipe.size:,} numbers each take {need:,} bytes in "
            f"{recipe.tables} table{'s' if recipe.tables > 1 else ''}, and they do not fit the servers: {error}; start "
            "more servers, or with a larger memory limit"
        ) from error
