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
# Error numbers of a full disk or an exhausted quota.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# Chained URLs of fsspec: an archive in a file system, or a cache before one. Any other "::" belongs to the path.
LAYERS = "zip|tar|libarchive|reference|dir|simplecache|filecache|blockcache|cached"
CHAINED_URL = re.compile(rf"(?:{LAYERS})(?:://|::(?:/|.*://))")
# A URL with one slash: Hadoop and Databricks write paths on a scheme's default host so. Fsspec would read a local path.
ONE_SLASH_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
FILE_URL_HOST = re.compile(r"(?:file|local)://([^/]+)")


def resolve_url(url: str | os.PathLike[str], name: str = "url") -> tuple[Any, str]:
    """Return the file system of a URL, and the path in that file system; ``name``: the setting's name, for errors.

    Raises ConfigError if the URL is empty (which would mean the current folder), names files of another host, has
    only one slash after its scheme, or is not supported by fsspec.
    """
    if not isinstance(url, str | os.PathLike):
        raise ConfigError(f"{name}: expected a path or a URL, got {url!r}")
    if not str(url).strip():
        raise ConfigError(f"{name}: expected a path or a URL, got {url!r}; the current folder is '.'")
    if "\0" in str(url):
        raise ConfigError(f"{name}: expected a path or a URL without NUL characters, got {url!r}")
    plain = str(url)
    if re.fullmatch(r"(file|local):(//)?", plain):
        raise ConfigError(f"{name}: expected a path after {plain}, got none")
    if host := FILE_URL_HOST.match(plain):
        # The form of RFC 8089 and Hadoop. Fsspec would read the host as a folder in the current folder.
        if host[1].lower() != "localhost":
            raise ConfigError(f"{name}: expected a path, or file:///PATH of this host, got {url!r}")
        plain = plain[host.end() :] or "/"
    if (match := ONE_SLASH_URL.match(plain)) and match[1] not in ("file", "local"):
        raise ConfigError(f"{name}: expected {match[1]}://..., or ./{plain} for a local path, got {url!r}")
    # Fsspec splits at every "::", so a NUL, which no URL contains, replaces each "::" of the path for the moment.
    unsplit = plain if CHAINED_URL.match(plain) else plain.replace("::", "\0")
    try:
        fs, root = fsspec.core.url_to_fs(unsplit)
    except (ValueError, ImportError, TypeError) as error:
        error_text = str(error).replace("\0", "::")
        raise ConfigError(f"{name}: expected a path or a URL that fsspec knows, got {url!r}: {error_text}") from error
    except OSError as error:  # no archive of this name, no library for HDFS, or no answer from its host
        (error_text, *_) = str(error).splitlines() or [type(error).__name__]
        raise RecoveryError(f"{name}: the file system of {url} cannot be opened: {error_text}") from error
    root = root.replace("\0", "::")
    check_encodable(root, name, isinstance(fs, LocalFileSystem))
    return fs, root.rstrip("/") or "/"


def shared_url(url: str | os.PathLike[str]) -> str:
    """Return a URL for processes with another current folder: a relative local path becomes absolute."""
    fs, root = resolve_url(url)
    return root if isinstance(fs, LocalFileSystem) else str(url)


def check_encodable(path: str, name: str, is_local: bool) -> None:
    """Raise ConfigError if a path cannot be encoded as UTF-8, or if it is local, in the locale's encoding.

    A path contains surrogates, which UTF-8 cannot encode, if its bytes were not valid in the locale's encoding.
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
def recovery_errors(path: str, doing: str) -> Iterator[None]:
    """Turn an exception of a file system into a RecoveryError that names the path and the reason."""
    try:
        yield
    except (PS2Error, MemoryError):
        raise
    except Exception as error:  # remote file systems raise more classes than OSError
        raise RecoveryError(f"{path}: {doing} failed: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """Return the text of a file system's error, without its number and path."""
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
        with contextlib.suppress(FileNotFoundError):  # many object stores have no empty folders
            (fs.rmdir if entry["type"] == "directory" else fs.rm_file)(entry["name"])


def _move(fs: Any, source: str, target: str) -> None:
    """Rename a file. ``fs.mv`` would read a name with *, ? or [ as a pattern."""
    if isinstance(fs, LocalFileSystem) or not glob.has_magic(source):
        fs.mv(source, target)
        return
    fs.cp_file(source, target)
    fs.rm_file(source)


def write(fs: Any, path: str, parts: Iterable[Any], shown_path: str = "") -> tuple[int, str]:
    """Write a file; return its size and the XXH3-128 of its bytes in hex. A local file is synced to disk.

    After an error, the incomplete file is removed. ``shown_path``: the path in error messages; "": ``path``.
    """
    digest, size = xxhash.xxh3_128(), 0
    try:
        with recovery_errors(shown_path or path, "writing"), fs.open(path, "wb") as file:
            for part in parts:
                file.write(part)
                digest.update(part)
                size += len(part)
            if isinstance(fs, LocalFileSystem):
                # Sync now: a full disk must be detected before the manifest is written.
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        remove(fs, path)
        raise
    return size, digest.hexdigest()


def write_atomically(fs: Any, path: str, parts: Iterable[Any]) -> None:
    """Write to a temporary file and rename it: readers see the old content or the complete new content."""
    with recovery_errors(path, "writing"):
        if fs.isdir(path):
            raise RecoveryError(f"{path}: expected a file or no file, got a folder")
    temporary = f"{path}.{uuid.uuid4().hex[:12]}"
    try:
        write(fs, temporary, parts, shown_path=path)
        with recovery_errors(path, "renaming it into place"):
            _move(fs, temporary, path)
    except BaseException:
        remove(fs, temporary)
        raise


@contextlib.contextmanager
def folder_lock(fs: Any, folder: str) -> Iterator[None]:
    """Hold the exclusive lock of a local folder; the operating system also releases it when the process ends.

    On other file systems, do nothing. Raises BlockingIOError if another process or thread has the lock.
    """
    if not isinstance(fs, LocalFileSystem):
        yield
        return
    with recovery_errors(folder, "opening"):
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
    """Write JSON data atomically."""
    write_atomically(fs, path, [json.dumps(value, indent=1).encode()])


def read_json(fs: Any, path: str, *formats: str) -> dict[str, Any] | None:
    """Return a JSON object whose "format" is one of ``formats``; None if there is no file."""
    with recovery_errors(path, "reading"):
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
