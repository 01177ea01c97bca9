"""Check the paths of training files before Spark reads them, and explain why Spark cannot read a file."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from ps2.algorithms.training.progress import log_activity
from ps2.errors import InputError
from ps2.run.spark.files import escaped, file_system_of
from ps2.run.spark.jvm import io_error
from ps2.storage.files import check_encodable

# The special characters of Hadoop's path patterns.
PATTERN = re.compile(r"[*?[{\\]")
# The special characters that have another meaning in patterns of Python's glob.
SPARKS_PATTERN = re.compile(r"[\[{\\]")
# The name of the file in Spark's error.
FAILED_FILE = re.compile(r"reading file (\S+?)\.?\s")
# A format's suffix, perhaps followed by a suffix for compression.
FORMAT = re.compile(r"\.(csv|tsv|parquet)(\.\w+)?$", re.IGNORECASE)


def local_path(path: str) -> str | None:
    """Return the local path of a path or URL; None: the path is remote, or depends on Spark's configuration."""
    scheme, colon, rest = path.partition(":")
    if colon and "/" not in scheme:
        return "/" + re.sub("^//[^/]*", "", rest).lstrip("/") if scheme == "file" else None  # the host is localhost
    return None if "HADOOP_CONF_DIR" in os.environ else path  # with this variable, a path can be in HDFS


def local_name(url: str) -> str:
    """Return the name of a file for messages, a local path or a URL, from the URL of Spark's input_file_name."""
    return re.sub(r"^file:(//[^/]*)?", "", unquote(url))


def format_of(path: str) -> str | None:
    """Return "csv", "tsv" or "parquet" for the suffix of a path, or of a local folder's first file; None: others."""
    suffix = FORMAT.search(_first_file(path))
    return None if suffix is None else suffix[1].lower()


def _first_file(path: str) -> str:
    local = local_path(path)
    if local is None or os.path.isfile(local) or (SPARKS_PATTERN.search(local) and not os.path.exists(local)):
        return path
    for match in [local] if os.path.exists(local) else sorted(glob.glob(local)):
        if not os.path.isdir(match):
            return match
        files = sorted(name for _, _, names in os.walk(match) for name in names if not name.startswith((".", "_")))
        if files:
            return files[0]
    return path


def check_local(path: str) -> None:
    """Raise InputError if a local path is missing, unreadable or not a regular file, or a folder contains folders.
    Patterns that Python's glob does not support are not checked."""
    local = local_path(path)
    check_encodable(path, "path", local is not None)
    if local is None or SPARKS_PATTERN.search(local):
        return
    matches = glob.glob(local) if PATTERN.search(local) else [local]
    if not matches:
        raise InputError(f"{path}: there is no such file")
    for match in matches:
        try:
            _check_local_entry(match, path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InputError(f"{path}: there is no such file") from error
        except OSError as error:
            raise InputError(f"{path}: reading failed: {error.strerror}") from error


def _check_local_entry(local: str, path: str) -> None:
    mode = os.stat(local).st_mode
    if stat.S_ISDIR(mode):
        with os.scandir(local) as entries:
            _check_folder(((entry.name, entry.is_dir()) for entry in entries), path)
    elif not stat.S_ISREG(mode):
        raise InputError(f"{path}: expected a file or a folder of files, got a pipe or a device")
    elif not os.access(local, os.R_OK):
        raise InputError(f"{path}: reading failed: Permission denied")


@contextmanager
def reading(spark: Any, path: str) -> Iterator[None]:
    """Check a path, then run the block, in which Spark reads it. Raise InputError if the file does not exist, the path
    is a folder of folders, or Spark cannot read a file, such as a truncated compressed file."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    log_activity(f"reading {path}")
    _check_exists(spark, path)
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        fault = io_error(spark.sparkContext, error)
        if fault is None:
            raise
        url = FAILED_FILE.search(str(error))
        raise InputError(f"{local_name(url[1]) if url else path}: reading failed: {fault}") from error


def _check_exists(spark: Any, path: str) -> None:
    location, files = file_system_of(spark.sparkContext, path)
    matches = files.globStatus(location)
    if not matches:
        is_name = PATTERN.search(path) and files.exists(location)
        hint = f" that this pattern matches; for the file with this name, use {escaped(path)}" if is_name else ""
        raise InputError(f"{path}: there is no such file{hint}")
    for match in matches:
        if match.isDirectory():
            entries = files.listStatus(match.getPath())
            _check_folder(((entry.getPath().getName(), entry.isDirectory()) for entry in entries), path)


def _check_folder(entries: Iterable[tuple[str, bool]], path: str) -> None:
    """Raise InputError if a folder contains folders: Spark would not read the files in them, without an error.
    Partitions of a table ("day=3") are read. ``entries`` has the name of each entry, and whether it is a folder."""
    for name, is_folder in entries:
        # Spark ignores names that begin with "_" or ".".
        if is_folder and not name.startswith(("_", ".")) and "=" not in name:
            raise InputError(
                f"{path}: expected a file or a folder of files, got a folder with the folder {name!r} in it, whose "
                f"files would not be read; name the files by a pattern, such as {path.rstrip('/')}/*.gz"
            )
