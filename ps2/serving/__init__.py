"""Scores rows with exported models, without Spark and servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps2.lazy_names import lazy_names

if TYPE_CHECKING:
    from ps2.serving.loading import compact
    from ps2.serving.scorer import Scorer

_HOME = {"Scorer": "ps2.serving.scorer", "compact": "ps2.serving.loading"}

__all__ = ["Scorer", "compact"]

if not TYPE_CHECKING:  # type checkers look for unknown names themselves
    __getattr__, __dir__ = lazy_names(__name__, _HOME)
