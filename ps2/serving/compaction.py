"""``compact``: replaces the base and the deltas of an export by one base, without servers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.ops.guards import readable
from ps2.serving.key_table import PRESENT, found_in, merged_all
from ps2.serving.loading import load
from ps2.storage.export_writing import Content, Export, write_export
from ps2.storage.exports import read_manifest


def compact(path: str, cacheDir: str | None = None) -> Export:
    """Write a new base with the keys and values that the base and the deltas of a folder hold together.

    Scorers load it faster, and values that deltas have replaced take no more space. The next
    ``export(path, since="last")`` is a delta to the new base. No program may export to the folder meanwhile.

    Args:
        path: the folder of the export, or any fsspec URL of one.
        cacheDir: the ``cacheDir`` of ``Scorer``.

    Raises:
        CheckpointMissingError: there is no export at this path.
        CheckpointCorruptError: a file does not match the manifest.
        RecoveryError: the file system fails, or another program has exported meanwhile; the folder stays as it was.
    """
    manifest = read_manifest(path)
    loaded = load(path, manifest, None, cacheDir)
    keys = np.concatenate([np.empty(0, np.int64), *(table.keys for table in loaded.base)])
    if (changes := merged_all(loaded.changes[::-1])) is not None:
        present = changes.keys[changes.gone == 0] if changes.gone.size else changes.keys
        unchanged = keys[~found_in(changes.keys, keys)]
        keys = np.sort(np.concatenate([unchanged, present]), kind="stable")  # a merge of two ascending runs

    def read(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        values, states = loaded.look_up(readable(keys))
        assert (states == PRESENT).all()
        return values

    dense: dict[str, npt.NDArray[Any]] = dict(loaded.dense)
    content = Content(keys, read, dense=dense, source=manifest.newest.source)
    return write_export(path, manifest.description, content, replaces=manifest)
