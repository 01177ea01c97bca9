"""Paths of files to train on: whether there is something to read, and why Spark cannot read a file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from ps2.algorithms.training.progress import say
from ps2.errors import InputError

# What Hadoop takes for a pattern of paths.
PATTERN = re.compile(r"[*?[{\\]")
# How Spark names the file in its error.
FAILED_FILE = re.compile(r"reading file (\S+?)\.?\s")
SHOWN_CHARS = 40


def check_local(path: str) -> None:
    """Raise InputError if a local file or folder is missing, which needs no Spark to see; patterns are left to it."""
    scheme, found, rest = path.partition(":")
    if found and "/" not in scheme:
        if scheme != "file":
            return
        path = "/" + rest.lstrip("/")
    elif "HADOOP_CONF_DIR" in os.environ:  # then a path may be one of HDFS
        return
    if not PATTERN.search(path) and not os.path.exists(path):
        raise InputError(f"{path}: there is no such file")


@contextmanager
def reading(spark: Any, path: str) -> Iterator[None]:
    """Look at a path before it is read, and name the file that Spark cannot read.

    Args:
        path: any URL that Spark reads: a file, a folder or a glob.

    Raises:
        InputError: Spark finds no file of that path or pattern; the path is a folder of folders; or a file cannot be
            read, such as a compressed file that was cut off.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    say(f"reading {path}")
    _check_exists(spark, path)
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        fault = _io_fault(spark, error)
        if fault is None:
            raise
        named = FAILED_FILE.search(str(error))
        raise InputError(f"{local_name(unquote(named[1])) if named else path}: reading failed: {fault}") from error


def _check_exists(spark: Any, path: str) -> None:
    location = spark._jvm.org.apache.hadoop.fs.Path(path)
    files = location.getFileSystem(spark._jsc.hadoopConfiguration())
    found = files.globStatus(location)
    if found is None or len(found) == 0:
        raise InputError(f"{path}: there is no such file")
    for each in found:
        if each.isDirectory():
            _check_folder(files.listStatus(each.getPath()), path)


def _check_folder(listed: Any, path: str) -> None:
    """Raise InputError if a folder has other folders in it.

    Spark lists what is below all of them, which takes minutes for "/", and then reads none of it. Folders named as
    partitions of a table ("day=3") are read.
    """
    for entry in listed:
        name = entry.getPath().getName()
        # Spark reads nothing whose name begins so.
        if entry.isDirectory() and not name.startswith(("_", ".")) and "=" not in name:
            raise InputError(
                f"{path}: expected a file or a folder of files, got a folder with the folder {name!r} in it, whose "
                f"files would not be read; name the files by a pattern, such as {path.rstrip('/')}/*.gz"
            )


def _io_fault(spark: Any, error: Any) -> str | None:
    """Return what the file system or the decompressor said, in the innermost of Java's errors; None: nothing."""
    from py4j.java_gateway import is_instance_of

    java, found = getattr(error, "java_exception", None) or getattr(error, "_origin", None), None
    while java is not None:
        if is_instance_of(spark.sparkContext._gateway, java, "java.io.IOException"):
            found = f"{java.getClass().getSimpleName()}: {java.getMessage()}"
        java = java.getCause()
    return found


def local_name(url: str) -> str:
    """Return the URL of a file without its scheme if that is "file"."""
    return re.sub(r"^file:(//)?", "", url)


def shown(text: str) -> str:
    """Return a text, or its beginning, for messages."""
    return repr(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "...")
