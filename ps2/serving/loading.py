"""Loads an export: verifies the checksums of its files, maps the files of the base, and merges deltas in memory.

The modules that score rows import neither pyspark nor ``ps2.client``.
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
from ps2.serving.key_table import PRESENT, UNKNOWN, KeyTable, add_newest, delta_table, is_key, key_table, merge_all
from ps2.storage.arrays import read_npy_header
from ps2.storage.export_writing import Content, Export, write_export
from ps2.storage.exports import Description, ExportEntry, ExportManifest, KeyFiles, read_manifest
from ps2.storage.files import recovery_errors, resolve_url
from ps2.storage.manifest import SavedFile
from ps2.storage.shard_files import checked

# Python's switch interval during a load: a waiting thread requests the GIL after this time. In the default interval, 5
# ms, 50 rows can be scored.
SWITCH_INTERVAL_S = 5e-4

_lock = threading.Lock()
_switch_interval = {"users": 0, "original_s": 0.0}


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Shorten the GIL's switch interval in this process while at least one ``with`` block is active.

    A thread that scores rows releases the GIL for each kernel, and then waits until the loading thread releases it.
    """
    with _lock:
        _switch_interval["users"] += 1
        if _switch_interval["users"] == 1:
            _switch_interval["original_s"] = sys.getswitchinterval()
            sys.setswitchinterval(min(SWITCH_INTERVAL_S, _switch_interval["original_s"]))
    try:
        yield
    finally:
        with _lock:
            _switch_interval["users"] -= 1
            if not _switch_interval["users"]:
                sys.setswitchinterval(_switch_interval["original_s"])


