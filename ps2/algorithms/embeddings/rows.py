"""Training on rows that are pulled for some sentences at a time, and changed back by what was learned of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.corpus import BATCH_TOKENS
from ps2.algorithms.embeddings.drawing import Drawn
from ps2.algorithms.embeddings.drawing_kernels import collect, number_words
from ps2.algorithms.embeddings.part import Part
from ps2.algorithms.embeddings.problem import Recipe
from ps2.algorithms.embeddings.tables import Table
from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s

Int32s = npt.NDArray[np.int32]
Float32s = npt.NDArray[np.float32]

# What the rows of a piece take here, in one table.
MOST_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class Asked:
    """A piece of a batch whose rows are on their way.

    Attributes:
        drawn: with the numbers of rows in the place of words.
        words: of the rows, of each table that there is.
        rows: what they will be.
    """

    drawn: Drawn
    words: tuple[Int64s, ...]
    rows: tuple[Any, ...]


def train_rows(part: Part) -> None:
    """Train all clocks: while one piece is trained on, the rows of the next one come."""
    tables = [table for table in (part.fleet.vectors, part.fleet.contexts) if isinstance(table, Table)]
    numbers = Numbers(part.recipe)
    for clock in part.clocks():
        before = None
        for piece in _pieces(part, clock):
            asked = _ask(part, numbers, tables, piece)
            if before is not None:
                _train(part, tables, before)
            before = asked
        if before is not None:
            _train(part, tables, before)


def _pieces(part: Part, clock: int) -> Iterator[Drawn]:
    for drawn in part.batches(clock):
        yield from drawn.pieces(piece_groups(part.recipe))


def piece_groups(recipe: Recipe) -> int:
    """Return how many words, or edges, are predicted of in a piece at most, so that its rows fit."""
    return max(1, MOST_BYTES // (4 * recipe.size * (1 + recipe.negative)))


def batch_tokens(recipe: Recipe) -> int:
    """Return for how many tokens rows are pulled at once."""
    return min(BATCH_TOKENS, piece_groups(recipe) * recipe.units)


def _ask(part: Part, numbers: Numbers, tables: list[Table], drawn: Drawn) -> Asked:
    drawn, words = numbers.of(drawn)
    rows = tuple(part.ask(table, some) for table, some in zip(tables, words, strict=True))
    return Asked(drawn, words, rows)


def _train(part: Part, tables: list[Table], asked: Asked) -> None:
    rows: list[Float32s] = [
        table.shown(words, pulled.result())
        for table, words, pulled in zip(tables, asked.words, asked.rows, strict=True)
    ]
    before = [some.copy() for some in rows]
    tokens = len(asked.drawn.tokens)
    part.tell(asked.drawn.train(rows[0], rows[-1], part.rate, part.threads))
    changes = [new - old for new, old in zip(rows, before, strict=True)]
    part.damp(changes, rows, tokens, asked.words)
    for table, words, changed in zip(tables, asked.words, changes, strict=True):
        table.add(words, changed)
        part.tell(np.zeros(0), 2 * changed.nbytes)


class Numbers:
    """Numbers the words of a piece: rows of the tables that are pulled for it."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._cells = np.full(recipe.vocabulary, -1, np.int32)

    def of(self, drawn: Drawn) -> tuple[Drawn, tuple[Int64s, ...]]:
        """Return a piece by numbers of rows, and their words in order: of the vectors, and of contexts if there are."""
        recipe, tokens, negatives = self._recipe, drawn.tokens, drawn.negatives
        inputs, outputs = tokens, tokens
        if recipe.architecture == "edges":
            inputs, outputs = tokens[::2], tokens[1::2]
        if recipe.shares_table:
            inputs = outputs = tokens
        used = np.concatenate([outputs, negatives.reshape(-1)])
        if recipe.shares_table:
            words, numbered = self._number(used)
            at, of = numbered[: len(tokens)], numbered[len(tokens) :]
            return drawn.renumbered(at, at, of.reshape(negatives.shape)), (words,)
        of_vectors, at = self._number(inputs)
        of_contexts, numbered = self._number(used)
        targets, of = numbered[: len(outputs)], numbered[len(outputs) :]
        if recipe.architecture == "edges":
            at, targets = np.repeat(at, 2), np.repeat(targets, 2)
        return drawn.renumbered(at, targets, of.reshape(negatives.shape)), (of_vectors, of_contexts)

    def _number(self, words: Int32s) -> tuple[Int64s, Int32s]:
        """Return the distinct ones in order, and of each word which it is."""
        words = readable(words)
        distinct = np.empty(len(words), np.int32)
        distinct = np.sort(distinct[: collect(words, self._cells, distinct)])
        numbers = np.empty(len(words), np.int32)
        number_words(words, distinct, self._cells, numbers)
        return distinct.astype(np.int64), numbers
