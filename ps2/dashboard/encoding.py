"""Snapshots as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any


def to_json(view: Any) -> bytes:
    """Return a view as JSON; numbers that JSON does not have are null."""
    return json.dumps(_plain(view), separators=(",", ":"), allow_nan=False).encode(errors="backslashreplace")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return value
