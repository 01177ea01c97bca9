"""Ranking: boosted trees that order the rows of a group, such as the results of a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps2.algorithms.public_names import exports

if TYPE_CHECKING:
    from ps2.algorithms.trees.estimator import GBTRanker as GBTRanker
    from ps2.algorithms.trees.models import GBTRankerModel as GBTRankerModel
else:
    __all__, __getattr__, __dir__ = exports(__name__)
