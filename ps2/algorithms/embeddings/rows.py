"""Strategy "rows": pull the rows of some sentences, train them, add the changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.embeddings.corpus import BATCH_TOKENS
from ps2.algorithms.embeddings.sampling import SampledBatch
from ps2.algorithms.embeddings.sampling_kernels import collect, number_words
from ps2.algorithms.embeddings.settings import EmbeddingSettings
from ps2.algorithms.embeddings.tables import VectorTable
from ps2.algorithms.embeddings.worker_context import WorkerContext
from ps2.array_types import Float32s, Int32s, Int64s
from ps2.ops.guards import readable

# Limit of a piece's rows in one table.
MAX_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class PrefetchedPiece:
    """A piece of a batch whose rows are being prefetched.

    Attributes:
        batch: the piece, with row numbers in place of words.
        words: of the rows, by table.
        rows: prefetches, by table.
    """

    batch: SampledBatch
    words: tuple[Int64s, ...]
    rows: tuple[Any, ...]


def train_rows(context: WorkerContext) -> None:
    """Train all clocks: while one piece is trained, the rows of the next one are prefetched."""
    tables = [table for table in (context.tables.vectors, context.tables.contexts) if isinstance(table, VectorTable)]
    numbers = RowNumbering(context.settings)
    for clock in context.clocks():
        before = None
        for piece in _pieces(context, clock):
            prefetched = _prefetch(context, numbers, tables, piece)
            if before is not None:
                _train(context, tables, before)
            before = prefetched
        if before is not None:
            _train(context, tables, before)


def _pieces(context: WorkerContext, clock: int) -> Iterator[SampledBatch]:
    for batch in context.batches(clock):
        yield from batch.pieces(piece_groups(context.settings))


def piece_groups(settings: EmbeddingSettings) -> int:
    """Return the maximum number of words (or edges) of a piece, so that its rows fit ``MAX_BYTES``."""
    return max(1, MAX_BYTES // (4 * settings.size * (1 + settings.negative)))


def batch_tokens(settings: EmbeddingSettings) -> int:
    """Return the tokens whose rows are pulled at once."""
    return min(BATCH_TOKENS, piece_groups(settings) * settings.tokens_per_example)


def _prefetch(
    context: WorkerContext, numbers: RowNumbering, tables: list[VectorTable], batch: SampledBatch
) -> PrefetchedPiece:
    batch, words = numbers.of(batch)
    rows = tuple(context.prefetch(table, some) for table, some in zip(tables, words, strict=True))
    return PrefetchedPiece(batch, words, rows)


def _train(context: WorkerContext, tables: list[VectorTable], piece: PrefetchedPiece) -> None:
    rows: list[Float32s] = [
        table.with_initial(words, pulled.result())
        for table, words, pulled in zip(tables, piece.words, piece.rows, strict=True)
    ]
    before = [some.copy() for some in rows]
    tokens = len(piece.batch.tokens)
    context.report.add_statistics(piece.batch.train(rows[0], rows[-1], context.rate, context.threads))
    changes = [np.subtract(new, old, out=old) for new, old in zip(rows, before, strict=True)]
    context.damp(changes, rows, tokens, piece.words)
    for table, words, changed in zip(tables, piece.words, changes, strict=True):
        table.add(words, changed)
        context.report.bytes += 2 * changed.nbytes


class RowNumbering:
    """Renumbers the words of a piece as rows of what is pulled for it."""

    def __init__(self, settings: EmbeddingSettings) -> None:
        self._settings = settings
        self._cells = np.full(settings.vocabulary, -1, np.int32)

    def of(self, batch: SampledBatch) -> tuple[SampledBatch, tuple[Int64s, ...]]:
        """Return the renumbered piece, and the words of its rows, ascending, by table."""
        settings, tokens, negatives = self._settings, batch.tokens, batch.negatives
        inputs, outputs = tokens, tokens
        if settings.architecture == "edges":
            inputs, outputs = tokens[::2], tokens[1::2]
        if settings.shares_table:
            inputs = outputs = tokens
        used = np.concatenate([outputs, negatives.reshape(-1)])
        if settings.shares_table:
            words, numbered = self._number(used)
            at, of = numbered[: len(tokens)], numbered[len(tokens) :]
            return batch.renumbered(at, at, of.reshape(negatives.shape)), (words,)
        of_vectors, at = self._number(inputs)
        of_contexts, numbered = self._number(used)
        targets, of = numbered[: len(outputs)], numbered[len(outputs) :]
        if settings.architecture == "edges":
            at, targets = np.repeat(at, 2), np.repeat(targets, 2)
        return batch.renumbered(at, targets, of.reshape(negatives.shape)), (of_vectors, of_contexts)

    def _number(self, words: Int32s) -> tuple[Int64s, Int32s]:
        """Return the distinct words, ascending, and each word's position among them."""
        words = readable(words)
        distinct = np.empty(len(words), np.int32)
        distinct = np.sort(distinct[: collect(words, self._cells, distinct)])
        numbers = np.empty(len(words), np.int32)
        number_words(words, distinct, self._cells, numbers)
        return distinct.astype(np.int64), numbers
