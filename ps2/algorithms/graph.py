"""Graphs: random walks, and embeddings of vertices (PS2 paper, section 5.2.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps2.algorithms.public_names import exports

if TYPE_CHECKING:
    from ps2.algorithms.embeddings.estimator import LINE as LINE
    from ps2.algorithms.embeddings.estimator import DeepWalk as DeepWalk
    from ps2.algorithms.embeddings.estimator import Node2Vec as Node2Vec
    from ps2.algorithms.embeddings.estimator import RandomWalks as RandomWalks
    from ps2.algorithms.embeddings.models import DeepWalkModel as DeepWalkModel
    from ps2.algorithms.embeddings.models import LINEModel as LINEModel
    from ps2.algorithms.embeddings.models import Node2VecModel as Node2VecModel
else:
    __all__, __getattr__, __dir__ = exports(__name__)
