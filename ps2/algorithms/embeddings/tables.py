"""The tables of vectors and contexts on the servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ps2.algorithms.embeddings.plan import EmbeddingPlan
from ps2.algorithms.embeddings.sampling_kernels import add_initial_vectors
from ps2.algorithms.frame.memory import fitting_servers
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.array_types import Float32s, Int64s
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.matrix.partition import partition_bounds
from ps2.ops.guards import readable

# The number of entries of the alias table that are sent at once, and the bytes of a table that one request moves.
MAX_ALIASES, REQUEST_BYTES = 1 << 22, 32 << 20
# The number of columns of sparse tables: any non-negative int64 is a key.
MAX_KEYS = 2**63


@dataclass(frozen=True, eq=False)
class SlicedTable:
    """A table whose columns are partitioned among servers, which compute on them (``skipgrams.ops``); picklable. It is
    the only row of its matrix. Each server's part ends with ``vocabulary`` numbers of the alias table."""

    plan: EmbeddingPlan
    matrix: DCVMatrix

    @property
    def parts(self) -> int:
        """The number of servers that hold columns."""
        return len(self._bounds) - 1

    def pull(self) -> Float32s:
        """Return all vectors, shape (vocabulary, size)."""
        return _join(self.plan, self.matrix.pull([0])[0], self._bounds)

    def free(self) -> None:
        self.matrix.free()

    @property
    def _bounds(self) -> tuple[int, ...]:
        bounds: tuple[int, ...] = self.matrix._first._route.bounds
        return bounds


def make_row(plan: EmbeddingPlan, servers: int, name: str | None) -> DCV:
    """Allocate the row of a ``SlicedTable``."""
    words, parts = plan.vocabulary, min(servers, plan.size)
    # With more servers than columns, each part is a single column and its numbers of the alias table.
    align = words if servers < plan.size else 2 * words
    return DCV.dense(words * (plan.size + parts), 1, align=align, name=name)


def repartition(plan: EmbeddingPlan, row: DCV, servers: int, name: str) -> DCV:
    """Return a row of ``make_row`` for this number of servers: ``row``, or a new row without an alias table, for which
    ``row`` is freed. Raise LimitError if the servers lack the memory for the new row."""
    parts = row.dim // plan.vocabulary - plan.size
    if parts == min(servers, plan.size):
        return row
    vectors = _join(plan, row.pull(), partition_bounds(row._spec, parts))
    row.free()
    new_row = make_row(plan, servers, name)
    no_aliases = np.zeros(plan.vocabulary, np.float32)
    pieces, begin = [], 0
    for first, end in pairwise(SlicedTable(plan, new_row.matrix())._bounds):
        width = (end - first) // plan.vocabulary - 1
        pieces += [vectors[:, begin : begin + width].reshape(-1), no_aliases]
        begin += width
    new_row.push(np.concatenate(pieces))
    return new_row


def _join(plan: EmbeddingPlan, numbers: Any, bounds: tuple[int, ...]) -> Float32s:
    """Return the vectors of a row with these bounds of its parts, shape (vocabulary, size)."""
    words = plan.vocabulary
    parts = [numbers[begin : end - words].reshape(words, -1) for begin, end in pairwise(bounds)]
    return np.ascontiguousarray(np.hstack(parts))


def put_aliases(vectors: SlicedTable, contexts: SlicedTable, thresholds: Any, aliases: Any) -> None:
    """Send an alias table to all servers."""
    for begin in range(0, len(thresholds), MAX_ALIASES):
        block = slice(begin, begin + MAX_ALIASES)
        vectors.matrix.apply(
            "skipgrams.put_aliases",
            contexts=contexts.matrix,
            thresholds=thresholds[block],
            aliases=aliases[block].view(np.uint32),
            words=len(thresholds),
            begin=begin,
        )


