"""Loads an export: verifies all bytes of its files, maps the files of the base, and merges deltas in memory.

Modules that score rows import neither pyspark nor ``ps2.client``.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
from fsspec.implementations.local import LocalFileSystem

from ps2.array_types import Float32s, Int64s
from ps2.errors import CheckpointCorruptError, SpillError, UsageError
from ps2.ops.guards import readable
from ps2.serving.key_table import PRESENT, UNKNOWN, KeyTable, are_in, key_table, merged_all, stacked, with_removed
from ps2.storage.arrays import read_npy_header
from ps2.storage.export_writing import Content, Export, write_export
from ps2.storage.exports import Description, ExportEntry, ExportManifest, KeyFiles, read_manifest
from ps2.storage.files import reported, resolve_url
from ps2.storage.manifest import SavedFile
from ps2.storage.shard_files import checked

# A thread that waits for the GIL asks for it after this time. Python's default, 5 ms, is enough to score 50 rows.
SWITCH_INTERVAL_S = 5e-4

_lock = threading.Lock()
_state = {"users": 0, "original_s": 0.0}


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Shorten the switch interval of the GIL for the whole process, until the last ``with`` statement has ended.

    A score releases the GIL for each kernel, and then waits until the loader releases it.
    """
    with _lock:
        _state["users"] += 1
        if _state["users"] == 1:
            _state["original_s"] = sys.getswitchinterval()
            sys.setswitchinterval(min(SWITCH_INTERVAL_S, _state["original_s"]))
    try:
        yield
    finally:
        with _lock:
            _state["users"] -= 1
            if not _state["users"]:
                sys.setswitchinterval(_state["original_s"])


@dataclass(frozen=True, eq=False)
class LoadedExport:
    """The arrays of an export. They do not change, so threads read them without a lock.

    Attributes:
        base: a table for each part of the base, on mapped files; keys ascend from table to table.
        changes: the tables of the deltas, in memory, newest first; most deltas are merged into one table.
        dense: the dense arrays of the newest export, by name.
    """

    manifest: ExportManifest
    base: tuple[KeyTable, ...]
    changes: tuple[KeyTable, ...]
    dense: Mapping[str, npt.NDArray[Any]]

    @property
    def description(self) -> Description:
        return self.manifest.description

    def look_up(self, keys: Int64s) -> tuple[Float32s, npt.NDArray[np.uint8]]:
        """Look up keys, int64 of shape (m,), any order, read-only and contiguous.

        Returns their values, float32 of shape (m, width), 0 for keys that are not PRESENT; and the state of each key:
        UNKNOWN, PRESENT or REMOVED, uint8 of shape (m,).
        """
        values = np.zeros((len(keys), self.description.width), np.float32)
        states = np.full(len(keys), UNKNOWN, np.uint8)
        for table in (*self.changes, *self.base):
            table.look_up(keys, states, values)
        return values, states


def load(url: str, manifest: ExportManifest, previous: LoadedExport | None, cache: str | None) -> LoadedExport:
    """Read the files that a manifest names, except those that ``previous`` already has.

    Args:
        previous: a loaded export of the same folder; None: read all files.
        cache: local folder for unnamed copies of remote files; None: the system's temporary folder.

    Raises:
        CheckpointMissingError, CheckpointCorruptError: a file is missing, or does not match the manifest.
        RecoveryError: the file system fails.
        SpillError: a remote file cannot be copied.
    """
    files = _Files(url, cache)
    width = manifest.description.width
    base, *deltas = manifest.entries
    old = previous.manifest.entries if previous is not None and previous.description.width == width else ()
    tables: tuple[KeyTable, ...]
    if previous is not None and old and old[0].folder == base.folder:
        tables = previous.base
    else:
        parts = [files.keyed(base.folder, part, width) for part in base.key_files]
        tables, old = tuple(key_table(*part, where=base.folder) for part in parts if len(part[0])), ()
    loaded_deltas = [entry.folder for entry in old[1:]]
    is_extension = loaded_deltas == [entry.folder for entry in deltas[: len(loaded_deltas)]]
    changes = previous.changes if previous is not None and old and is_extension else ()
    new_tables = [files.delta(delta, width) for delta in deltas[len(loaded_deltas) if is_extension else 0 :]]
    changes = stacked(changes, merged_all(new_tables))
    newest = manifest.newest
    dense = {name: files.array(newest.folder, file, copied=True) for name, file in newest.dense.items()}
    return LoadedExport(manifest, tables, changes, dense)


