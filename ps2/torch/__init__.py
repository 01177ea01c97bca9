"""PyTorch on servers: embeddings, dense parameters, and an estimator for your own modules (extra ``torch``).

The classes are imported at their first use, because they need torch, which is not a dependency of PS2.
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

_MODULES = {
    "Bags": "ps2.torch.columns",
    "RemoteEmbedding": "ps2.torch.embedding",
    "RemoteOptimizer": "ps2.torch.optimizer",
    "TorchEstimator": "ps2.torch.estimator",
    "TorchModel": "ps2.torch.estimator",
}

__all__ = ["Bags", "RemoteEmbedding", "RemoteOptimizer", "TorchEstimator", "TorchModel"]

__getattr__, __dir__ = lazy_names(__name__, _MODULES, "PyTorch", partial(ImportError, name="torch"))
