"""Batches of sentences with all that is drawn for them, and what trains on one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings import drawing_kernels, training_kernels
from ps2.algorithms.embeddings.corpus import Batch
from ps2.algorithms.embeddings.problem import Recipe
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s
from ps2.ops.parallel import over_blocks

Int32s = npt.NDArray[np.int32]
Float32s = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Draws:
    """What is drawn by, for every batch of a training.

    Attributes:
        recipe: how to train.
        chances: float64, shape (vocabulary,): of each word to be a negative.
        staying: float32: of each word to stay in a sentence; None: all do.
        whole, others: of the alias table of ``chances``.
    """

    recipe: Recipe
    chances: Float64s
    staying: Float32s | None
    whole: npt.NDArray[np.uint32]
    others: Int32s

    @staticmethod
    def of(recipe: Recipe, frequencies: Int64s) -> Draws:
        """Args:
        frequencies: int64, shape (vocabulary,): how often each word comes, or each is an edge's target.
        """
        shares = frequencies / max(frequencies.sum(), 1)
        chances = np.where(frequencies > 0, np.power(np.maximum(shares, 1e-300), recipe.exponent), 0.0)
        # Nothing comes: then all are as likely.
        chances = chances / chances.sum() if chances.sum() > 0 else np.full(len(shares), 1 / len(shares))
        staying = None
        if recipe.sample:
            ratios = recipe.sample / np.maximum(shares, 1e-300)
            staying = np.minimum(np.sqrt(ratios) + ratios, 1.0).astype(np.float32)
        whole, others = np.empty(len(chances), np.uint32), np.empty(len(chances), np.int32)
        drawing_kernels.fill_aliases(chances * len(chances), whole, others)
        return Draws(recipe, chances, staying, whole, others)

    def kept(self, batch: Batch, key: np.uint64) -> Batch:
        """Leave tokens out of a batch, as the recipe says: always the same by one key."""
        tokens, offsets = readable(batch[0].astype(np.int32, copy=False)), readable(batch[1])
        if self.staying is None or self.recipe.architecture == "edges":
            return tokens, offsets
        kept, ends = np.empty(len(tokens), np.int32), np.empty(len(offsets), np.int64)
        count = drawing_kernels.keep_some(key, tokens, offsets, self.staying, kept, ends)
        return readable(kept[:count]), readable(ends)

    def draw(self, batch: Batch, key: np.uint64, threads: int = 1) -> Drawn:
        """Draw for a batch of which nothing is to be left out: always the same by one key."""
        recipe, tokens, offsets = self.recipe, readable(batch[0]), readable(batch[1])
        windows = np.empty(0 if recipe.architecture == "edges" else len(tokens), np.int32)
        drawing_kernels.draw_windows(key, recipe.window, windows)
        shape = len(tokens) // recipe.units, recipe.drawn
        negatives = drawing_kernels.draw_negatives(shape, key, self.whole, self.others, threads)
        return Drawn(recipe, tokens, tokens, offsets, readable(windows), readable(negatives))


@dataclass(frozen=True, eq=False)
class Drawn:
    """A batch of sentences, with windows and negatives.

    Attributes:
        recipe: how to train.
        tokens, offsets: as ``corpus.Batch`` has them; tokens are rows of the vectors.
        targets: the same words as rows of the contexts.
        windows: int32: of each token, how many on either side are its contexts; of edges none.
        negatives: int32, shape (tokens or edges, ``recipe.drawn``).
    """

    recipe: Recipe
    tokens: Int32s
    targets: Int32s
    offsets: Int64s
    windows: Int32s
    negatives: Int32s

    def train(self, vectors: Float32s, contexts: Float32s, rate: float, threads: int = 1) -> Float64s:
        """Train tables on the batch, in place; several threads at once without locks.

        Args:
            vectors, contexts: float32, C-contiguous, a row for each number that there is; of edges they may be one.
            rate: the step size.

        Returns:
            float64, shape (training_kernels.TOLD,): what ``training_kernels`` tells.
        """
        recipe, step = self.recipe, np.float32(rate)
        rest: tuple[Any, ...] = (
            self.tokens,
            self.targets,
            self.windows,
            self.negatives,
            vectors,
            contexts,
            step,
            recipe.window,
        )
        kernel: Any = training_kernels.train_cbow
        if recipe.architecture == "skipgram":
            kernel, rest = training_kernels.train_skipgram, (*rest, recipe.sharing)
        elif recipe.architecture == "edges":
            kernel = training_kernels.train_edges
            rest = (self.tokens, self.targets, self.negatives, vectors, contexts, step, recipe.shares_table)
        bounds = readable(self.offsets[:-1]), readable(self.offsets[1:])
        if threads == 1:
            told: Float64s = kernel(*bounds, *rest)
            return told
        parts = over_blocks(kernel, bounds, *rest, cost=self._cost, most=threads)
        return np.sum(parts, axis=0)

    def renumbered(self, tokens: Int32s, targets: Int32s, negatives: Int32s) -> Drawn:
        """Return the same batch with words in other rows of the tables."""
        return replace(self, tokens=readable(tokens), targets=readable(targets), negatives=readable(negatives))

    def pieces(self, groups: int) -> Iterator[Drawn]:
        """Yield the batch in pieces of whole sentences, in which so many words or edges are predicted at most."""
        offsets, units = self.offsets, self.recipe.units
        if len(self.tokens) <= groups * units:
            yield self
            return
        first = 0
        while first < len(offsets) - 1:
            last = int(np.searchsorted(offsets, offsets[first] + groups * units, side="right")) - 1
            last = max(last, first + 1)
            begin, end = int(offsets[first]), int(offsets[last])
            yield replace(
                self,
                tokens=self.tokens[begin:end],
                targets=self.targets[begin:end],
                offsets=readable(offsets[first : last + 1] - begin),
                windows=self.windows[begin:end],
                negatives=self.negatives[begin // units : end // units],
            )
            first = last

    @property
    def _cost(self) -> int:
        """Multiplications of a sentence, about."""
        recipe = self.recipe
        pairs = {"skipgram": recipe.window, "cbow": 2, "edges": 1}[recipe.architecture]
        groups = len(self.negatives) / max(len(self.offsets) - 1, 1)
        return int(3 * groups * pairs * (1 + recipe.negative) * recipe.size) + 1
