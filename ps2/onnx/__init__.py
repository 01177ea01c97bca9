"""ONNX: trained models as files that ONNX Runtime and others score (extra ``onnx``).

``export`` loads on first use: it needs onnx, which PS2 does not install by itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ps2.errors import ConfigError

if TYPE_CHECKING:
    from ps2.onnx.exporting import export

__all__ = ["export"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'ps2.onnx' has no attribute {name!r}")
    try:
        return getattr(import_module("ps2.onnx.exporting"), name)
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise ConfigError(f"ps2.onnx.{name} needs onnx: pip install 'ps2-spark[onnx]'") from error


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
