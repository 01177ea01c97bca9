"""Where a model's folder is, and its metadata: through Spark's file systems, or a client's own with Spark Connect.

A client of Spark Connect writes and reads all files itself: the server's paths are those of another machine.
"""

from __future__ import annotations

from typing import Any

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter

from ps2.errors import ConfigError
from ps2.run.spark.backend_lookup import is_connect, with_python
from ps2.run.spark.files import escaped, file_system_of
from ps2.storage.files import remove_folder as remove_tree
from ps2.storage.files import reported, resolve_url, shared_url, write_whole

# What Spark calls the only part of a small text file.
PART = "part-00000"


def located(spark: Any, path: str) -> tuple[str, bool]:
    """Return the URL for fsspec of a path as Spark reads it, and whether it exists."""
    if not isinstance(path, str):
        raise TypeError(f"path: expected a string, got {type(path).__name__}")
    _check_home(path)
    fs, root = resolve_url(path, "path")
    if is_connect(spark):
        return _plain(path), bool(fs.exists(root))
    location, file_system = file_system_of(spark.sparkContext, path)
    url = location.makeQualified(file_system.getUri(), file_system.getWorkingDirectory()).toString()
    return _plain(url), bool(file_system.exists(location))


def _check_home(path: str) -> None:
    """Raise ConfigError for "~/...", which is a folder named "~" to Spark, and the user's home to fsspec."""
    if path.startswith("~"):
        raise ConfigError(
            f"path: expected a path or a URL, got {path!r}, in which Spark takes '~' for a folder's name: "
            "os.path.expanduser(path) is the path in a user's home"
        )


def _plain(url: str) -> str:
    return shared_url(url) if url.startswith("file:") else url


def save_metadata(instance: Any, path: str, spark: Any, extra: dict[str, Any] | None, params: dict[str, Any]) -> None:
    """Write pyspark's description of an object to the folder ``metadata`` in its own."""
    _check_home(path)
    if not is_connect(spark):
        DefaultParamsWriter.saveMetadata(
            instance, path, with_python(spark).sparkContext, extraMetadata=extra, paramMap=params
        )
        return
    write_metadata(instance, path, spark, extra, params)


def write_metadata(instance: Any, path: str, spark: Any, extra: dict[str, Any] | None, params: dict[str, Any]) -> None:
    """Write the same by this process alone."""
    text: str = DefaultParamsWriter._get_metadata_to_save(instance, spark, extra, params)
    fs, root = resolve_url(path)
    with reported(root, "writing the metadata"):
        fs.makedirs(f"{root}/metadata", exist_ok=True)
        write_whole(fs, f"{root}/metadata/{PART}", [f"{text}\n".encode()])
        write_whole(fs, f"{root}/metadata/_SUCCESS", [b""])


def load_metadata(path: str, spark: Any) -> dict[str, Any]:
    """Read what ``save_metadata`` has written, or pyspark."""
    if not is_connect(spark):
        return DefaultParamsReader.loadMetadata(escaped(path), spark.sparkContext)
    fs, root = resolve_url(path)
    with reported(root, "reading the metadata"):
        (part, *_) = sorted(file for file in fs.ls(f"{root}/metadata", detail=False) if "/part-" in file)
        return DefaultParamsReader._parseMetaData(fs.cat_file(part).decode().splitlines()[0])


def remove_folder(path: str) -> None:
    """Remove a folder that another object is saved to."""
    fs, root = resolve_url(path, "path")
    with reported(root, "removing what is there"):
        remove_tree(fs, root)
