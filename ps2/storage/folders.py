"""Folders of checkpoints. Each checkpoint has its own folder, and is complete once the folder has a manifest.

The name of a checkpoint's folder, such as ``checkpoint-00000012-3f9a2c1d77ab``, contains a number and the id of the run
that wrote it. A new checkpoint gets a larger number than all checkpoints that its run finds. Not every file system has
locks, so two runs may choose the same number; the names of their folders differ by the run.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ps2.errors import CheckpointMissingError, ConfigError, RecoveryError
from ps2.storage.files import (
    NO_SPACE,
    read_json,
    reason,
    recovery_errors,
    remove_folder,
    resolve_url,
    write,
    write_json,
)
from ps2.storage.files import remove as remove_file
from ps2.storage.manifest import FORMAT, Manifest, SavedFile
from ps2.storage.shard_files import checked
from ps2.storage.shard_files import verify as verify_file

MANIFEST = "manifest.json"
MESSAGES = "messages.bin"
NAME = re.compile(r"checkpoint-(\d{8,})-([0-9a-z]+)")
# Size of the file that ``prepare`` writes to check a folder.
PROBE_BYTES = 4096


@dataclass(frozen=True)
class CheckpointFolder:
    """A checkpoint's folder. ``run``: the id of the run that wrote it. ``complete``: True if it has a manifest."""

    url: str
    number: int
    run: str
    complete: bool


@dataclass(frozen=True)
class VerifiedFile:
    """A file of a checkpoint that was read to its end; ``problem``: an error message, None if the file is correct."""

    name: str
    nbytes: int
    problem: str | None


def folder(url: str, number: int, run: str) -> str:
    """Return the URL of a checkpoint's folder inside the folder of checkpoints ``url``."""
    return f"{url.rstrip('/')}/checkpoint-{number:08d}-{run}"


def prepare(url: str) -> None:
    """Create a folder for checkpoints if it does not exist, and check that it is writable."""
    fs, root = resolve_url(url, "checkpointDir")
    probe = f"{root}/.probe-{uuid.uuid4().hex[:12]}"
    try:
        with recovery_errors(probe, "writing"):
            if fs.exists(root) and not fs.isdir(root):
                raise ConfigError(f"checkpointDir: expected a writable folder, but {url} is a file")
            fs.makedirs(root, exist_ok=True)
        write(fs, probe, [bytes(PROBE_BYTES)])
    except RecoveryError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in NO_SPACE:
            raise RecoveryError(f"checkpointDir: there is no space left at {url}") from error
        raise ConfigError(f"checkpointDir: expected a writable folder, got {url}: {reason(cause or error)}") from error
    remove_file(fs, probe)


def find(url: str) -> list[CheckpointFolder]:
    """Return all checkpoints in a folder, oldest first, including incomplete ones and those of other runs."""
    fs, root = resolve_url(url)
    checkpoints = []
    for entry in _entries(fs, root, url):
        match = NAME.fullmatch(entry["name"].rstrip("/").rpartition("/")[2])
        if match and entry["type"] == "directory":
            checkpoints.append(at_url(f"{url.rstrip('/')}/{match[0]}"))
    return sorted(checkpoints, key=lambda checkpoint: (checkpoint.number, checkpoint.run))


def at_url(url: str) -> CheckpointFolder:
    """Return the checkpoint at the URL of its folder; a renamed folder has number 0 and an empty run."""
    match = NAME.fullmatch(url.rstrip("/").rpartition("/")[2])
    return CheckpointFolder(url, int(match[1]) if match else 0, match[2] if match else "", is_complete(url))


def is_complete(url: str) -> bool:
    """Return True if the folder contains a complete checkpoint."""
    fs, root = resolve_url(url)
    with recovery_errors(root, "looking for its manifest"):
        return bool(fs.exists(f"{root}/{MANIFEST}"))


def newest(url: str) -> str:
    """Return the URL of the newest complete checkpoint in a folder, or ``url`` if it is a checkpoint's folder itself.

    Raises CheckpointMissingError, which describes the folder's contents.
    """
    fs, root = resolve_url(url)
    entries = _entries(fs, root, url)
    if is_complete(url):
        return url
    checkpoints = find(url)
    complete = [checkpoint for checkpoint in checkpoints if checkpoint.complete]
    if complete:
        urls = [checkpoint.url for checkpoint in complete if checkpoint.number == complete[-1].number]
        # Two runs may have chosen the same number: return the later checkpoint.
        return max(urls, key=lambda url: read_manifest(url).created_s) if len(urls) > 1 else urls[0]
    if checkpoints:
        contents = f"{len(checkpoints)} incomplete checkpoint(s) without {MANIFEST}"
    elif entries:
        contents = f"{len(entries)} other file(s)"
    else:
        contents = "nothing"
    raise CheckpointMissingError(
        f"{url}: expected a checkpoint, or a folder of checkpoint-NNNNNNNN-RUN; it holds {contents}"
    )