class _Files:
    """Reads the files of an export as arrays."""

    def __init__(self, url: str, cache: str | None) -> None:
        self._fs, self._root = resolve_url(url, "path")
        self._cache = cache

    def keyed(self, folder: str, part: KeyFiles, width: int) -> tuple[Int64s, Float32s]:
        """Return the keys of a part, int64 of shape (n,), and their values, float32 of shape (n, width)."""
        keys, values = self.array(folder, part.keys), self.array(folder, part.values)
        if keys.dtype != np.int64 or keys.shape != (part.count,):
            raise _wrong_array(folder, part.keys, f"int64 of shape ({part.count},)", keys)
        if values.dtype != np.float32 or values.shape != (part.count, width):
            raise _wrong_array(folder, part.values, f"float32 of shape {(part.count, width)}", values)
        return keys, values

    def delta(self, delta: ExportEntry, width: int) -> KeyTable | None:
        """Return the changed and removed keys of a delta as one table; None if the delta is empty."""
        parts = [self.keyed(delta.folder, part, width) for part in delta.key_files]
        removed = np.empty(0, np.int64) if delta.removed is None else self.array(delta.folder, delta.removed)
        if removed.dtype != np.int64 or removed.ndim != 1:
            raise _wrong_array(delta.folder, delta.removed, "int64 of one dimension", removed)
        if len(parts) == 1:
            keys, values = parts[0]
        else:
            keys = np.concatenate([np.empty(0, np.int64), *(keys for keys, _ in parts)])
            values = np.concatenate([np.empty((0, width), np.float32), *(values for _, values in parts)])
        return with_removed(keys, values, removed, delta.folder)

    def array(self, folder: str, file: SavedFile, copied: bool = False) -> npt.NDArray[Any]:
        """Verify all bytes of a file; return its array, mapped or copied to memory."""
        root = f"{self._root}/{folder}"
        path = f"{root}/{file.name}"
        if isinstance(self._fs, LocalFileSystem):
            # The file is opened before its verification, because a newer export may remove its name during that.
            with reported(path, "reading"), open(path, "rb") as local, checked(self._fs, root, file):
                return _mapped(local, path, copied)
        try:
            with tempfile.TemporaryFile(dir=self._cache) as local:
                with checked(self._fs, root, file) as remote:
                    while data := remote.read():
                        local.write(data)
                local.seek(0)
                return _mapped(local, path, copied)
        except OSError as error:
            folder = self._cache or tempfile.gettempdir()
            raise SpillError(f"{folder}: cannot store a copy of {path}: {error}") from error


def _mapped(file: Any, path: str, copied: bool) -> npt.NDArray[Any]:
    header = read_npy_header(path, file)
    offset, size = file.tell(), os.fstat(file.fileno()).st_size
    expected = offset + header.dtype.itemsize * int(np.prod(header.shape, dtype=np.int64))
    if size != expected:
        raise CheckpointCorruptError(f"{path}: expected {expected:,} bytes for shape {header.shape}, got {size:,}")
    if 0 in header.shape:
        return np.empty(header.shape, header.dtype)
    array = np.memmap(file, header.dtype, "r", offset, header.shape)
    return np.array(array) if copied else np.asarray(array)


def _wrong_array(folder: str, file: SavedFile | None, expected: str, array: npt.NDArray[Any]) -> CheckpointCorruptError:
    name = file.name if file else "removed"
    return CheckpointCorruptError(f"{folder}/{name}: expected {expected}, got {array.dtype} of shape {array.shape}")


# Arguments: config, n rows (KeyRows), embeddings (float32 of shape (keys of all rows, width)), dense arrays by name.
# Result: float64 of shape (n,).
Score = Callable[[Any, Any, Any, Any], Any]

# The kind of an export without a model: a table of vectors, which has no scores.
TABLE = "table"
_SCORING_MODULES = {
    "logistic": "ps2.algorithms.online.scoring",
    "fm": "ps2.algorithms.online.scoring",
    "deepfm": "ps2.algorithms.deep.scoring",
    "wide-deep": "ps2.algorithms.deep.scoring",
    "two-tower": "ps2.algorithms.deep.scoring",
}


def score_of(kind: str) -> Score | None:
    """Return the function that scores rows with models of a kind; None for a table. UsageError: the kind is unknown."""
    if kind == TABLE:
        return None
    if kind not in _SCORING_MODULES:
        raise UsageError(f"expected an export of kind {', '.join([TABLE, *_SCORING_MODULES])}, got {kind!r}")
    scoring: Any = import_module(_SCORING_MODULES[kind])
    score: Score = scoring.score
    return score


def compact(path: str, cacheDir: str | None = None) -> Export:
    """Write a new base with the keys and values that the base and the deltas of a folder hold together.

    Scorers load it faster, and values that deltas have replaced take no more space. The next
    ``export(path, since="last")`` is a delta to the new base. No program may export to the folder during this call.

    Args:
        path: the folder of the export, or any fsspec URL of one.
        cacheDir: the ``cacheDir`` of ``Scorer``.

    Raises:
        CheckpointMissingError: there is no export at this path.
        CheckpointCorruptError: a file does not match the manifest.
        RecoveryError: the file system fails, or another program has exported; the folder stays as it was.
    """
    manifest = read_manifest(path)
    loaded = load(path, manifest, None, cacheDir)
    keys = np.concatenate([np.empty(0, np.int64), *(table.keys for table in loaded.base)])
    if (changes := merged_all(loaded.changes[::-1])) is not None:
        present = changes.keys[changes.removed == 0] if changes.removed.size else changes.keys
        unchanged = keys[~are_in(changes.keys, keys)]
        keys = np.sort(np.concatenate([unchanged, present]), kind="stable")  # a merge of two ascending runs

    def read(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        values, states = loaded.look_up(readable(keys))
        assert (states == PRESENT).all()
        return values

    dense: dict[str, npt.NDArray[Any]] = dict(loaded.dense)
    content = Content(keys, read, dense=dense, source=manifest.newest.source)
    return write_export(path, manifest.description, content, replaces=manifest)
