"""DART: Vinayak and Gilad-Bachrach, "DART: Dropouts meet multiple additive regression trees" (2015). Pure.

Each round drops some earlier rounds, and its trees grow by the gradients without the trees of these. If k rounds are
dropped, the new trees are then multiplied by 1 / (k + 1), and the dropped ones by k / (k + 1), as in LightGBM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ps2.algorithms.trees.boosting_settings import SamplingSettings
from ps2.algorithms.trees.tree import Tree
from ps2.array_types import Float64s, Int64s

# The last number of the keys of random numbers, which other uses of the seed do not have.
DROPOUT_KEY = 64


class Drop(NamedTuple):
    """The earlier rounds that a round drops, ascending, and the scale of their leaf values until then."""

    rounds: Int64s
    scales: Float64s

    @property
    def new_scale(self) -> float:
        """The factor of the new trees' leaf values."""
        return 1.0 / (len(self.rounds) + 1)


class Dropout:
    """The rounds that each round drops, and the scales of trees: a function of settings and seed.

    Driver and workers, restarted ones too, compute the same without messages.
    """

    def __init__(self, settings: SamplingSettings, seed: int) -> None:
        self._settings, self._seed = settings, seed
        self._drops: list[Drop] = []
        # By round: the scale of leaf values since their tree has grown, and the weight, which has ``new_scale``, too.
        self._scales, self._weights = np.empty(0), np.empty(0)

    def drop(self, round_number: int) -> Drop:
        """Return what a round drops."""
        while len(self._drops) <= round_number:
            rounds = self._sample(len(self._drops))
            drop = Drop(rounds, self._scales[rounds])
            for factors in (self._scales, self._weights):
                factors[rounds] *= len(rounds) / (len(rounds) + 1)
            self._scales, self._weights = np.append(self._scales, 1.0), np.append(self._weights, drop.new_scale)
            self._drops.append(drop)
        return self._drops[round_number]

    def _sample(self, count: int) -> Int64s:
        """Sample the rounds to drop from the first ``count`` ones; of more than ``maxDrop``, this many."""
        settings = self._settings
        words = np.random.SeedSequence([self._seed, count, 0, DROPOUT_KEY]).generate_state(count + 1, np.uint64)
        skip_unit, *_ = units = (words >> np.uint64(11)) * 2.0**-53
        if skip_unit < settings.skipDrop or not count:
            return np.empty(0, np.int64)
        weights = np.ones(count) if settings.uniformDrop else self._weights
        # The sum is exact: with that of NumPy, its last bit could depend on the processor.
        rates = settings.dropRate * (weights * (count / math.fsum(weights)))
        rounds = np.flatnonzero(units[1:] < rates)
        if settings.maxDrop:
            order = np.argsort(units[1:][rounds] / rates[rounds], kind="stable")
            rounds = np.sort(rounds[order[: settings.maxDrop]])
        return rounds

    def scales_after(self, rounds: int) -> Float64s:
        """Return the scale of each round's leaf values after so many rounds, shape (rounds,)."""
        replayed = Dropout(self._settings, self._seed)
        if rounds:
            replayed.drop(rounds - 1)
        return replayed._scales


def scaled_trees(trees: Sequence[Tree], scales: Float64s, width: int) -> tuple[Tree, ...]:
    """Return trees with scaled leaf values; scales: one for each ``width`` trees."""
    return tuple(replace(tree, value=tree.value * scales[i // width]) for i, tree in enumerate(trees))
