"""The loop of a worker, by strategy: "local", "rows" and "servers"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.batch_kernels import losses_of
from ps2.algorithms.embeddings.plan import EmbeddingPlan
from ps2.algorithms.embeddings.sampling import SampledBatch, kind_of
from ps2.algorithms.embeddings.sampling_kernels import collect, number_words
from ps2.algorithms.embeddings.sentences import BATCH_TOKENS, Batch, split
from ps2.algorithms.embeddings.tables import SlicedTable, VectorTable
from ps2.algorithms.embeddings.training_kernels import LOSS_INTERVAL, PAIRS, STATISTICS
from ps2.algorithms.embeddings.worker import WorkerContext
from ps2.array_types import Float32s, Int32s, Int64s
from ps2.ops.guards import readable

# The largest size of a piece's rows in one table, and of the dot products of a request.
MAX_ROW_BYTES, MAX_PRODUCT_BYTES = 64 << 20, 8 << 20
# Limits of a piece that takes two requests, as all its dot products are of the vectors before it: its tokens; and the
# updates of the most frequent word, times the step size. Beyond these, more tokens do not change the word's vector.
PIECE_TOKENS, MAX_UPDATES, MIN_UPDATES = 1_000, 10.0, 1e-9
# The difference between the keys of consecutive pieces.
NEXT_PIECE = np.uint64(0xD1342543DE82EF95)


# -- "local" -----------------------------------------------------------------------------------------------------------


def train_local(context: WorkerContext) -> None:
    """Train all clocks: pull both tables, train them, add the changes. A single worker pulls them once, and again after
    the fleet has rolled back."""
    copies: list[_Copy] = []
    epoch = -1
    for clock in context.clocks():
        if not copies:
            copies = [_Copy(table) for table in _vector_tables(context)]
        if context.workers > 1 or context.epoch != epoch:
            context.report.bytes += sum(copy.pull() for copy in copies)
            epoch = context.epoch
        vectors, contexts = copies[0].values, copies[-1].values
        for batch in context.batches(clock):
            context.report.add_statistics(batch.train(vectors, contexts, context.rate, context.threads))
        changes = [copy.changes() for copy in copies]
        context.damp(changes, [copy.values for copy in copies], context.report.tokens)
        context.report.bytes += sum(copy.add(change) for copy, change in zip(copies, changes, strict=True))


class _Copy:
    """A worker's copy of one table, which is trained: ``values``."""

    def __init__(self, table: VectorTable) -> None:
        self._table = table
        self.values: Float32s = np.empty((table.matrix.dim, table.matrix.rows), np.float32)
        self._before = np.empty_like(self.values)

    def pull(self) -> int:
        """Read the table; return the bytes moved."""
        self._table.pull(out=self.values)
        self._before[:] = self.values
        return self.values.nbytes

    def changes(self) -> Float32s:
        """Return the changes since the last ``pull`` or ``add``; valid until the next call of either."""
        np.subtract(self.values, self._before, out=self._before)
        return self._before

    def add(self, changes: Float32s) -> int:
        """Add changes to the table; return the bytes moved."""
        words = np.flatnonzero(changes.any(axis=1))
        rows = changes[words]
        self._table.add(words, rows)
        self._before[:] = self.values
        return rows.nbytes


# -- "rows" ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PrefetchedPiece:
    """A piece of a batch, with row numbers in place of words, and for each table the words of these rows and their
    prefetch."""

    batch: SampledBatch
    words: tuple[Int64s, ...]
    rows: tuple[Any, ...]


def train_rows(context: WorkerContext) -> None:
    """Train all clocks: while one piece is trained, the rows of the next one are prefetched."""
    tables, numbering = _vector_tables(context), RowNumbering(context.plan)
    for clock in context.clocks():
        previous = None
        for batch in context.batches(clock):
            for piece in batch.pieces(piece_groups(context.plan)):
                numbered, words = numbering.renumber(piece)
                rows = tuple(context.prefetch(table, needed) for table, needed in zip(tables, words, strict=True))
                if previous is not None:
                    _train_piece(context, tables, previous)
                previous = PrefetchedPiece(numbered, words, rows)
        if previous is not None:
            _train_piece(context, tables, previous)


