"""PyTorch on servers: embeddings, dense parameters, and an estimator for modules of your own (extra ``torch``).

Names load on first use: they need torch, which PS2 does not install by itself.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ps2.lazy_names import lazy_names

if TYPE_CHECKING:
    from ps2.torch.columns import Bags
    from ps2.torch.embedding import RemoteEmbedding
    from ps2.torch.estimator import TorchEstimator, TorchModel
    from ps2.torch.optimizer import RemoteOptimizer

_HOME = {
    "Bags": "ps2.torch.columns",
    "RemoteEmbedding": "ps2.torch.embedding",
    "RemoteOptimizer": "ps2.torch.optimizer",
    "TorchEstimator": "ps2.torch.estimator",
    "TorchModel": "ps2.torch.estimator",
}

__all__ = ["Bags", "RemoteEmbedding", "RemoteOptimizer", "TorchEstimator", "TorchModel"]

__getattr__, __dir__ = lazy_names(__name__, _HOME, "PyTorch", partial(ImportError, name="torch"))
