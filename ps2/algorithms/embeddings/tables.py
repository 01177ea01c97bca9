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

# The maximum number of entries of the alias table, and the maximum bytes of a table, in a request.
MAX_ALIASES, REQUEST_BYTES = 1 << 22, 32 << 20
# The dimension of sparse tables: any non-negative int64 is a key.
MAX_KEYS = 2**63


@dataclass(frozen=True, eq=False)
class SlicedTable:
    """A table whose columns are partitioned among servers, which compute on them (``skipgrams.ops``); picklable.

    The table is the only row of its matrix. A server's slice has its columns of all vectors, word by word, and then
    ``vocabulary`` entries of the alias table.
    """

    plan: EmbeddingPlan
    matrix: DCVMatrix

    @property
    def num_slices(self) -> int:
        """The number of servers that have columns."""
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
    words, num_slices = plan.vocabulary, min(servers, plan.size)
    # With at least as many servers as columns, each slice has a single column, and then the entries of the alias table.
    align = words if servers < plan.size else 2 * words
    return DCV.dense(words * (plan.size + num_slices), 1, align=align, name=name)


def repartition(plan: EmbeddingPlan, row: DCV, servers: int, name: str) -> DCV:
    """Partition a row of ``make_row`` for another number of servers. Return ``row`` if it fits; else free it, and
    return a new row whose alias table is zeros. Raise LimitError if the servers lack memory for the new row."""
    num_slices = row.dim // plan.vocabulary - plan.size
    if num_slices == min(servers, plan.size):
        return row
    vectors = _join(plan, row.pull(), partition_bounds(row._spec, num_slices))
    row.free()
    new_row = make_row(plan, servers, name)
    no_aliases = np.zeros(plan.vocabulary, np.float32)
    slices, begin = [], 0
    for first, end in pairwise(SlicedTable(plan, new_row.matrix())._bounds):
        width = (end - first) // plan.vocabulary - 1
        slices += [vectors[:, begin : begin + width].reshape(-1), no_aliases]
        begin += width
    new_row.push(np.concatenate(slices))
    return new_row


def _join(plan: EmbeddingPlan, row: Any, bounds: tuple[int, ...]) -> Float32s:
    """Return the vectors of a row whose slices have these bounds, shape (vocabulary, size)."""
    words = plan.vocabulary
    slices = [row[begin : end - words].reshape(words, -1) for begin, end in pairwise(bounds)]
    return np.ascontiguousarray(np.hstack(slices))


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
        """Return the vectors of words (None: all), shape (words, size), in ``out`` or (None) in a new array."""
        count = self._words if words is None else len(words)
        vectors: Float32s = np.empty((count, self.matrix.rows), np.float32) if out is None else out
        for block in self._blocks(count):
            block_words = np.arange(block.start, block.stop) if words is None else words[block]
            self.matrix.pull(columns=self.columns(block_words), out=vectors[block])
            self.to_vectors(block_words, vectors[block])
        return vectors

    def add(self, words: Int64s, changes: Float32s) -> None:
        """Add changes to the vectors of words, in the background."""
        for block in self._blocks(len(words)):
            self.matrix.add(columns=self.columns(words[block]), values=changes[block], wait=False)

    def columns(self, words: Int64s) -> Int64s:
        """Return the columns of words."""
        return words

    def to_vectors(self, words: Int64s, rows: Float32s) -> Float32s:
        """Convert pulled columns to the vectors of words, in place."""
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
    """A sparse table that stores only updated keys, and only the differences from their initial vectors.

    Attributes:
        seed: the initial vectors are a function of key and seed; None: they are 0.
        keys: the key of each word of this process.
    """

    seed: int | None
    keys: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    def columns(self, words: Int64s) -> Int64s:
        return self.keys[words]

    def to_vectors(self, words: Int64s, rows: Float32s) -> Float32s:
        if self.seed is not None:
            add_initial_vectors(rows, readable(self.keys[words]), np.uint64(self.seed % 2**64), 1.0 / rows.shape[1])
        return rows

    @property
    def _words(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, eq=False)
class ServerTables:
    """The tables of a training; picklable.

    Attributes:
        vectors: the table of vectors.
        contexts: the table of contexts; None: the vectors are also the contexts. Sliced tables always have one, whose
            matrix has the aliases of the alias table.
        counts: the occurrences of keys, int64, sparse; None: words are not keys.
    """

    vectors: VectorTable | SlicedTable
    contexts: VectorTable | SlicedTable | None
    counts: DCV | None = None

    @staticmethod
    def make(plan: EmbeddingPlan, servers: int, names: CheckpointNames) -> ServerTables:
        """Allocate the tables, or find those of an earlier driver; raise LimitError if they do not fit into memory."""

        def make_table(seed: int | None = None) -> VectorTable | SlicedTable:
            if plan.keyed:
                row = names.vector(lambda name: DCV.sparse(MAX_KEYS, plan.size, layout="column", name=name))
                return KeyedTable(row.matrix(), seed)
            if plan.settings.via == "servers":
                row = names.vector(
                    lambda name: make_row(plan, servers, name), lambda row, name: repartition(plan, row, servers, name)
                )
                return SlicedTable(plan, row.matrix())
            return VectorTable(names.vector(lambda name: make_columns(plan, name)).matrix())

        subject = (
            f"vectors of {plan.vocabulary:,} words with {plan.size:,} float32s each take "
            f"{plan.tables * plan.table_bytes:,} bytes in {plan.tables} table{'s' * (plan.tables > 1)}, and they"
        )
        tables: list[VectorTable | SlicedTable] = []
        with fitting_servers(subject, tables):
            tables.append(make_table(plan.seed))
            if plan.settings.via == "servers" or not plan.shares_table:
                tables.append(make_table())
        vectors, contexts = tables[0], tables[1] if len(tables) > 1 else None
        counts = names.vector(lambda name: DCV.sparse(MAX_KEYS, 1, "int64", name=name)) if plan.keyed else None
        return ServerTables(vectors, contexts, counts)

    def for_keys(self, keys: Int64s) -> ServerTables:
        """Return the same tables for a process whose words are these keys."""
        assert isinstance(self.vectors, KeyedTable)
        contexts = replace(self.contexts, keys=keys) if isinstance(self.contexts, KeyedTable) else None
        return replace(self, vectors=replace(self.vectors, keys=keys), contexts=contexts)

    def initialize(self, plan: EmbeddingPlan) -> None:
        """Set vectors to random values in [-1, 1) / size, as in gensim; ``KeyedTable`` computes them from keys."""
        if not plan.keyed:
            self.vectors.matrix.fillRandom("uniform", plan.seed, low=-1.0 / plan.size, high=1.0 / plan.size)

    def count_keys(self, frequencies: Int64s) -> None:
        """Add the occurrences of a worker's keys to ``counts``, in the background; do nothing if words are not keys."""
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