def read_manifest(url: str) -> Manifest:
    """Read the manifest of a checkpoint's folder."""
    fs, root = resolve_url(url)
    path = f"{root}/{MANIFEST}"
    content = read_json(fs, path, FORMAT)
    if content is None:
        raise CheckpointMissingError(f"{url}: expected a checkpoint, but there is no {MANIFEST}")
    return Manifest.from_json(content, path)


def write_manifest(url: str, manifest: Manifest) -> None:
    """Complete a checkpoint: write its manifest atomically, or nothing if the manifest is not valid."""
    fs, root = resolve_url(url)
    path, content = f"{root}/{MANIFEST}", manifest.to_json()
    Manifest.from_json(content, path)  # raises if a shard is missing
    with recovery_errors(root, "making the folder"):
        fs.makedirs(root, exist_ok=True)
    write_json(fs, path, content)


def check_present(url: str, manifest: Manifest) -> None:
    """Raise RecoveryError unless this process sees all files that servers wrote, with the sizes that they reported."""
    fs, root = resolve_url(url)
    fs.invalidate_cache()
    sizes: dict[str, int | None] = {}
    with recovery_errors(root, "listing the servers' files"), suppress(FileNotFoundError):
        sizes = {entry["name"].rpartition("/")[2]: entry["size"] for entry in fs.ls(root, detail=True)}
    for *_, file in manifest.files():
        path = f"{root}/{file.name}"
        if file.name not in sizes:
            raise RecoveryError(
                f"{path}: there is no such file; a server wrote it, so {url} must be a folder that servers and this "
                "process share"
            )
        if sizes[file.name] not in (None, file.nbytes):
            raise RecoveryError(
                f"{path}: a server wrote {file.nbytes:,} bytes, but this process sees {sizes[file.name]:,}"
            )


def write_messages(url: str, encoded: bytes) -> SavedFile:
    """Write the driver's encoded messages to workers into a checkpoint's folder; raises RecoveryError."""
    fs, root = resolve_url(url)
    with recovery_errors(root, "making the folder"):
        fs.makedirs(root, exist_ok=True)
    return SavedFile(MESSAGES, *write(fs, f"{root}/{MESSAGES}", [encoded]))


def read_messages(url: str, file: SavedFile) -> bytes:
    """Read the messages that ``write_messages`` wrote."""
    fs, root = resolve_url(url)
    with checked(fs, root, file) as checked_file:
        return b"".join(iter(checked_file.read, b""))


def remove(url: str) -> None:
    """Remove a checkpoint, its manifest first: without a manifest, the files of an interrupted removal do not count."""
    fs, root = resolve_url(url)
    with recovery_errors(root, "removing"):
        if fs.exists(path := f"{root}/{MANIFEST}"):
            fs.rm_file(path)
        if fs.exists(root):
            remove_folder(fs, root)


def prune(url: str, keep: int, removable: Collection[str]) -> list[str]:
    """Remove complete checkpoints except the newest ``keep``, and incomplete ones before the newest complete one.

    Only checkpoints whose URLs are in ``removable`` are removed. Returns the URLs of the removed folders.
    """
    checkpoints = [checkpoint for checkpoint in find(url) if checkpoint.url in removable]
    complete = [checkpoint for checkpoint in checkpoints if checkpoint.complete]
    retained = complete[max(len(complete) - keep, 0) :]
    newest_number = complete[-1].number if complete else 0
    # A run writes one checkpoint at a time, so no process still writes to an earlier checkpoint.
    obsolete = [old.url for old in checkpoints if old not in retained and (old.complete or old.number < newest_number)]
    for old_url in obsolete:
        remove(old_url)
    return obsolete


def verify(url: str, progress: Callable[[int], None] | None = None) -> list[VerifiedFile]:
    """Read all files of a checkpoint and compare them with its manifest.

    ``progress`` is called with the number of bytes read since the last call.
    """
    fs, root = resolve_url(url)
    manifest = read_manifest(url)
    files = [(file, (kind, matrix, shard)) for matrix, shard, kind, file in manifest.files()]
    messages = [(manifest.messages, None)] if manifest.messages is not None else []
    report = []
    for file, source in (*messages, *files):
        problem = None
        try:
            verify_file(fs, root, file, source, progress)
        except RecoveryError as error:
            problem = str(error)
        report.append(VerifiedFile(file.name, file.nbytes, problem))
    return report


def _entries(fs: Any, root: str, url: str) -> list[dict[str, Any]]:
    """Return the entries of a folder; raise CheckpointMissingError if ``url`` is not a folder."""
    with recovery_errors(url, "reading the folder"):
        try:
            if fs.info(root)["type"] != "directory":
                raise CheckpointMissingError(f"{url}: expected a folder with a checkpoint, but this is a file")
            return [entry for entry in fs.ls(root, detail=True) if entry["name"].rstrip("/") != root]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CheckpointMissingError(f"{url}: expected a folder with a checkpoint, but there is nothing") from error
