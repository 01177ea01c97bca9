"""SplitMix64: a 64-bit hash; the hashes of successive states are random numbers.

G. Steele, D. Lea and C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, figure 15.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

Bits = TypeVar("Bits", bound=Any)

# 2**64 divided by the golden ratio: the difference between successive states.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)


def scrambled(state: Bits) -> Bits:
    """Return SplitMix64's output for a state: a uint64 scalar or array."""
    mixed: Any = state
    mixed = (mixed ^ (mixed >> np.uint64(30))) * MULTIPLIER_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * MULTIPLIER_2
    output: Bits = mixed ^ (mixed >> np.uint64(31))
    return output
