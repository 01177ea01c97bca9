"""Files on any file system that fsspec supports: errors name the file, and JSON files are written atomically."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import logging
import os
import re
import sys
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import fsspec
import xxhash
from fsspec.implementations.local import LocalFileSystem

from ps2.errors import CheckpointCorruptError, ConfigError, PS2Error, RecoveryError

log = logging.getLogger(__name__)

# Bytes that are read or written at a time.
BLOCK_BYTES = 4 << 20
FULL = (errno.ENOSPC, errno.EDQUOT)
# Chained URLs of fsspec: an archive in a file system, or a layer over one. Any other "::" belongs to the path.
LAYERS = "zip|tar|libarchive|reference|dir|simplecache|filecache|blockcache|cached"
CHAIN = re.compile(rf"(?:{LAYERS})(?:://|::(?:/|.*://))")
# Hadoop and Databricks write paths on a scheme's default host like this. Fsspec would read them as local paths.
NO_HOST = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
LOCAL_HOST = re.compile(r"(?:file|local)://([^/]+)")


def resolve_url(url: str | os.PathLike[str], name: str = "url") -> tuple[Any, str]:
    """Return the file system of a URL, and the path on it; ``name`` is the setting that holds it, for errors.

    Raises ConfigError if the URL is empty (which would mean the current folder), names files of another host, has
    only one slash after its scheme, or fsspec does not support it.
    """
    if not isinstance(url, str | os.PathLike):
        raise ConfigError(f"{name}: expected a path or a URL, got {url!r}")
    if not str(url).strip():
        raise ConfigError(f"{name}: expected a path or a URL, got {url!r}; the current folder is '.'")
    if "\0" in str(url):
        raise ConfigError(f"{name}: expected a path or a URL without NUL characters, got {url!r}")
    plain = str(url)
    if re.fullmatch(r"(file|local):(//)?", plain):
        raise ConfigError(f"{name}: expected a path behind {plain}, got none")
    if host := LOCAL_HOST.match(plain):
        # RFC 8089, like Hadoop. Fsspec would read the host as a folder in the current one.
        if host[1].lower() != "localhost":
            raise ConfigError(f"{name}: expected a path, or file:///PATH of this host, got {url!r}")
        plain = plain[host.end() :] or "/"
    if (short := NO_HOST.match(plain)) and short[1] not in ("file", "local"):
        raise ConfigError(f"{name}: expected {short[1]}://..., or ./{plain} for a local path, got {url!r}")
    # Fsspec splits at every "::", so a NUL, which the URL does not contain, stands for each of them.
    unsplit = plain if CHAIN.match(plain) else plain.replace("::", "\0")
    try:
        fs, root = fsspec.core.url_to_fs(unsplit)
    except (ValueError, ImportError, TypeError) as error:
        why = str(error).replace("\0", "::")
        raise ConfigError(f"{name}: expected a path or a URL that fsspec knows, got {url!r}: {why}") from error
    except OSError as error:  # no archive of this name, no library for HDFS, or no answer from its host
        (why, *_) = str(error).splitlines() or [type(error).__name__]
        raise RecoveryError(f"{name}: the file system of {url} cannot be opened: {why}") from error
    root = root.replace("\0", "::")
    check_encodable(root, name, isinstance(fs, LocalFileSystem))
    return fs, root.rstrip("/") or "/"


def shared_url(url: str | os.PathLike[str]) -> str:
    """Return the URL for another process, which may have another current folder: a local path becomes absolute."""
    fs, root = resolve_url(url)
    return root if isinstance(fs, LocalFileSystem) else str(url)


def check_encodable(path: str, name: str, is_local: bool) -> None:
    """Raise ConfigError if a path cannot be encoded in the locale's encoding, or was decoded from other bytes.

    Paths that are not ``is_local`` are UTF-8 in any locale.
    """
    try:
        path.encode()
        if is_local:
            os.fsencode(path)
    except UnicodeEncodeError as error:
        encoding = sys.getfilesystemencoding()
        hint = "" if encoding == "utf-8" else ": set LC_ALL=C.UTF-8"
        raise ConfigError(
            f"{name}: expected a path in the locale's encoding, {encoding}, got {path!a}{hint}"
        ) from error


@contextlib.contextmanager
def reported(path: str, doing: str) -> Iterator[None]:
    """Turn an exception of a file system into a RecoveryError that names the path and the reason."""
    try:
        yield
    except (PS2Error, MemoryError):
        raise
    except Exception as error:  # remote stores raise errors of their own, not only OSError
        raise RecoveryError(f"{path}: {doing} failed: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """Return the reason for a file system's error in words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"


