"""ONNX: trained models as files for ONNX Runtime and other scorers (extra ``onnx``).

``export`` loads on first use: it needs the package onnx, which is an extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps2.lazy_names import lazy_names

if TYPE_CHECKING:
    from ps2.onnx.exporting import export

_MODULES = {"export": "ps2.onnx.exporting"}

__all__ = ["export"]

__getattr__, __dir__ = lazy_names(__name__, _MODULES, "onnx")
