"""ONNX: trained models as files that ONNX Runtime and others score (extra ``onnx``).

``export`` loads on first use: it needs onnx, which PS2 does not install by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps2.errors import ConfigError
from ps2.lazy_names import lazy_names

if TYPE_CHECKING:
    from ps2.onnx.exporting import export

_HOME = {"export": "ps2.onnx.exporting"}

__all__ = ["export"]

_load, __dir__ = lazy_names(__name__, _HOME)


def __getattr__(name: str) -> object:
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise ConfigError(f"ps2.onnx.{name} needs onnx: pip install 'ps2-spark[onnx]'") from error
