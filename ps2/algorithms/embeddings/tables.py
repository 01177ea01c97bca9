"""The tables of a training on the servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ps2.algorithms.embeddings.sampling_kernels import add_beginnings
from ps2.algorithms.embeddings.settings import EmbeddingSettings
from ps2.algorithms.embeddings.sliced_table import SlicedTable, make_row, recut
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.array_types import Float32s, Int64s
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.errors import LimitError
from ps2.ops.guards import readable

# Bytes of a table moved by one request.
REQUEST_BYTES = 32 << 20
MAX_KEYS = 2**63


@dataclass(frozen=True, eq=False)
class VectorTable:
    """One table with layout "column": each word's vector is contiguous on one server.

    Attributes:
        matrix: float32: a column for each word.
    """

    matrix: DCVMatrix

    def fill(self, seed: int) -> None:
        """Initialize as gensim does: uniform in [-1, 1) / size."""
        most = 1.0 / self.matrix.rows
        self.matrix.fillRandom("uniform", seed, low=-most, high=most)

    def pull(self, words: Int64s | None = None, out: Any = None) -> Float32s:
        """Return the vectors of some words, or of all, shape (words, size); into ``out`` if given."""
        count = self._words if words is None else len(words)
        found: Float32s = np.empty((count, self.matrix.rows), np.float32) if out is None else out
        for some in self._some(count):
            asked = np.arange(some.start, some.stop) if words is None else words[some]
            self.matrix.pull(columns=self.columns(asked), out=found[some])
            self.with_initial(asked, found[some])
        return found

    def add(self, words: Int64s, changes: Float32s) -> None:
        """Add to the vectors of words, in the background."""
        for some in self._some(len(words)):
            self.matrix.add(columns=self.columns(words[some]), values=changes[some], wait=False)

    def columns(self, words: Int64s) -> Int64s:
        """Return the columns of words."""
        return words

    def with_initial(self, words: Int64s, rows: Float32s) -> Float32s:
        """Turn pulled rows into vectors, in place."""
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
class KeyedTable(VectorTable):
    """One table whose words are keys (``keyed``): a sparse matrix with room for updated keys only.

    It holds the difference of each vector from its initial value, which is a function of the key.

    Attributes:
        seed: of the initial vectors; None: they are 0.
        keys: int64: of the words of this process.
    """

    seed: int | None
    keys: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    def for_keys(self, keys: Int64s) -> KeyedTable:
        """Return the same table with these keys as words."""
        return replace(self, keys=keys)

    def fill(self, seed: int) -> None:
        """Do nothing: initial values follow from the keys."""

    def columns(self, words: Int64s) -> Int64s:
        return self.keys[words]

    def with_initial(self, words: Int64s, rows: Float32s) -> Float32s:
        if self.seed is not None:
            add_beginnings(rows, readable(self.keys[words]), np.uint64(self.seed % 2**64), 1.0 / rows.shape[1])
        return rows

    @property
    def _words(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, eq=False)
class ServerTables:
    """All tables; picklable.

    Attributes:
        vectors: of words.
        contexts: None: the vectors themselves; sliced tables always have contexts, for the alias table.
        counts: int64, sparse: occurrences of words that are keys; None: words are numbers.
    """

    vectors: VectorTable | SlicedTable
    contexts: VectorTable | SlicedTable | None
    counts: DCV | None = None

    @staticmethod
    def make(settings: EmbeddingSettings, servers: int, names: CheckpointNames) -> ServerTables:
        """Allocate the tables, or find those of an earlier driver.

        Raises:
            LimitError: they do not fit.
        """

        def make(seed: int | None = None) -> VectorTable | SlicedTable:
            with _explaining(settings):
                if settings.keyed:
                    return KeyedTable(names.give(lambda name: make_keys(settings, name)).matrix(), seed)
                if settings.via == "servers":
                    row = names.give(
                        lambda name: make_row(settings, servers, name),
                        lambda found, name: recut(settings, found, servers, name),
                    )
                    return SlicedTable(settings, row.matrix())
                return VectorTable(names.give(lambda name: make_columns(settings, name)).matrix())

        vectors, contexts = make(settings.seed), None
        try:
            if settings.via == "servers" or not settings.shares_table:
                contexts = make()
        except LimitError:
            vectors.free()
            raise
        counts = names.give(lambda name: DCV.sparse(MAX_KEYS, 1, "int64", name=name)) if settings.keyed else None
        return ServerTables(vectors, contexts, counts)

    def for_keys(self, keys: Int64s) -> ServerTables:
        """Return the same tables with these keys as words."""
        vectors, contexts = (table.for_keys(keys) if isinstance(table, KeyedTable) else table for table in self._tables)
        assert vectors is not None
        return replace(self, vectors=vectors, contexts=contexts)

    def count(self, frequencies: Int64s) -> None:
        """Add the occurrences of a worker's keys, in the background; from then on each key has a vector."""
        if self.counts is not None:
            assert isinstance(self.vectors, KeyedTable)
            self.counts.add(frequencies, self.vectors.keys, wait=False)

    def counted(self) -> tuple[Int64s, Int64s]:
        """Return all keys and their occurrences, the most frequent first."""
        assert self.counts is not None
        keys, counts = self.counts.pull()
        order = np.lexsort((keys, -counts))
        return keys[order], counts[order]

    def free(self) -> None:
        for thing in (*self._tables, self.counts):
            if thing is not None:
                thing.free()

    @property
    def _tables(self) -> tuple[VectorTable | SlicedTable | None, ...]:
        return self.vectors, self.contexts


def make_columns(settings: EmbeddingSettings, name: str | None) -> DCV:
    """Allocate the columns of a ``VectorTable``."""
    return DCV.dense(settings.vocabulary, settings.size, layout="column", name=name)


def make_keys(settings: EmbeddingSettings, name: str | None) -> DCV:
    """Allocate the columns of a ``KeyedTable``."""
    return DCV.sparse(MAX_KEYS, settings.size, layout="column", name=name)


@contextmanager
def _explaining(settings: EmbeddingSettings) -> Iterator[None]:
    """Explain a LimitError by the size of the vectors."""
    try:
        yield
    except LimitError as error:
        need = settings.tables * settings.table_bytes
        raise LimitError(
            f"vectors of {settings.vocabulary:,} words with {settings.size:,} numbers each take {need:,} bytes in "
            f"{settings.tables} table{'s' if settings.tables > 1 else ''}, and they do not fit the servers: {error}; "
            "start more servers, or with a larger memory limit"
        ) from error
