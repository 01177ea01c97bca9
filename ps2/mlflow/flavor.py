"""``save_model``, ``log_model`` and ``load_model``, as in ``mlflow.sklearn``: PS2's models in MLflow's format.

A saved model has two flavours: ``ps2``, which ``load_model`` reads, and ``python_function``, which scores pandas
DataFrames without Spark and servers.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import mlflow.artifacts
import mlflow.pyfunc
from mlflow.models import Model
from mlflow.models.model import ModelInfo
from mlflow.models.signature import ModelSignature, infer_signature
from mlflow.types.schema import Array, ColSpec, DataType, Schema, TensorSpec

from ps2.algorithms.frame.model_files import read_local_model, write_local_model
from ps2.algorithms.frame.scoring import FeatureScoring, KeyScoring, PairScoring, Scoring, WordScoring
from ps2.errors import CheckpointMissingError, ConfigError, RecoveryError, UsageError
from ps2.mlflow.predicting import EXPORT, MODEL, _load_pyfunc, output_types, write_scoring
from ps2.storage.files import recovery_errors, remove_folder, resolve_url
from ps2.version import __version__

FLAVOR = "ps2"
# The module of ``_load_pyfunc``, and the name of the folder that it reads.
LOADER, DATA = "ps2.mlflow.predicting", "ps2"
TYPES: Mapping[str, Any] = {
    "double": DataType.double,
    "float": DataType.float,
    "integer": DataType.integer,
    "vector": Array(DataType.double),
}


def save_model(  # noqa: PLR0913 - most of them are keywords
    model: Any,
    path: str,
    *,
    mlflow_model: Model | None = None,
    signature: ModelSignature | bool | None = None,
    input_example: Any = None,
    pip_requirements: Sequence[str] | str | None = None,
    extra_pip_requirements: Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    sharedDir: str | None = None,
) -> None:
    """Save a trained model to a local folder in MLflow's format.

    Args:
        model: a trained model, from ``fit`` or ``load``.
        path: local folder that does not exist yet, or is empty.
        mlflow_model: the ``mlflow.models.Model`` to which the flavours are added; None: a new model.
        signature: the signature; False: none; None: inferred from ``input_example`` or, without an example, from the
            columns of the model's params.
        input_example: rows as a pandas DataFrame.
        pip_requirements: requirements instead of ``ps2-spark`` of this version, which requires NumPy, pandas etc.
        extra_pip_requirements: requirements in addition to ``ps2-spark``.
        metadata: metadata to save with the model.
        sharedDir: a folder or fsspec URL that this process and all servers can access. It is needed if the weights are
            on servers on other hosts, which write them there; the files are then moved to ``path``.

    Raises:
        ConfigError: ``model`` is not a trained model of PS2 but, for example, a pipeline; or servers wrote its weights
            to a folder that this process cannot access.
        UsageError: the model cannot predict without Spark and servers; the message says what to log instead.
    """
    if pip_requirements is not None and extra_pip_requirements is not None:
        raise ConfigError("expected pip_requirements or extra_pip_requirements, got both")
    scoring = _scoring(model)
    target = Model() if mlflow_model is None else mlflow_model
    if signature is None and input_example is None:
        signature = _signature(scoring)
    with tempfile.TemporaryDirectory(prefix="ps2-mlflow-") as temporary:
        folder = Path(temporary) / DATA
        folder.mkdir()
        _write(model, scoring, folder, sharedDir)
        if signature is None:
            signature = infer_signature(input_example, _load_pyfunc(str(folder)).predict(input_example))
        target.add_flavor(
            FLAVOR,
            ps2_version=__version__,
            family=type(model).__name__.removesuffix("Model"),
            model_class=f"{type(model).__module__}.{type(model).__name__}",
            data=f"data/{DATA}/{MODEL}",
        )
        mlflow.pyfunc.save_model(
            path,
            loader_module=LOADER,
            data_path=str(folder),
            mlflow_model=target,
            signature=signature,
            input_example=input_example,
            pip_requirements=pip_requirements or [f"ps2-spark=={__version__}", *(extra_pip_requirements or [])],
            metadata=None if metadata is None else dict(metadata),
        )


def log_model(  # noqa: PLR0913 - most of them are keywords
    model: Any,
    name: str | None = None,
    *,
    artifact_path: str | None = None,
    registered_model_name: str | None = None,
    run_id: str | None = None,
    signature: ModelSignature | bool | None = None,
    input_example: Any = None,
    pip_requirements: Sequence[str] | str | None = None,
    extra_pip_requirements: Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    sharedDir: str | None = None,
) -> ModelInfo:
    """Log a trained model to MLflow, and to the active run if there is one, as ``mlflow.sklearn.log_model`` does.

    Args:
        model: a trained model, from ``fit`` or ``load``.
        name: name of the logged model; None: "model".
        artifact_path: the name of this argument in MLflow 2.
        registered_model_name: registers the model as a new version of this name.
        run_id: the run to log to, instead of the active run.
        signature, input_example, pip_requirements, extra_pip_requirements, metadata, sharedDir: see ``save_model``.

    Returns:
        MLflow's ``ModelInfo``: ``mlflow.pyfunc.load_model(info.model_uri)`` scores DataFrames.

    Raises:
        ConfigError, UsageError: the errors of ``save_model``, before a run begins.
        MlflowException: the tracking server refuses the model.
    """
    _scoring(model)
    model_name = name or artifact_path or "model"
    # MLflow 3 has renamed the argument.
    is_mlflow_3 = int(mlflow.__version__.partition(".")[0]) >= 3
    names = {"artifact_path": None, "name": model_name} if is_mlflow_3 else {"artifact_path": model_name}
    info: ModelInfo = Model.log(
        **names,
        flavor=_Flavor,
        registered_model_name=registered_model_name,
        run_id=run_id,
        metadata=None if metadata is None else dict(metadata),
        model=model,
        signature=signature,
        input_example=input_example,
        pip_requirements=pip_requirements,
        extra_pip_requirements=extra_pip_requirements,
        sharedDir=sharedDir,
    )
    return info


def load_model(model_uri: str, dst_path: str | None = None) -> Any:
    """Load a model that ``save_model`` or ``log_model`` wrote, as ``fit`` returned it.

    It starts a SparkSession if there is none. It needs an active PS2Context if the model's weights belong on servers.

    Args:
        model_uri: a local folder, or ``models:/name/version``, ``runs:/run_id/model``...
        dst_path: local folder for the files; None: a temporary one.

    Raises:
        CheckpointMissingError: there is no flavour ``ps2``.
        CheckpointCorruptError: the files have changed since they were written.
        StoppedError: the weights belong on servers, and no PS2Context is active.
        MlflowException: there is no such model.
    """
    folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=model_uri, dst_path=dst_path))
    content = Model.load(str(folder)).flavors.get(FLAVOR)
    if content is None:
        raise CheckpointMissingError(f"{model_uri}: expected a model with the flavour {FLAVOR!r}, got one without it")
    module, _, name = str(content["model_class"]).rpartition(".")
    if not module.startswith("ps2."):
        raise CheckpointMissingError(f"{model_uri}: expected a model of ps2, got a {content['model_class']}")
    return read_local_model(getattr(import_module(module), name), str(folder / content["data"]))


# The flavour for ``Model.log``, under the name that MLflow shows.
_Flavor = type(FLAVOR, (), {"save_model": staticmethod(save_model)})


def _scoring(model: Any) -> Scoring:
    """Return a model's scoring; raise ConfigError or UsageError if the model cannot be logged."""
    name = type(model).__name__
    if hasattr(model, "stages"):
        raise ConfigError(
            f"model: expected a model of PS2, got a {name}: log one of its stages (stages[-1]), or the "
            "pipeline with mlflow.spark.log_model"
        )
    if hasattr(model, "bestModel"):
        raise ConfigError(f"model: expected a model of PS2, got a {name}: log its bestModel")
    if name == "TorchModel":
        raise UsageError("TorchModel: log its module with mlflow.pytorch.log_model, and save its tables with save")
    if not hasattr(model, "scoring"):
        raise ConfigError(f"model: expected a trained model of PS2, got a {name}")
    scoring: Scoring = model.scoring()
    output_types(scoring)
    return scoring


