"""Writes exports: first the files, then the manifest that names them. One program at a time may write to a folder.

If two programs write to a folder, one of them fails. On local file systems a lock ensures this. On other file systems
both succeed if they replace the manifest at the same moment, and one export is lost.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Int64s
from ps2.errors import CheckpointMissingError, ConfigError, DivergedError, RecoveryError, ShapeError, UsageError
from ps2.storage.arrays import npy_bytes, npy_header
from ps2.storage.exports import (
    ARRAY_NAME,
    FOLDER,
    MANIFEST,
    Description,
    ExportEntry,
    ExportManifest,
    KeyFiles,
    find_manifest,
)
from ps2.storage.files import folder_lock, recovery_errors, remove_folder, resolve_url, write, write_json
from ps2.storage.manifest import SavedFile
from ps2.version import __version__

Values = npt.NDArray[np.float32]

# Maximum size of the values in one file, and in one read.
PART_BYTES = 1 << 30
READ_BYTES = 16 << 20
ONE_AT_A_TIME = "only one program at a time may export to a folder"


@dataclass(frozen=True)
class Export:
    """The result of ``export``; pass it as ``since`` to the next call.

    Attributes:
        url: the path or URL of the folder.
        number: the number of this export in the folder.
        keys: the number of keys with values in this export.
        removed: the number of keys that this export lists as removed.
        nbytes: the size of the files in bytes.
        full: True if this export contains all keys, False if it is a delta.
        reason: why all keys were written although the caller asked for a delta; None if there was no reason.
    """

    url: str
    number: int
    keys: int
    removed: int
    nbytes: int
    full: bool
    reason: str | None = None


@dataclass(frozen=True, eq=False)
class Content:
    """The content of an export.

    Attributes:
        keys: the keys with values, int64 of shape (n,), ascending.
        read: a function, called in another thread, from some of the keys, shape (m,), to their values, float32 of shape
            (m, width).
        removed: the keys that were removed since the previous export, int64 of shape (m,), ascending.
        dense: arrays without keys, by name; each export contains all of them.
        source: the origin of the keys (fleet, matrix, mark) as JSON data, for the next delta.
    """

    keys: Int64s
    read: Callable[[Int64s], Values]
    removed: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    dense: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)


def find_delta_base(url: str, since: Export | int | str) -> ExportManifest:
    """Return the entries that a new delta extends: the base and the deltas up to ``since``; "last": all deltas."""
    if isinstance(since, Export):
        if resolve_url(since.url)[1] != resolve_url(url)[1]:
            raise UsageError(f"since: expected an export to {url}, got one to {since.url}")
        since = since.number
    if since != "last" and (isinstance(since, (str, bool)) or not isinstance(since, int)):
        raise ConfigError(f"since: expected the result of export, its number, or 'last', got {since!r}")
    manifest = find_manifest(url)
    if manifest is None:
        raise CheckpointMissingError(f"{url}: expected an export that a delta can extend, found none; leave out since=")
    if isinstance(since, str):
        return manifest
    entries = tuple(entry for entry in manifest.entries if entry.number <= since)
    if not entries or entries[-1].number != since:
        numbers = ", ".join(str(entry.number) for entry in manifest.entries)
        raise UsageError(f"{url}: since: expected one of the exports {numbers}, got {since}")
    return ExportManifest(manifest.description, entries, manifest.version)


def write_export(
    url: str,
    description: Description,
    content: Content,
    after: ExportManifest | None = None,
    reason: str | None = None,
    *,
    replaces: ExportManifest | None = None,
) -> Export:
    """Write an export: a base, or a delta that extends ``after``.

    A reader sees the previous export or the new one, never a mixture. Files that only older exports need are removed.
    ``reason``: why this is a base although the caller asked for a delta. ``replaces``: the export from which the
    content was derived, and which the folder must still contain; None: no such condition. After an error the previous
    export stays, and the new files are removed.
    """
    fs, root = resolve_url(url, "path")
    previous = replaces or find_manifest(url)
    _check(description, content, after)
    number = previous.number + 1 if previous else 1
    folder = f"{'base' if after is None else 'delta'}-{number:08d}-{uuid.uuid4().hex[:12]}"
    with recovery_errors(root, "making the folder"):
        fs.makedirs(f"{root}/{folder}", exist_ok=True)
    try:
        entry = _write_entry(fs, f"{root}/{folder}", number, content, description.width)
        manifest = ExportManifest(description, (*(after.entries if after else ()), entry), __version__)
        with folder_lock(fs, root):
            current = find_manifest(url)
            if (current.number if current else 0) != number - 1:
                raise RecoveryError(f"{url}: another program has exported to this folder; {ONE_AT_A_TIME}")
            write_json(fs, f"{root}/{MANIFEST}", manifest.to_json())
    except BlockingIOError as error:
        _remove_folder(fs, f"{root}/{folder}")
        raise RecoveryError(f"{url}: another program exports to this folder now; {ONE_AT_A_TIME}") from error
    except BaseException:
        _remove_folder(fs, f"{root}/{folder}")
        raise
    _remove_old(fs, root, [manifest, *([previous] if previous else [])])
    return Export(url, number, entry.keys, len(content.removed), entry.nbytes, after is None, reason)


def _check(description: Description, content: Content, after: ExportManifest | None) -> None:
    for name, keys in (("keys", content.keys), ("removed", content.removed)):
        if keys.dtype != np.int64 or keys.ndim != 1:
            raise ShapeError(f"{name}: expected int64 of shape (n,), got {keys.dtype} of shape {keys.shape}")
        if keys.size and (keys[0] < 0 or not (keys[1:] > keys[:-1]).all()):
            raise UsageError(f"{name}: expected distinct non-negative keys in ascending order")
    for name, array in content.dense.items():
        if not ARRAY_NAME.fullmatch(name):
            raise UsageError(f"dense: expected names of letters, digits, dots and hyphens, got {name!r}")
        if array.dtype.kind not in "fiu":
            raise UsageError(f"dense: {name}: expected floats or integers, got {array.dtype}")
        if not np.isfinite(array).all():
            raise DivergedError(f"{name}: expected finite numbers; the model has diverged, so it is not exported")
    if after is not None:
        for name in ("kind", "width", "hasher", "initial"):
            exported, value = getattr(after.description, name), getattr(description, name)
            if exported != value:
                raise UsageError(
                    f"since: the export has {name} {exported!r}, and this model has {value!r}; leave out since= for "
                    "another model"
                )


def _write_entry(fs: Any, folder: str, number: int, content: Content, width: int) -> ExportEntry:
    height = max(1, PART_BYTES // (4 * width))
    key_files = []
    for index, begin in enumerate(range(0, len(content.keys), height)):
        keys = content.keys[begin : begin + height]
        saved = _write(fs, folder, f"keys-{index}.npy", npy_bytes(keys))
        values = _write(fs, folder, f"values-{index}.npy", _value_bytes(keys, content.read, width))
        key_files.append(KeyFiles(len(keys), saved, values))
    removed = _write(fs, folder, "removed.npy", npy_bytes(content.removed)) if len(content.removed) else None
    dense = {name: _write(fs, folder, f"dense-{name}.npy", _bytes(array)) for name, array in content.dense.items()}
    return ExportEntry(number, folder.rpartition("/")[2], tuple(key_files), removed, dense, content.source, time.time())


def _value_bytes(keys: Int64s, read: Callable[[Int64s], Values], width: int) -> Iterator[Any]:
    yield npy_header(np.dtype(np.float32), (len(keys), width))
    rows = max(1, READ_BYTES // (4 * width))
    blocks = [keys[begin : begin + rows] for begin in range(0, len(keys), rows)]
    with ThreadPoolExecutor(1, "ps2-export") as pool:  # reads the next block while the caller writes this block
        next_values = pool.submit(read, blocks[0]) if blocks else None
        for index, block in enumerate(blocks):
            assert next_values is not None
            values = next_values.result()
            next_values = pool.submit(read, blocks[index + 1]) if index + 1 < len(blocks) else None
            _check_values(block, values, width)
            yield np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _check_values(keys: Int64s, values: Values, width: int) -> None:
    if values.dtype != np.float32 or values.shape != (len(keys), width):
        raise ShapeError(
            f"values: expected float32 of shape {(len(keys), width)}, got {values.dtype} of shape {values.shape}"
        )
    finite = np.isfinite(values)
    if not finite.all():
        key = keys[np.argmin(finite.all(1))]
        raise DivergedError(f"key {key}: expected finite values; the model has diverged, so it is not exported")


def _bytes(array: npt.NDArray[Any]) -> Iterator[Any]:
    array = np.ascontiguousarray(array).reshape(array.shape)
    yield npy_header(array.dtype, array.shape)
    yield array.tobytes()


def _write(fs: Any, folder: str, name: str, parts: Iterator[Any]) -> SavedFile:
    return SavedFile(name, *write(fs, f"{folder}/{name}", parts))


def _remove_old(fs: Any, root: str, manifests: list[ExportManifest]) -> None:
    """Remove older folders that neither the new nor the previous manifest names.

    A reader may still open the folders of the previous manifest. A folder with the new number stays, because another
    program may be writing it; the next export removes it.
    """
    keep = {entry.folder for manifest in manifests for entry in manifest.entries}
    with suppress(OSError):
        for path in fs.ls(root, detail=False):
            name = path.rstrip("/").rpartition("/")[2]
            match = FOLDER.fullmatch(name)
            if match is not None and int(match[2]) < manifests[0].number and name not in keep:
                _remove_folder(fs, f"{root}/{name}")


def _remove_folder(fs: Any, path: str) -> None:
    """Remove a folder if possible; a later export removes files that stay."""
    with suppress(OSError):
        remove_folder(fs, path)
