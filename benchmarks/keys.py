"""Random keys, new for each call, like those of minibatches of sparse rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

FEATURES = 60_000_000
KEYS = 1_000_000
# In the sparse vector.
HELD = 4_000_000
SEED = 2019


class Keys(NamedTuple):
    """One call's keys, as many values, and an array to receive as many."""

    keys: np.ndarray
    values: np.ndarray
    out: np.ndarray


class KeySource:
    """Draws random keys."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(SEED)
        self._values = self._random.random(KEYS, np.float32)
        self._out = np.ones(KEYS, np.float32)

    def sorted(self) -> Keys:
        """Draw a million features and remove duplicates, which leaves somewhat fewer."""
        return self._with_values(_unique(self._random.integers(0, FEATURES, KEYS)))

    def unsorted(self) -> Keys:
        return self._with_values(self._random.permutation(self.sorted().keys))

    def among(self, held: np.ndarray) -> Keys:
        """Draw a million of the keys that the vector holds; sorted."""
        return self._with_values(np.sort(self._random.choice(held, KEYS, replace=False)))

    def held(self) -> np.ndarray:
        """Draw the keys that the sparse vector holds, somewhat fewer than ``HELD``; sorted."""
        return _unique(self._random.integers(0, FEATURES, HELD))

    def _with_values(self, keys: np.ndarray) -> Keys:
        return Keys(keys, self._values[: keys.size], self._out[: keys.size])


def count(keys: Keys) -> int:
    """Return the number of keys."""
    return keys.keys.size


def _unique(keys: np.ndarray) -> np.ndarray:
    """Return the same as ``np.unique``, which takes ten times as long here."""
    keys.sort()
    return keys[np.append(True, keys[1:] != keys[:-1])]
