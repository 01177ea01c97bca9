"""Scores rows with exported models, without Spark and servers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps2.serving.compaction import compact
    from ps2.serving.scorer import Scorer

_HOME = {"Scorer": "ps2.serving.scorer", "compact": "ps2.serving.compaction"}

__all__ = ["Scorer", "compact"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'ps2.serving' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