@dataclass(frozen=True, eq=False)
class LoadedExport:
    """The arrays of an export. They do not change, so threads read them without a lock.

    Attributes:
        base: a table for each pair of files of the base, memory-mapped; keys ascend from table to table.
        changes: the tables of the deltas, in memory, from new to old; most deltas are merged into one table.
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
        """Look up keys, int64 of shape (m,), in any order; the array must be read-only and contiguous.

        Returns the values, float32 of shape (m, width), 0 for keys that are not PRESENT; and the keys' states, uint8 of
        shape (m,): UNKNOWN, PRESENT or REMOVED.
        """
        values = np.zeros((len(keys), self.description.width), np.float32)
        states = np.full(len(keys), UNKNOWN, np.uint8)
        for table in (*self.changes, *self.base):
            table.look_up(keys, states, values)
        return values, states


def load(url: str, manifest: ExportManifest, previous: LoadedExport | None, cache: str | None) -> LoadedExport:
    """Read the files in a manifest, except those that ``previous`` has already read.

    Args:
        previous: a loaded export of the same folder; None: read all files.
        cache: a local folder for temporary copies of remote files; None: the system's temporary folder.

    Raises:
        CheckpointMissingError, CheckpointCorruptError: a file is missing, or differs from the manifest.
        RecoveryError: the file system fails.
        SpillError: a remote file cannot be copied.
    """
    files = _Files(url, cache)
    width = manifest.description.width
    base, *deltas = manifest.entries
    old_entries = previous.manifest.entries if previous is not None and previous.description.width == width else ()
    tables: tuple[KeyTable, ...]
    if previous is not None and old_entries and old_entries[0].folder == base.folder:
        tables = previous.base
    else:
        pairs = [files.keys_and_values(base.folder, key_files, width) for key_files in base.key_files]
        tables, old_entries = tuple(key_table(*pair, source=base.folder) for pair in pairs if len(pair[0])), ()
    loaded_deltas = [entry.folder for entry in old_entries[1:]]
    is_extension = loaded_deltas == [entry.folder for entry in deltas[: len(loaded_deltas)]]
    changes = previous.changes if previous is not None and old_entries and is_extension else ()
    new_tables = [files.delta(delta, width) for delta in deltas[len(loaded_deltas) if is_extension else 0 :]]
    changes = add_newest(changes, merge_all(new_tables))
    newest = manifest.newest
    dense = {name: files.array(newest.folder, file, in_memory=True) for name, file in newest.dense.items()}
    return LoadedExport(manifest, tables, changes, dense)


class _Files:
    """Reads the files of an export as arrays."""

    def __init__(self, url: str, cache: str | None) -> None:
        self._fs, self._root = resolve_url(url, "path")
        self._cache = cache

    def keys_and_values(self, folder: str, files: KeyFiles, width: int) -> tuple[Int64s, Float32s]:
        """Return the arrays of two files: keys, int64 of shape (n,), and values, float32 of shape (n, width)."""
        keys, values = self.array(folder, files.keys), self.array(folder, files.values)
        if keys.dtype != np.int64 or keys.shape != (files.count,):
            raise _array_error(folder, files.keys, f"int64 of shape ({files.count},)", keys)
        if values.dtype != np.float32 or values.shape != (files.count, width):
            raise _array_error(folder, files.values, f"float32 of shape {(files.count, width)}", values)
        return keys, values

    def delta(self, delta: ExportEntry, width: int) -> KeyTable | None:
        """Return the changed and removed keys of a delta as one table; None if the delta is empty."""
        pairs = [self.keys_and_values(delta.folder, key_files, width) for key_files in delta.key_files]
        removed = np.empty(0, np.int64) if delta.removed is None else self.array(delta.folder, delta.removed)
        if removed.dtype != np.int64 or removed.ndim != 1:
            raise _array_error(delta.folder, delta.removed, "int64 of one dimension", removed)
        if len(pairs) == 1:
            keys, values = pairs[0]
        else:
            keys = np.concatenate([np.empty(0, np.int64), *(keys for keys, _ in pairs)])
            values = np.concatenate([np.empty((0, width), np.float32), *(values for _, values in pairs)])
        return delta_table(keys, values, removed, delta.folder)

    def array(self, folder: str, file: SavedFile, in_memory: bool = False) -> npt.NDArray[Any]:
        """Verify a file; return its array, copied into memory or memory-mapped."""
        root = f"{self._root}/{folder}"
        path = f"{root}/{file.name}"
        if isinstance(self._fs, LocalFileSystem):
            # Open the file before its verification, because a newer export may remove the file during that time.
            with recovery_errors(path, "reading"), open(path, "rb") as local, checked(self._fs, root, file):
                return _read_array(local, path, in_memory)
        try:
            with tempfile.TemporaryFile(dir=self._cache) as local:
                with checked(self._fs, root, file) as remote:
                    while data := remote.read():
                        local.write(data)
                local.seek(0)
                return _read_array(local, path, in_memory)
        except OSError as error:
            folder = self._cache or tempfile.gettempdir()
            raise SpillError(f"{folder}: cannot store a copy of {path}: {error}") from error


def _read_array(file: Any, path: str, in_memory: bool) -> npt.NDArray[Any]:
    header = read_npy_header(path, file)
    offset, size = file.tell(), os.fstat(file.fileno()).st_size
    expected = offset + header.dtype.itemsize * int(np.prod(header.shape, dtype=np.int64))
    if size != expected:
        raise CheckpointCorruptError(f"{path}: expected {expected:,} bytes for shape {header.shape}, got {size:,}")
    if 0 in header.shape:
        return np.empty(header.shape, header.dtype)
    array = np.memmap(file, header.dtype, "r", offset, header.shape)
    return np.array(array) if in_memory else np.asarray(array)


def _array_error(folder: str, file: SavedFile | None, expected: str, array: npt.NDArray[Any]) -> CheckpointCorruptError:
    name = file.name if file else "removed"
    return CheckpointCorruptError(f"{folder}/{name}: expected {expected}, got {array.dtype} of shape {array.shape}")


# A scoring function. Arguments: config, n rows (KeyRows), the values of the rows' keys (float32 of shape (keys of all
# rows, width)), dense arrays by name. Result: scores, float64 of shape (n,).
Score = Callable[[Any, Any, Any, Any], Any]

# The kinds of exports without scores: a table of vectors, and vectors of users and items, which ``recommend`` reads.
TABLE, FACTORS = "table", "factors"
_SCORING_MODULES = {
    "logistic": "ps2.algorithms.online.scoring",
    "fm": "ps2.algorithms.online.scoring",
    **dict.fromkeys(
        ("deepfm", "wide-deep", "dcn", "xdeepfm", "autoint", "din", "two-tower"), "ps2.algorithms.deep.scoring"
    ),
}


def scoring_function(kind: str) -> Score | None:
    """Return the scoring function of a kind of model; None if it has none. UsageError: the kind is unknown."""
    if kind in (TABLE, FACTORS):
        return None
    if kind not in _SCORING_MODULES:
        raise UsageError(f"expected an export of kind {', '.join([TABLE, FACTORS, *_SCORING_MODULES])}, got {kind!r}")
    scoring: Any = import_module(_SCORING_MODULES[kind])
    score: Score = scoring.score
    return score


def compact(path: str, cacheDir: str | None = None) -> Export:
    """Merge the base and the deltas of an export into a new base.

    Scorers load the new base faster, and values that deltas have replaced no longer take space. The next
    ``export(path, since="last")`` is a delta to the new base. No program may export to the folder during this call.

    Args:
        path: the folder of the export, as a path or fsspec URL.
        cacheDir: local folder for temporary copies of remote files. None: the system's temporary folder.

    Raises:
        CheckpointMissingError: there is no export at this path.
        CheckpointCorruptError: a file differs from the manifest.
        RecoveryError: the file system fails, or another program has exported; the folder is unchanged.
    """
    manifest = read_manifest(path)
    loaded = load(path, manifest, None, cacheDir)
    keys = np.concatenate([np.empty(0, np.int64), *(table.keys for table in loaded.base)])
    if (changes := merge_all(loaded.changes[::-1])) is not None:
        present = changes.keys[changes.removed == 0] if changes.removed.size else changes.keys
        unchanged = keys[~is_key(changes.keys, keys)]
        keys = np.sort(np.concatenate([unchanged, present]), kind="stable")  # merges two sorted runs

    def read(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        values, states = loaded.look_up(readable(keys))
        assert (states == PRESENT).all()
        return values

    dense: dict[str, npt.NDArray[Any]] = dict(loaded.dense)
    content = Content(keys, read, dense=dense, source=manifest.newest.source)
    return write_export(path, manifest.description, content, replaces=manifest)
