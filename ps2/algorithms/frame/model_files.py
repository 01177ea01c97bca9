"""Save and load estimators and models in folders that contain pyspark's metadata and a model's arrays.

Each model class writes and reads its content: ``_write_content(url)`` and ``_read_content(path, url, content)``. The
metadata, which describe the content, are written last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pyspark.ml.linalg import DenseMatrix, Matrix, Vector
from pyspark.ml.param import TypeConverters
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, GeneralMLWriter, MLReader, MLWriter

from ps2.algorithms.frame.array_files import KEY
from ps2.algorithms.frame.array_files import load_metadata as read_metadata
from ps2.errors import CheckpointMissingError, ConfigError, RecoveryError, UsageError
from ps2.run.spark.backend_lookup import active_session, is_connect, with_python
from ps2.run.spark.files import escaped, file_system_of
from ps2.storage.files import recovery_errors, remove_folder, resolve_url, shared_url, write_atomically

# Spark's name for the only part of a small text file.
PART = "part-00000"


def locate(spark: Any, path: str) -> tuple[str, bool]:
    """Return the fsspec URL of a path, resolved as Spark does, and whether the path exists."""
    if not isinstance(path, str):
        raise TypeError(f"path: expected a string, got {type(path).__name__}")
    _check_no_tilde(path)
    fs, root = resolve_url(path, "path")
    if is_connect(spark):
        return _without_file_scheme(path), bool(fs.exists(root))
    location, file_system = file_system_of(spark.sparkContext, path)
    url = location.makeQualified(file_system.getUri(), file_system.getWorkingDirectory()).toString()
    return _without_file_scheme(url), bool(file_system.exists(location))


def _check_no_tilde(path: str) -> None:
    """Raise ConfigError for "~/...": Spark takes "~" for the name of a folder, and fsspec for the user's home."""
    if path.startswith("~"):
        raise ConfigError(
            f"path: expected a path or a URL, got {path!r}, in which Spark takes '~' for a folder's name: "
            "use os.path.expanduser(path) for a path in your home"
        )


def _without_file_scheme(url: str) -> str:
    return shared_url(url) if url.startswith("file:") else url


def save_metadata(instance: Any, path: str, spark: Any, extra: dict[str, Any] | None, params: dict[str, Any]) -> None:
    """Write an object's metadata in pyspark's format to the subfolder ``metadata`` of its folder."""
    _check_no_tilde(path)
    if not is_connect(spark):
        DefaultParamsWriter.saveMetadata(
            instance, path, with_python(spark).sparkContext, extraMetadata=extra, paramMap=params
        )
        return
    write_metadata(instance, path, spark, extra, params)


def write_metadata(instance: Any, path: str, spark: Any, extra: dict[str, Any] | None, params: dict[str, Any]) -> None:
    """Write the same metadata as ``save_metadata``, but by this process instead of by Spark."""
    text: str = DefaultParamsWriter._get_metadata_to_save(instance, spark, extra, params)
    fs, root = resolve_url(path)
    with recovery_errors(root, "writing the metadata"):
        fs.makedirs(f"{root}/metadata", exist_ok=True)
        write_atomically(fs, f"{root}/metadata/{PART}", [f"{text}\n".encode()])
        write_atomically(fs, f"{root}/metadata/_SUCCESS", [b""])


def load_metadata(path: str, spark: Any) -> dict[str, Any]:
    """Read metadata that ``save_metadata`` or pyspark has written."""
    if not is_connect(spark):
        return DefaultParamsReader.loadMetadata(escaped(path), spark.sparkContext)
    fs, root = resolve_url(path)
    with recovery_errors(root, "reading the metadata"):
        (part, *_) = sorted(file for file in fs.ls(f"{root}/metadata", detail=False) if "/part-" in file)
        return DefaultParamsReader._parseMetaData(fs.cat_file(part).decode().splitlines()[0])


class _Overwriting(MLWriter):
    """Replaces a folder. A client of Spark Connect has no JVM for this, so it removes the folder itself."""

    def _handleOverwrite(self, path: str) -> None:
        if not is_connect(self.sparkSession):
            super()._handleOverwrite(path)
        elif locate(self.sparkSession, path)[1]:
            fs, root = resolve_url(path, "path")
            with recovery_errors(root, "removing the files in it"):
                remove_folder(fs, root)


class ModelWriter(_Overwriting):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def saveImpl(self, path: str) -> None:
        """Write the model to a new folder.

        Raises:
            UsageError: the folder exists.
            RecoveryError: the files cannot be written.
        """
        url, exists = locate(self.sparkSession, path)
        if exists:
            raise UsageError(f"{path}: there is something already; write().overwrite().save(path) replaces it")
        content = self._model._write_content(url)
        params = _as_json(self._model)
        save_metadata(self._model, path, self.sparkSession, {KEY: content}, params)


