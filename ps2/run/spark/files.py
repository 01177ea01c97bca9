"""Files as Spark reads them, through Hadoop or, in a driver without Java, through fsspec; values that tasks share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import cloudpickle

from ps2.errors import ConfigError
from ps2.storage.files import reported, resolve_url


def escaped(path: str) -> str:
    """Return the pattern of Hadoop that only this path matches; a comma in it does not separate paths, either."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", path).replace(",", r"{\,}")


def file_system_of(spark_context: Any, path: str) -> tuple[Any, Any]:
    """Return Hadoop's Path and FileSystem (Java objects) of a path as Spark reads it."""
    jvm = spark_context._jvm
    location = jvm.org.apache.hadoop.fs.Path(path)
    system = location.getFileSystem(spark_context._jsc.hadoopConfiguration())
    if not path.isascii() and system.getUri().getScheme() == "file":
        # Python takes UTF-8 in the locale C, and Java does not: to Java, there is no such file.
        encoding = jvm.java.lang.System.getProperty("sun.jnu.encoding")
        net = jvm.java.net
        if encoding is not None and net.URLDecoder.decode(net.URLEncoder.encode(path, encoding), encoding) != path:
            raise ConfigError(
                f"path: expected one in the locale's encoding, {encoding} for Spark's Java, got {path!a}: set "
                "LC_ALL=C.UTF-8"
            )
    return location, system


@dataclass(frozen=True)
class HadoopFiles:
    """Files as Spark's Java process sees them; see ``CheckpointFiles``. Hadoop keeps checksums beside local files."""

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
        with reported(path, "reading"):
            return bool(fs.exists(root))

    def exists_uri(self, uri: str) -> bool:
        return self.exists(unquote(uri))

    def names(self, folder: str) -> list[str]:
        fs, root = resolve_url(folder)
        with reported(folder, "listing"):
            fs.invalidate_cache()
            entries = fs.ls(root, detail=False) if fs.exists(root) else []
        return [entry.rstrip("/").rpartition("/")[2] for entry in entries]

    def text(self, path: str) -> str:
        fs, root = resolve_url(path)
        with reported(path, "reading"), fs.open(root, "rb") as file:
            content: bytes = file.read()
        return content.decode()

    def delete(self, path: str) -> bool:
        """Delete a file, and the checksum that Hadoop keeps beside it on local disks."""
        fs, root = resolve_url(path)
        folder, _, name = root.rpartition("/")
        with reported(path, "deleting"):
            for one in (root, f"{folder}/.{name}.crc"):
                if fs.exists(one):
                    fs.rm_file(one)
            return not fs.exists(root)


# Limit of the values in the memory of one Python worker.
MAX_VALUES = 4


class BroadcastFile:
    """A value in a file that Spark brings to each executor once. Pickled, it is the file's name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._value: tuple[Any] | None = None

    @classmethod
    def written(cls, folder: Path, name: str, value: Any) -> BroadcastFile:
        """Write a value to a file in a folder."""
        (folder / name).write_bytes(cloudpickle.dumps(value))
        file = cls(name)
        file._value = (value,)
        return file

    @property
    def value(self) -> Any:
        return _read(self.name) if self._value is None else self._value[0]

    def unpersist(self) -> None:
        """Nothing: files of a session go with it."""

    def __reduce__(self) -> tuple[type[BroadcastFile], tuple[str]]:
        return BroadcastFile, (self.name,)


@lru_cache(maxsize=MAX_VALUES)
def _read(name: str) -> Any:
    from ps2.client.task import shipped_folder

    folder = shipped_folder()
    assert folder is not None, "only tasks read what the driver shares"
    return cloudpickle.loads(Path(folder, name).read_bytes())
