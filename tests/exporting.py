"""Exports of plain arrays, for tests."""

from __future__ import annotations

import numpy as np

from ps2.storage.export_writing import Content, Export, find_delta_base, write_export
from ps2.storage.exports import Description

WIDTH = 3


def values_of(keys, shift=0.0):
    """Return values that tell their key: float32 of shape (n, WIDTH)."""
    return (np.asarray(keys)[:, None] % 1000 + np.arange(WIDTH) / 10 + shift).astype(np.float32)


def export(path, keys, shift=0.0, removed=(), since=None, kind="table", dense=None, **description) -> Export:
    """Export some keys with their ``values_of``; with ``since`` as a delta."""
    content = Content(
        np.array(keys, np.int64), lambda some: values_of(some, shift), np.array(removed, np.int64), dense or {}
    )
    url = str(path)
    after = None if since is None else find_delta_base(url, since)
    return write_export(url, Description(kind, WIDTH, **description), content, after)