@dataclass(frozen=True, eq=False)
class VectorTable:
    """A table with a column for each word, layout "column": a word's vector is contiguous on one server."""

    matrix: DCVMatrix

    def pull(self, words: Int64s | None = None, out: Any = None) -> Float32s:
        """Return the vectors of these words, by default of all, shape (words, size); in ``out`` unless it is None."""
        count = self._words if words is None else len(words)
        vectors: Float32s = np.empty((count, self.matrix.rows), np.float32) if out is None else out
        for block in self._blocks(count):
            block_words = np.arange(block.start, block.stop) if words is None else words[block]
            self.matrix.pull(columns=self.columns(block_words), out=vectors[block])
            self.with_initial(block_words, vectors[block])
        return vectors

    def add(self, words: Int64s, changes: Float32s) -> None:
        """Add to the vectors of words, in the background."""
        for block in self._blocks(len(words)):
            self.matrix.add(columns=self.columns(words[block]), values=changes[block], wait=False)

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

    def _blocks(self, count: int) -> Iterator[slice]:
        step = max(1, REQUEST_BYTES // (4 * self.matrix.rows))
        for begin in range(0, count, step):
            yield slice(begin, min(begin + step, count))


@dataclass(frozen=True, eq=False)
class KeyedTable(VectorTable):
    """A sparse table that stores updated keys only; words are indices into ``keys``, the keys of this process. It
    stores each vector minus its initial value, which is a function of the key and ``seed`` (None: 0)."""

    seed: int | None
    keys: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    def columns(self, words: Int64s) -> Int64s:
        return self.keys[words]

    def with_initial(self, words: Int64s, rows: Float32s) -> Float32s:
        if self.seed is not None:
            add_initial_vectors(rows, readable(self.keys[words]), np.uint64(self.seed % 2**64), 1.0 / rows.shape[1])
        return rows

    @property
    def _words(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, eq=False)
class ServerTables:
    """All tables; picklable.

    Attributes:
        contexts: None: the vectors are also the contexts. Sliced tables always have contexts, for the alias table.
        counts: int64, sparse: the occurrences of keys; None: words are not keys.
    """

    vectors: VectorTable | SlicedTable
    contexts: VectorTable | SlicedTable | None
    counts: DCV | None = None

    @staticmethod
    def make(plan: EmbeddingPlan, servers: int, names: CheckpointNames) -> ServerTables:
        """Allocate the tables, or find an earlier driver's tables; raise LimitError if they do not fit."""

        def make(seed: int | None = None) -> VectorTable | SlicedTable:
            if plan.keyed:
                row = names.vector(lambda name: DCV.sparse(MAX_KEYS, plan.size, layout="column", name=name))
                return KeyedTable(row.matrix(), seed)
            if plan.settings.via == "servers":
                row = names.vector(
                    lambda name: make_row(plan, servers, name),
                    lambda row, name: repartition(plan, row, servers, name),
                )
                return SlicedTable(plan, row.matrix())
            return VectorTable(names.vector(lambda name: make_columns(plan, name)).matrix())

        what = (
            f"vectors of {plan.vocabulary:,} words with {plan.size:,} numbers each take "
            f"{plan.tables * plan.table_bytes:,} bytes in {plan.tables} table{'s' * (plan.tables > 1)}, and they"
        )
        tables: list[VectorTable | SlicedTable] = []
        with fitting_servers(what, tables):
            tables.append(make(plan.seed))
            if plan.settings.via == "servers" or not plan.shares_table:
                tables.append(make())
        vectors, contexts = tables[0], tables[1] if len(tables) > 1 else None
        counts = names.vector(lambda name: DCV.sparse(MAX_KEYS, 1, "int64", name=name)) if plan.keyed else None
        return ServerTables(vectors, contexts, counts)

    def for_keys(self, keys: Int64s) -> ServerTables:
        """Return the same tables with these keys as words."""
        assert isinstance(self.vectors, KeyedTable)
        contexts = replace(self.contexts, keys=keys) if isinstance(self.contexts, KeyedTable) else None
        return replace(self, vectors=replace(self.vectors, keys=keys), contexts=contexts)

    def fill(self, plan: EmbeddingPlan) -> None:
        """Set vectors to random numbers like gensim, uniform in [-1, 1) / size; vectors of keys need no values."""
        if not plan.keyed:
            self.vectors.matrix.fillRandom("uniform", plan.seed, low=-1.0 / plan.size, high=1.0 / plan.size)

    def count(self, frequencies: Int64s) -> None:
        """Add the occurrences of a worker's keys, in the background. Each counted key has a vector."""
        if self.counts is not None:
            assert isinstance(self.vectors, KeyedTable)
            self.counts.add(frequencies, self.vectors.keys, wait=False)

    def keys_and_counts(self) -> tuple[Int64s, Int64s]:
        """Return all keys and their occurrences, the most frequent first."""
        assert self.counts is not None
        keys, counts = self.counts.pull()
        order = np.lexsort((keys, -counts))
        return keys[order], counts[order]

    def free(self) -> None:
        for table in (self.vectors, self.contexts, self.counts):
            if table is not None:
                table.free()


def make_columns(plan: EmbeddingPlan, name: str | None) -> DCV:
    """Allocate the columns of a ``VectorTable``."""
    return DCV.dense(plan.vocabulary, plan.size, layout="column", name=name)
