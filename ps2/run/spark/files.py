"""Files that Spark reads, through Hadoop or (in a driver without Java) fsspec; broadcast values in files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import cloudpickle

from ps2.errors import ConfigError
from ps2.storage.files import recovery_errors, resolve_url


def escaped(path: str) -> str:
    """Return a Hadoop glob pattern that matches only this path. An unescaped comma would separate two paths."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", path).replace(",", r"{\,}")


def file_system_of(spark_context: Any, path: str) -> tuple[Any, Any]:
    """Return Hadoop's Path and FileSystem (Java objects) of a path."""
    jvm = spark_context._jvm
    location = jvm.org.apache.hadoop.fs.Path(path)
    system = location.getFileSystem(spark_context._jsc.hadoopConfiguration())
    if not path.isascii() and system.getUri().getScheme() == "file":
        # In the locale C, Python encodes paths in UTF-8, but Java uses another encoding and does not find the file.
        encoding = jvm.java.lang.System.getProperty("sun.jnu.encoding")
        net = jvm.java.net
        if encoding is not None and net.URLDecoder.decode(net.URLEncoder.encode(path, encoding), encoding) != path:
            raise ConfigError(
                f"path: expected characters of the locale's encoding, {encoding} for Spark's Java, got {path!a}: set "
                "LC_ALL=C.UTF-8"
            )
    return location, system


@dataclass(frozen=True)
class HadoopFiles:
    """Files as Spark's Java process sees them; see ``CheckpointFiles``."""

    context: Any

    def exists(self, path: str) -> bool:
        location, system = file_system_of(self.context, path)
        return bool(system.exists(location))

    def exists_uri(self, uri: str) -> bool:
        jvm = self.context._jvm
        location = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(uri))
        return bool(location.getFileSystem(self.context._jsc.hadoopConfiguration()).exists(location))

    def names(self, folder: str) -> list[str]:
        location, system = file_system_of(self.context, folder)
        statuses = system.listStatus(location) if system.exists(location) else []
        return [status.getPath().getName() for status in statuses]

    def text(self, path: str) -> str:
        location, system = file_system_of(self.context, path)
        stream = system.open(location)
        try:
            text: str = self.context._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            return text
        finally:
            stream.close()

    def delete(self, path: str) -> bool:
        location, system = file_system_of(self.context, path)
        return bool(system.delete(location, False))


class ClientFiles:
    """Files as this process sees them; see ``CheckpointFiles``."""

    def exists(self, path: str) -> bool:
        fs, root = resolve_url(path)
        with recovery_errors(path, "reading"):
            return bool(fs.exists(root))

    def exists_uri(self, uri: str) -> bool:
        return self.exists(unquote(uri))

    def names(self, folder: str) -> list[str]:
        fs, root = resolve_url(folder)
        with recovery_errors(folder, "listing"):
            fs.invalidate_cache()
            entries = fs.ls(root, detail=False) if fs.exists(root) else []
        return [entry.rstrip("/").rpartition("/")[2] for entry in entries]

    def text(self, path: str) -> str:
        fs, root = resolve_url(path)
        with recovery_errors(path, "reading"), fs.open(root, "rb") as file:
            content: bytes = file.read()
        return content.decode()

    def delete(self, path: str) -> bool:
        """Delete a file, and the file with its checksum, which Hadoop writes on local disks."""
        fs, root = resolve_url(path)
        folder, _, name = root.rpartition("/")
        with recovery_errors(path, "deleting"):
            for file in (root, f"{folder}/.{name}.crc"):
                if fs.exists(file):
                    fs.rm_file(file)
            return not fs.exists(root)


# The maximum number of broadcast values that a Python worker caches.
MAX_CACHED_VALUES = 4


class BroadcastFile:
    """A broadcast value in a file of the session, which Spark sends to each executor once. Only its name is pickled."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._value: tuple[Any] | None = None

    @classmethod
    def write(cls, folder: Path, name: str, value: Any) -> BroadcastFile:
        """Write a value to a file in a folder, from which the caller uploads it."""
        (folder / name).write_bytes(cloudpickle.dumps(value))
        file = cls(name)
        file._value = (value,)
        return file

    @property
    def value(self) -> Any:
        return _read(self.name) if self._value is None else self._value[0]

    def unpersist(self) -> None:
        """Do nothing: files of a session are deleted with the session."""

    def __reduce__(self) -> tuple[type[BroadcastFile], tuple[str]]:
        return BroadcastFile, (self.name,)


@lru_cache(maxsize=MAX_CACHED_VALUES)
def _read(name: str) -> Any:
    from ps2.client.task import shipped_folder

    folder = shipped_folder()
    assert folder is not None, "only tasks read broadcast values from files"
    return cloudpickle.loads(Path(folder, name).read_bytes())
