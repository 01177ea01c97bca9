"""PyTorch on servers: embeddings, dense parameters, and an estimator for modules of your own (extra ``torch``).

Names load on first use: they need torch, which PS2 does not install by itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps2.torch.bags import Bags
    from ps2.torch.embedding import RemoteEmbedding
    from ps2.torch.estimator import TorchEstimator, TorchModel
    from ps2.torch.optimizer import RemoteOptimizer

_HOME = {
    "Bags": "ps2.torch.bags",
    "RemoteEmbedding": "ps2.torch.embedding",
    "RemoteOptimizer": "ps2.torch.optimizer",
    "TorchEstimator": "ps2.torch.estimator",
    "TorchModel": "ps2.torch.estimator",
}

__all__ = ["Bags", "RemoteEmbedding", "RemoteOptimizer", "TorchEstimator", "TorchModel"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'ps2.torch' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"ps2.torch.{name} needs PyTorch: pip install 'ps2-spark[torch]'", name="torch") from error


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