class ExportingWriter(ModelWriter, GeneralMLWriter):
    """Writes a model; with ``format("pmml")``, pyspark.ml writes the model that ``toPyspark`` returns."""

    source = "internal"

    def saveImpl(self, path: str) -> None:
        """Write the model; pyspark.ml writes all formats except "internal".

        Raises:
            UsageError: the model has too many weights for the driver, so pyspark.ml cannot hold it.
        """
        if self.source == "internal":
            return super().saveImpl(path)
        writer = self._model.toPyspark().write().format(self.source)
        for name, value in self.optionMap.items():
            writer.option(name, value)
        return writer.save(path)


class ModelReader(MLReader[Any]):
    def __init__(self, cls: Any) -> None:
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> Any:
        """Read a model.

        Raises:
            CheckpointMissingError: the folder holds no model.
            UsageError: the model has another class or an unknown version.
            CheckpointCorruptError: the files do not match the metadata.
            StoppedError: the model's weights must be loaded onto servers, and no PS2Context is active.
        """
        metadata = _metadata(self.sparkSession, path, self._cls)
        url, _ = locate(self.sparkSession, path)
        return _build_model(self._cls, path, url, metadata)


def write_local_model(model: Any, path: str) -> None:
    """Write a model to a new folder, local or an fsspec URL. Only this process needs access to it."""
    content = model._write_content(path)
    write_metadata(model, path, active_session(), {KEY: content}, _as_json(model))


def read_local_model(cls: Any, path: str) -> Any:
    """Read what ``write_local_model`` wrote; raises like ``ModelReader.load``."""
    metadata = read_metadata(path)
    _check_class(path, metadata, cls)
    return _build_model(cls, path, path, metadata)


def _build_model(cls: Any, path: str, url: str, metadata: dict[str, Any]) -> Any:
    model = cls(cls._read_content(path, url, metadata.get(KEY)))
    model._resetUid(metadata["uid"])
    _set_params(model, metadata)
    return model


class EstimatorWriter(_Overwriting, DefaultParamsWriter):
    def saveImpl(self, path: str) -> None:
        save_metadata(self.instance, path, self.sparkSession, None, _as_json(self.instance))


class EstimatorReader(DefaultParamsReader[Any]):
    def __init__(self, cls: type) -> None:
        super().__init__(cls)

    def load(self, path: str) -> Any:
        """Read an estimator.

        Raises:
            CheckpointMissingError: the folder holds no estimator.
            UsageError: the estimator has another class.
        """
        metadata = _metadata(self.sparkSession, path, self.cls)
        estimator: Any = self.cls()
        estimator._resetUid(metadata["uid"])
        _set_params(estimator, metadata)
        return estimator


def _as_json(instance: Any) -> dict[str, Any]:
    """Return the params that are set, and not to None, as plain data: vectors as lists, matrices as lists of rows."""
    return {
        param.name: value.toArray().tolist() if isinstance(value, (Vector, Matrix)) else value
        for param, value in instance._paramMap.items()
        if value is not None
    }


def _set_params(instance: Any, metadata: dict[str, Any]) -> None:
    for name, value in metadata["paramMap"].items():
        if instance.getParam(name).typeConverter is TypeConverters.toMatrix:
            rows = np.array(value, np.float64)
            matrix = DenseMatrix(rows.shape[0], rows.shape[1], rows.reshape(-1), isTransposed=True)
            metadata["paramMap"][name] = matrix
    # Some versions of pyspark have params that other versions lack; their defaults are ignored.
    metadata["defaultParamMap"] = {
        name: value for name, value in metadata["defaultParamMap"].items() if instance.hasParam(name)
    }
    DefaultParamsReader.getAndSetParams(instance, metadata)


def _metadata(spark: Any, path: str, cls: type) -> dict[str, Any]:
    """Read an object's metadata, and check that they are of this class; raises like ``ModelReader.load``."""
    expected = f"{cls.__module__}.{cls.__name__}"
    resolve_url(path, "path")
    if not locate(spark, f"{path}/metadata")[1]:
        raise CheckpointMissingError(f"{path}: expected a {expected}, but it has no folder metadata")
    metadata = load_metadata(path, spark)
    _check_class(path, metadata, cls)
    return metadata


def _check_class(path: str, metadata: dict[str, Any], cls: type) -> None:
    """Raise UsageError if metadata are of another class. Its module may differ, as in earlier versions of PS2."""
    module, _, name = str(metadata.get("class")).rpartition(".")
    if name != cls.__name__ or module.partition(".")[0] != cls.__module__.partition(".")[0]:
        raise UsageError(f"{path}: expected a {cls.__module__}.{cls.__name__}, got a {metadata.get('class')}")


def prepare_folder(spark: Any, path: str, overwrite: bool) -> None:
    """Make a model's folder before the training; raise ConfigError if it cannot be made, or has files to keep."""
    url, exists = locate(spark, path)
    fs, root = resolve_url(url)
    if exists and not overwrite and (fs.isfile(root) or fs.ls(root)):
        raise ConfigError(f"{path}: there is something already, which only --overwrite replaces")
    try:
        with recovery_errors(root, "making the folder"):
            fs.makedirs(root, exist_ok=True)
    except RecoveryError as error:
        raise ConfigError(f"{path}: no model can be saved here: {error}") from error
