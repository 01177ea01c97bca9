"""The area under the ROC curve; NumPy only, as an environment of PyTorch's runs it, too."""

from __future__ import annotations

from typing import Any

import numpy as np


def auc(labels: Any, scores: Any) -> float:
    """Return the area under the ROC curve; equal scores count half.

    Args:
        labels: above 0, or not.
        scores: of the same rows.
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    good = np.asarray(labels) > 0
    return float((ranks[good].sum() - good.sum() * (good.sum() + 1) / 2) / (good.sum() * (~good).sum()))