def _write(model: Any, scoring: Scoring, folder: Path, shared: str | None) -> None:
    """Write all files of a model to a local folder."""
    with _reachable(folder, shared) as url:
        write_local_model(model, f"{url}/{MODEL}")
        if isinstance(scoring, KeyScoring):
            model.export(f"{url}/{EXPORT}")
    write_scoring(folder, scoring)
    if isinstance(scoring, KeyScoring) or _is_on_servers(model):
        try:
            _load_pyfunc(str(folder))
        except RecoveryError as error:
            raise ConfigError(
                f"sharedDir: expected a folder or URL that this process and all servers reach, got {shared}: "
                f"this process cannot read the weights that servers wrote: {error}"
            ) from error


@contextmanager
def _reachable(folder: Path, shared: str | None) -> Iterator[str]:
    """Yield the folder to write to: ``folder``, or a folder in ``shared``, whose files are then moved to ``folder``."""
    if shared is None:
        yield str(folder)
        return
    url = f"{shared.rstrip('/')}/ps2-mlflow-{uuid.uuid4().hex[:12]}"
    is_written = False
    try:
        yield url
        is_written = True
    finally:
        fs, root = resolve_url(url, "sharedDir")
        with recovery_errors(root, "moving the model"):
            for name in fs.find(root) if is_written else ():  # fs.get would treat names as glob patterns
                target = folder / name.removeprefix(root).lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                fs.get_file(name, str(target))
            if fs.exists(root):
                remove_folder(fs, root)


def _is_on_servers(model: Any) -> bool:
    try:
        return hasattr(model, "weightVector")
    except UsageError:  # the weights are arrays in this process
        return False


def _signature(scoring: Scoring) -> ModelSignature:
    """Return the signature that follows from the model's column names."""
    inputs = _inputs(scoring)
    outputs = Schema([ColSpec(TYPES[kind], name) for name, kind in output_types(scoring).items()])
    return ModelSignature(Schema(inputs) if inputs else None, outputs)


def _inputs(scoring: Scoring) -> list[ColSpec | TensorSpec]:
    if isinstance(scoring, FeatureScoring):
        is_vector = isinstance(scoring.features, str)
        kind, required = TYPES["vector" if is_vector else "double"], is_vector or not scoring.missing
        names = [scoring.features] if isinstance(scoring.features, str) else scoring.features
        margin = () if scoring.margin is None else (scoring.margin,)
        return [
            *(ColSpec(kind, name, required=required) for name in names),
            *(ColSpec(DataType.double, name) for name in margin),
        ]
    if isinstance(scoring, WordScoring):
        return [ColSpec(Array(DataType.string), scoring.column)]
    if isinstance(scoring, PairScoring):
        columns = zip((scoring.first, scoring.second), scoring.integers, strict=True)
        return [ColSpec(DataType.long if is_integer else DataType.string, name) for name, is_integer in columns]
    return []  # columns of keys can have any type, so there is no schema
