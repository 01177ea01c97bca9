"""Paths of training files: whether there is anything to read, and why Spark cannot read a file."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from ps2.algorithms.training.progress import say
from ps2.errors import InputError
from ps2.run.spark.files import escaped, file_system_of
from ps2.run.spark.jvm import io_error
from ps2.storage.files import check_encodable

# Characters of Hadoop's path patterns.
PATTERN = re.compile(r"[*?[{\\]")
# The ones that mean something else to Python's glob.
SPARKS_PATTERN = re.compile(r"[\[{\\]")
# Matches the file's name in Spark's error.
FAILED_FILE = re.compile(r"reading file (\S+?)\.?\s")
FORMAT = re.compile(r"\.(csv|tsv|parquet)(\.\w+)?$", re.IGNORECASE)


def local_path(path: str) -> str | None:
    """Return the local path for a path as Spark reads it; None: it is remote, or only Spark knows."""
    scheme, colon, rest = path.partition(":")
    if colon and "/" not in scheme:
        return "/" + re.sub("^//[^/]*", "", rest).lstrip("/") if scheme == "file" else None  # the host is localhost
    return None if "HADOOP_CONF_DIR" in os.environ else path  # with that, a path may be one of HDFS


def local_name(url: str) -> str:
    """Return the name of a file for messages, a local path or a URL, from its URL as Spark's input_file_name returns
    it."""
    return re.sub(r"^file:(//[^/]*)?", "", unquote(url))


def format_of(path: str) -> str | None:
    """Return "csv", "tsv" or "parquet", as the suffix tells, perhaps before that of a compression; None: none of these.
    The first file of a local folder or pattern tells it."""
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
    """Raise InputError if a local file or folder is missing, unreadable or not a regular file, or a folder holds
    folders. Patterns that Python's glob does not know are left to Spark."""
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
    """Check a path before Spark reads it, and name the file that Spark cannot read, such as a truncated compressed one.
    Raise InputError for these, and if there is no such file, or the path is a folder of folders."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    say(f"reading {path}")
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
        hint = f" that this pattern matches; the pattern of the file of this name is {escaped(path)}" if is_name else ""
        raise InputError(f"{path}: there is no such file{hint}")
    for match in matches:
        if match.isDirectory():
            entries = files.listStatus(match.getPath())
            _check_folder(((entry.getPath().getName(), entry.isDirectory()) for entry in entries), path)


def _check_folder(entries: Iterable[tuple[str, bool]], path: str) -> None:
    """Raise InputError if a folder holds other folders, given the name of each entry and whether it is a folder. Spark
    would list all below them and read none of it. It reads folders named as partitions of a table ("day=3")."""
    for name, is_folder in entries:
        # Spark ignores names that begin with these.
        if is_folder and not name.startswith(("_", ".")) and "=" not in name:
            raise InputError(
                f"{path}: expected a file or a folder of files, got a folder with the folder {name!r} in it, whose "
                f"files would not be read; name the files by a pattern, such as {path.rstrip('/')}/*.gz"
            )