def remove(fs: Any, path: str) -> None:
    """Remove a file if possible; ignore errors of the file system."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: ``path`` is a folder
        fs.rm_file(path)


def remove_folder(fs: Any, path: str) -> None:
    """Remove a folder and its contents. ``fs.rm`` would remove everything that the path matches as a pattern."""
    if isinstance(fs, LocalFileSystem) or not glob.has_magic(path):
        fs.rm(path, recursive=True)
        return
    entries = sorted(fs.find(path, withdirs=True, detail=True).values(), key=lambda entry: entry["name"], reverse=True)
    for entry in (*entries, {"name": path, "type": "directory"}):
        with contextlib.suppress(FileNotFoundError):  # many stores have no folders without files
            (fs.rmdir if entry["type"] == "directory" else fs.rm_file)(entry["name"])


def _move(fs: Any, source: str, target: str) -> None:
    """Rename a file; ``fs.mv`` would read its name as a pattern."""
    if isinstance(fs, LocalFileSystem) or not glob.has_magic(source):
        fs.mv(source, target)
        return
    fs.cp_file(source, target)
    fs.rm_file(source)


def write(fs: Any, path: str, parts: Iterable[Any], shown_path: str = "") -> tuple[int, str]:
    """Write a file; return its size and the XXH3-128 of its bytes, in hex. A local file is synced to disk.

    After an error, the incomplete file is removed. Errors name ``shown_path``; "" means ``path``.
    """
    digest, size = xxhash.xxh3_128(), 0
    try:
        with reported(shown_path or path, "writing"), fs.open(path, "wb") as file:
            for part in parts:
                file.write(part)
                digest.update(part)
                size += len(part)
            if isinstance(fs, LocalFileSystem):
                # Otherwise a full disk might be detected only after the manifest is written.
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        remove(fs, path)
        raise
    return size, digest.hexdigest()


def write_whole(fs: Any, path: str, parts: Iterable[Any]) -> None:
    """Write to a temporary file and rename it: readers see either the old content or the complete new content."""
    with reported(path, "writing"):
        if fs.isdir(path):
            raise RecoveryError(f"{path}: expected a file or no file, got a folder")
    temporary = f"{path}.{uuid.uuid4().hex[:12]}"
    try:
        write(fs, temporary, parts, shown_path=path)
        with reported(path, "renaming it into place"):
            _move(fs, temporary, path)
    except BaseException:
        remove(fs, temporary)
        raise


@contextlib.contextmanager
def locked(fs: Any, folder: str) -> Iterator[None]:
    """Hold the exclusive lock of a local folder, which the end of this process releases, too.

    On other file systems, do nothing. Raises BlockingIOError if another process or caller has the lock.
    """
    if not isinstance(fs, LocalFileSystem):
        yield
        return
    with reported(folder, "opening"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:  # some network file systems have no such locks
            log.debug("%s cannot be locked: %s", folder, reason(error))
        yield
    finally:
        os.close(descriptor)


def write_json(fs: Any, path: str, value: object) -> None:
    """Write JSON like ``write_whole``."""
    write_whole(fs, path, [json.dumps(value, indent=1).encode()])


def read_json(fs: Any, path: str, *formats: str) -> dict[str, Any] | None:
    """Return a JSON object whose "format" is one of ``formats``; None if there is no file."""
    with reported(path, "reading"):
        try:
            with fs.open(path, "rb") as file:
                content = json.loads(file.read().decode())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise CheckpointCorruptError(f"{path}: not JSON: {error}") from error
    format = content.get("format") if isinstance(content, dict) else None
    if format not in formats:
        expected = " or ".join(map(repr, formats))
        raise CheckpointCorruptError(f"{path}: expected format {expected}, got {format!r}")
    return content
