"""What the servers have of a training: the two tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.drawing_kernels import add_beginnings
from ps2.algorithms.embeddings.problem import Recipe
from ps2.algorithms.embeddings.slices import Slices, cut_again, row_of
from ps2.algorithms.embeddings.training_kernels import TOLD
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.errors import LimitError
from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s

Float32s = npt.NDArray[np.float32]

# What a worker reports of a clock besides what kernels tell: tokens, and bytes that have moved.
TOKENS, BYTES = TOLD, TOLD + 1
REPORTED = TOLD + 2
# Clocks that a worker may be ahead of the slowest one.
STALENESS = 1
# Of a table, what one request moves.
REQUEST_BYTES = 32 << 20
MOST_KEYS = 2**63


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
        count = self._words if words is None else len(words)
        found: Float32s = np.empty((count, self.matrix.rows), np.float32) if out is None else out
        for some in self._some(count):
            asked = np.arange(some.start, some.stop) if words is None else words[some]
            self.matrix.pull(columns=self.columns(asked), out=found[some])
            self.shown(asked, found[some])
        return found

    def add(self, words: Int64s, changes: Float32s) -> None:
        """Add to vectors of words, in the background."""
        for some in self._some(len(words)):
            self.matrix.add(columns=self.columns(words[some]), values=changes[some], wait=False)

    def columns(self, words: Int64s) -> Int64s:
        """Return where words are in the matrix."""
        return words

    def shown(self, words: Int64s, rows: Float32s) -> Float32s:
        """Make vectors of what the matrix has of words, in place."""
        return rows

    def free(self) -> None:
        self.matrix.free()

    @property
    def _words(self) -> int:
        return self.matrix.dim

    def _some(self, count: int) -> Iterator[slice]:
        step = max(1, REQUEST_BYTES // (4 * self.matrix.rows))
        for begin in range(0, count, step):
            yield slice(begin, min(begin + step, count))


@dataclass(frozen=True, eq=False)
class KeyedTable(Table):
    """One table of words that are keys (``keyed``): a sparse matrix, with room for those alone that were touched.

    It holds by what a vector differs from where it began, and that follows from the key: nobody has to begin it.

    Attributes:
        seed: of where vectors begin; None: at 0.
        keys: int64: of the words that this process knows.
    """

    seed: int | None
    keys: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    def known(self, keys: Int64s) -> KeyedTable:
        """Return the same table, where words are these keys."""
        return replace(self, keys=keys)

    def fill(self, seed: int) -> None:
        """Do nothing: all vectors have begun."""

    def columns(self, words: Int64s) -> Int64s:
        return self.keys[words]

    def shown(self, words: Int64s, rows: Float32s) -> Float32s:
        if self.seed is not None:
            add_beginnings(rows, readable(self.keys[words]), np.uint64(self.seed % 2**64), 1.0 / rows.shape[1])
        return rows

    @property
    def _words(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, eq=False)
class OnFleet:
    """The tables; picklable.

    Attributes:
        vectors: of words.
        contexts: None: those are the vectors; of slices there always are some, as servers keep aliases there.
        counts: int64, sparse: of words that are keys, how often each comes; None: there are none.
    """

    vectors: Table | Slices
    contexts: Table | Slices | None
    counts: DCV | None = None

    @staticmethod
    def make(recipe: Recipe, servers: int, names: CheckpointNames) -> OnFleet:
        """Make them, or find those of a driver before.

        Raises:
            LimitError: they do not fit.
        """

        def make(seed: int | None = None) -> Table | Slices:
            with _explaining(recipe):
                if recipe.keyed:
                    return KeyedTable(names.give(lambda name: keys_of(recipe, name)).matrix(), seed)
                if recipe.via == "servers":
                    row = names.give(
                        lambda name: row_of(recipe, servers, name),
                        lambda found, name: cut_again(recipe, found, servers, name),
                    )
                    return Slices(recipe, row.matrix())
                return Table(names.give(lambda name: columns_of(recipe, name)).matrix())

        vectors, contexts = make(recipe.seed), None
        try:
            if recipe.via == "servers" or not recipe.shares_table:
                contexts = make()
        except LimitError:
            vectors.free()
            raise
        counts = names.give(lambda name: DCV.sparse(MOST_KEYS, 1, "int64", name=name)) if recipe.keyed else None
        return OnFleet(vectors, contexts, counts)

    def known(self, keys: Int64s) -> OnFleet:
        """Return the same, where words are these keys."""
        vectors, contexts = (table.known(keys) if isinstance(table, KeyedTable) else table for table in self._tables)
        assert vectors is not None
        return replace(self, vectors=vectors, contexts=contexts)

    def count(self, frequencies: Int64s) -> None:
        """Tell how often words come that are keys, in the background; all of them have vectors then."""
        if self.counts is not None:
            assert isinstance(self.vectors, KeyedTable)
            self.counts.add(frequencies, self.vectors.keys, wait=False)

    def counted(self) -> tuple[Int64s, Int64s]:
        """Return all keys, and how often each comes, the most frequent first."""
        assert self.counts is not None
        keys, counts = self.counts.pull()
        order = np.lexsort((keys, -counts))
        return keys[order], counts[order]

    def free(self) -> None:
        for thing in (*self._tables, self.counts):
            if thing is not None:
                thing.free()

    @property
    def _tables(self) -> tuple[Table | Slices | None, ...]:
        return self.vectors, self.contexts


def columns_of(recipe: Recipe, name: str | None) -> DCV:
    """Make what a ``Table`` is of."""
    return DCV.dense(recipe.vocabulary, recipe.size, layout="column", name=name)


def keys_of(recipe: Recipe, name: str | None) -> DCV:
    """Make what a ``KeyedTable`` is of."""
    return DCV.sparse(MOST_KEYS, recipe.size, layout="column", name=name)


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
