"""Paths of training files: is there anything to read, and why can Spark not read a file?"""

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
# Of these, the ones that mean something else to Python's glob.
SPARKS_PATTERN = re.compile(r"[\[{\\]")
# Matches the file's name in Spark's error.
FAILED_FILE = re.compile(r"reading file (\S+?)\.?\s")
SHOWN_CHARS = 40


def local_path(path: str) -> str | None:
    """Return the local path for a path as Spark reads it; None: it is remote, or only Spark knows."""
    scheme, found, rest = path.partition(":")
    if found and "/" not in scheme:
        return "/" + re.sub("^//[^/]*", "", rest).lstrip("/") if scheme == "file" else None  # the host is localhost
    return None if "HADOOP_CONF_DIR" in os.environ else path  # with that, a path may be one of HDFS


def first_file(path: str) -> str:
    """Return the first file of a local folder or pattern; else the path."""
    local = local_path(path)
    if local is None or (SPARKS_PATTERN.search(local) and not os.path.exists(local)):
        return path
    for found in sorted(glob.glob(local)) if PATTERN.search(local) and not os.path.exists(local) else [local]:
        if not os.path.isdir(found):
            return found
        files = sorted(name for _, _, names in os.walk(found) for name in names if not name.startswith((".", "_")))
        if files:
            return files[0]
    return path


def check_local(path: str) -> None:
    """Raise InputError for faults that are visible without Spark.

    A local file or folder is missing, unreadable or not a regular file, or a folder holds folders. Patterns that
    Python's glob does not know are left to Spark.
    """
    local = local_path(path)
    check_encodable(path, "path", local is not None)
    if local is None:
        return
    if not PATTERN.search(local):
        _check_local_entry(local, path)
    elif not SPARKS_PATTERN.search(local):
        found = glob.glob(local)
        if not found:
            raise InputError(f"{path}: there is no such file")
        for each in found:
            _check_local_entry(each, path)


def _check_local_entry(local: str, path: str) -> None:
    try:
        mode = os.stat(local).st_mode
        if stat.S_ISDIR(mode):
            with os.scandir(local) as entries:
                _check_folder(((entry.name, entry.is_dir()) for entry in entries), path)
        elif not stat.S_ISREG(mode):
            raise InputError(f"{path}: expected a file or a folder of files, got a pipe or a device")
        elif not os.access(local, os.R_OK):
            raise InputError(f"{path}: reading failed: Permission denied")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{path}: there is no such file") from error
    except OSError as error:
        raise InputError(f"{path}: reading failed: {error.strerror}") from error


@contextmanager
def reading(spark: Any, path: str) -> Iterator[None]:
    """Check a path before Spark reads it, and name the file that Spark cannot read.

    Args:
        path: any URL that Spark reads: a file, a folder or a glob.

    Raises:
        InputError: Spark finds no file of that path or pattern; the path is a folder of folders; or a file cannot be
            read, such as a truncated compressed file.
    """
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
        named = FAILED_FILE.search(str(error))
        raise InputError(f"{local_name(unquote(named[1])) if named else path}: reading failed: {fault}") from error


def _check_exists(spark: Any, path: str) -> None:
    location, files = file_system_of(spark.sparkContext, path)
    found = files.globStatus(location)
    if found is None or len(found) == 0:
        is_name = PATTERN.search(path) and files.exists(location)
        hint = f" that this pattern matches; the pattern of the file of this name is {escaped(path)}" if is_name else ""
        raise InputError(f"{path}: there is no such file{hint}")
    for each in found:
        if each.isDirectory():
            listed = files.listStatus(each.getPath())
            _check_folder(((entry.getPath().getName(), entry.isDirectory()) for entry in listed), path)


def _check_folder(entries: Iterable[tuple[str, bool]], path: str) -> None:
    """Raise InputError if a folder holds other folders.

    Spark lists everything below them, which takes minutes for "/", and then reads none of it. Folders named as
    partitions of a table ("day=3") are read.

    Args:
        entries: of the folder: names, and whether each is a folder.
    """
    for name, is_folder in entries:
        # Spark ignores names that begin with these.
        if is_folder and not name.startswith(("_", ".")) and "=" not in name:
            raise InputError(
                f"{path}: expected a file or a folder of files, got a folder with the folder {name!r} in it, whose "
                f"files would not be read; name the files by a pattern, such as {path.rstrip('/')}/*.gz"
            )


def text_file(spark: Any, pattern: str) -> Any:
    """Return an RDD of the lines of files; unlike SparkContext.textFile, a comma does not separate paths."""
    return spark.sparkContext.textFile(pattern if "{" in pattern else pattern.replace(",", r"{\,}"))


def numbered_lines(spark: Any, file: str) -> Any:
    """Return an RDD of the lines of a file, each with its number from 0.

    Args:
        file: URL as Spark's input_file_name returns it.
    """
    return spark.sparkContext.textFile(escaped(unquote(file))).zipWithIndex()


def local_name(url: str) -> str:
    """Return the URL of a file without its scheme and host if that is "file"."""
    return re.sub(r"^file:(//[^/]*)?", "", url)


def shown(text: str) -> str:
    """Return a text, or its beginning, for messages."""
    return repr(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "...")
