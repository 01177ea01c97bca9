"""No split is lost when a feature's splits are rejected at once."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.trees.scan_kernels import CategoryRules, Feature, Rules, may_gain_full, scan_full, score_of_sums
from ps2.algorithms.trees.search_kernels import scratch_of

NO_BOUND, BINS, H_UNIT, G_UNIT = np.array([-np.inf, np.inf]), 60, 2.0**-40, 2.0**-44


def histogram_of(rng, channels):
    """Return a histogram of one feature, a third of it empty bins, and its total, shape (3,)."""
    counts = rng.integers(0, 3, BINS)
    h = np.int64(counts * rng.uniform(0.01, 0.25, BINS) / H_UNIT)
    g = np.int64(counts * rng.normal(0.1 * rng.integers(3), 0.5, BINS) / G_UNIT)
    h[h > 0] >>= rng.integers(0, 40, np.count_nonzero(h)) * rng.integers(2)
    bins = np.column_stack([h, g, counts])
    bins[h == 0] = 0
    return bins[:, :channels].reshape(-1), bins.sum(axis=0)


@pytest.mark.parametrize("channels", [2, 3])
def test_splits_when_one_gains_then_feature_is_not_rejected(channels):
    rng, num_rejected, num_accepted = np.random.default_rng(channels), 0, 0
    scratch, feature = scratch_of(channels), Feature(0, 0, BINS, -1, 0)
    for _ in range(150):
        histogram, total = histogram_of(rng, channels)
        limits = rng.choice([0.0, 1.0]), 0.0, rng.choice([0.0, 0.5]), int(rng.integers(8)) if channels == 3 else 0
        rules = Rules(G_UNIT, H_UNIT, *limits, CategoryRules(0.0, 0.0, 1, 1, 1, 1))
        node_score = score_of_sums(total[0], total[1], NO_BOUND, rules)
        inputs = histogram, feature, channels, total
        best = scan_full(*inputs, NO_BOUND, rules, node_score, -np.inf)
        for min_gain in (best.gain * (1 - 1e-12), best.gain * (1 + 1e-6)):
            split = scan_full(*inputs, NO_BOUND, rules, node_score, min_gain)
            may_gain = may_gain_full(*inputs, rules, node_score, min_gain, scratch.prefixes)
            assert may_gain or split.last_position < 0
            num_accepted += split.last_position >= 0
            num_rejected += not may_gain
    assert num_accepted > 50
    assert num_rejected > 50