def piece_groups(plan: EmbeddingPlan) -> int:
    """Return the maximum number of words (or edges) of a piece, so that its rows fit ``MAX_ROW_BYTES``."""
    return max(1, MAX_ROW_BYTES // (4 * plan.size * (1 + plan.settings.negative)))


def batch_tokens(plan: EmbeddingPlan) -> int:
    """Return the tokens whose rows are pulled at once."""
    return min(BATCH_TOKENS, piece_groups(plan) * plan.tokens_per_example)


def _vector_tables(context: WorkerContext) -> list[VectorTable]:
    return [table for table in (context.tables.vectors, context.tables.contexts) if isinstance(table, VectorTable)]


def _train_piece(context: WorkerContext, tables: list[VectorTable], piece: PrefetchedPiece) -> None:
    rows: list[Float32s] = [
        table.with_initial(words, pulled.result())
        for table, words, pulled in zip(tables, piece.words, piece.rows, strict=True)
    ]
    before = [each.copy() for each in rows]
    tokens = len(piece.batch.tokens)
    context.report.add_statistics(piece.batch.train(rows[0], rows[-1], context.rate, context.threads))
    changes = [np.subtract(new, old, out=old) for new, old in zip(rows, before, strict=True)]
    context.damp(changes, rows, tokens, piece.words)
    for table, words, change in zip(tables, piece.words, changes, strict=True):
        table.add(words, change)
        context.report.bytes += 2 * change.nbytes


class RowNumbering:
    """Replaces the words of a piece by row numbers in the arrays that are pulled for it."""

    def __init__(self, plan: EmbeddingPlan) -> None:
        self._plan = plan
        self._cells = np.full(plan.vocabulary, -1, np.int32)

    def renumber(self, batch: SampledBatch) -> tuple[SampledBatch, tuple[Int64s, ...]]:
        """Return the renumbered piece, and the words of its rows, ascending, by table."""
        plan, tokens, negatives = self._plan, batch.tokens, batch.negatives
        inputs, outputs = tokens, tokens
        if plan.architecture == "edges":
            inputs, outputs = tokens[::2], tokens[1::2]
        if plan.shares_table:
            inputs = outputs = tokens
        words = np.concatenate([outputs, negatives.reshape(-1)])
        context_words, numbers = self._number(words)
        targets, negative_numbers = numbers[: len(outputs)], numbers[len(outputs) :].reshape(negatives.shape)
        if plan.shares_table:
            return batch.renumbered(targets, targets, negative_numbers), (context_words,)
        vector_words, input_numbers = self._number(inputs)
        if plan.architecture == "edges":
            input_numbers, targets = np.repeat(input_numbers, 2), np.repeat(targets, 2)
        return batch.renumbered(input_numbers, targets, negative_numbers), (vector_words, context_words)

    def _number(self, words: Int32s) -> tuple[Int64s, Int32s]:
        """Return the distinct words, ascending, and each word's position among them."""
        words = readable(words)
        distinct = np.empty(len(words), np.int32)
        distinct = np.sort(distinct[: collect(words, self._cells, distinct)])
        numbers = np.empty(len(words), np.int32)
        number_words(words, distinct, self._cells, numbers)
        return distinct.astype(np.int64), numbers


# -- "servers" (paper, section 5.2.2) ----------------------------------------------------------------------------------


def train_servers(context: WorkerContext) -> None:
    """Train all clocks: by one request a piece if one server has all columns, else by two. Tokens go to the servers,
    and only dot products travel."""
    vectors, contexts = context.tables.vectors, context.tables.contexts
    assert isinstance(vectors, SlicedTable)
    assert isinstance(contexts, SlicedTable)
    limit = piece_tokens(context.plan, context.updates.max_per_token * context.workers, vectors.parts)
    train = _train_at_once if vectors.parts == 1 else _train_by_products
    for clock in context.clocks():
        for batch, key in context.sentences(clock):
            for tokens, offsets, piece_key in _pieces(batch, key, limit):
                arguments = arguments_of(context.plan, tokens, offsets, piece_key)
                train(context, vectors, {"contexts": contexts.matrix, **arguments})


def piece_tokens(plan: EmbeddingPlan, updates: float, parts: int) -> int:
    """Return the tokens of a request (or pair of requests); ``updates``: the number of updates of the most frequent
    word for one token of each worker; ``parts``: the number of servers that hold columns."""
    limit = MAX_PRODUCT_BYTES / (4 * plan.inputs_per_token * (1 + plan.settings.negative))
    if parts > 1:
        limit = min(limit, PIECE_TOKENS, MAX_UPDATES / max(updates * plan.settings.stepSize, MIN_UPDATES))
    return max(int(limit), 1)


def _pieces(batch: Batch, key: np.uint64, limit: int) -> Iterator[tuple[Any, Any, np.uint64]]:
    tokens, offsets = batch
    for first, last in split(offsets, limit):
        begin, end = offsets[first], offsets[last]
        yield tokens[begin:end], offsets[first : last + 1] - begin, key
        with np.errstate(over="ignore"):
            key = key + NEXT_PIECE


def arguments_of(plan: EmbeddingPlan, tokens: Any, offsets: Any, key: np.uint64) -> dict[str, Any]:
    """Return the arguments that all operations on a piece take."""
    return {
        "tokens": _narrow(tokens, plan.vocabulary),
        "offsets": _narrow(offsets, len(tokens)),
        "words": plan.vocabulary,
        "key": int(np.array(key).view(np.int64)),
        "window": plan.window,
        "negative": plan.settings.negative,
        "kind": kind_of(plan),
    }


def _narrow(numbers: Any, limit: int) -> npt.NDArray[Any]:
    return np.ascontiguousarray(numbers).astype(np.uint16 if limit < 2**16 else np.uint32)


def _train_at_once(context: WorkerContext, vectors: SlicedTable, arguments: dict[str, Any]) -> None:
    statistics = vectors.matrix.apply("skipgrams.train_sentences", rate=context.rate, **arguments)
    context.report.add_statistics(statistics)
    context.report.bytes += arguments["tokens"].nbytes + arguments["offsets"].nbytes


def _train_by_products(context: WorkerContext, vectors: SlicedTable, arguments: dict[str, Any]) -> None:
    products = vectors.matrix.apply("skipgrams.find_products", **arguments)
    if not len(products):
        return
    vectors.matrix.apply(
        "skipgrams.learn_from_products",
        wait=False,
        products=products,
        rate=context.rate,
        workers=context.workers,
        **arguments,
    )
    statistics = np.zeros(STATISTICS)
    losses_of(readable(products[::LOSS_INTERVAL]), statistics)
    statistics[PAIRS] = len(products)
    server_bytes = 2 * products.nbytes + 2 * (arguments["tokens"].nbytes + arguments["offsets"].nbytes)
    context.report.add_statistics(statistics)
    context.report.bytes += server_bytes * vectors.parts
