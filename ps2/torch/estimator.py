"""``TorchEstimator`` and ``TorchModel``: pyspark.ml's API for the user's PyTorch modules."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
import xxhash
from pyspark.ml import Estimator, Model
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

from ps2.algorithms.frame.dealing import check_workers, count_rows, deal_rows
from ps2.algorithms.frame.estimator import TrainingEstimator
from ps2.algorithms.frame.frames import check_frame
from ps2.algorithms.frame.params import ByName
from ps2.algorithms.frame.retry import retry_after_server_loss
from ps2.algorithms.frame.settings import positional
from ps2.algorithms.frame.summaries import HistorySummary
from ps2.algorithms.frame.tables import check_held_out, column, field
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.record import StepReport
from ps2.algorithms.training.table import Table
from ps2.client.embedding_table import EmbeddingTable
from ps2.client.fleet import lending
from ps2.client.task import task_context
from ps2.coordinator.context import PS2Context
from ps2.errors import CheckpointCorruptError, CheckpointMissingError, ConfigError, DTypeError, InputError, UsageError
from ps2.run.spark.backend_lookup import backend_of, cores_each, with_python
from ps2.storage.files import read_json, recovery_errors, resolve_url, write, write_json
from ps2.torch.columns import read_tensors
from ps2.torch.device import batch_to, choose_device, copy_out
from ps2.torch.optimizer import RemoteOptimizer
from ps2.torch.settings import TorchSettings
from ps2.torch.training import ModuleProgram, TorchOptions, TrainedModule, output_width, remote_embeddings, train

Function = Callable[..., Any]


class TorchEstimator(TorchSettings, TrainingEstimator, Estimator["TorchModel"]):
    """Trains a PyTorch module on a DataFrame: rows stay in the workers, parameters on the servers.

    Example::

        def model():
            return ClickNet(RemoteEmbedding(EmbeddingTable(16, lr=0.05), mode="sum"))


        estimator = TorchEstimator(model, BCEWithLogitsLoss(), inputCols=["keys", "price"], labelCol="click")
        estimator.setParams(batchSize=4096, epochs=2).fit(df).transform(df).select("prediction")

    The module gets one tensor for each of ``inputCols``: int64 for integers, float32 for other numbers; of shape
    (rows,), or (rows, w) for arrays and vectors of length w; ``Bags`` for ``raggedCols``. Labels have the same form.
    Tables of ``RemoteEmbedding`` are on the servers. All other parameters are there in a ``RemoteOptimizer``. In each
    clock, each worker takes one step with a minibatch of its rows.
    """

    # From these fields and the settings, type checkers derive ``__init__``.
    modelFn: Function = positional(kw_only=False)
    lossFn: Function = positional(kw_only=False)
    outputFn: Function | None = positional(kw_only=False, default=None)

    if not TYPE_CHECKING:

        def __init__(
            self,
            modelFn: Function,
            lossFn: Function,
            outputFn: Function | None = None,
            **params: Any,
        ) -> None:
            """Describe a training.

            Args:
                modelFn: called without arguments in the driver, once in each fit, with an active PS2Context. It returns
                    a picklable module, whose output is a tensor of shape (rows,) or (rows, w).
                lossFn: called with the module's output and the labels; returns the mean loss of the rows, a tensor
                    without axes.
                outputFn: called with the module's output; returns the predictions, such as ``torch.sigmoid``. None: the
                    output is the predictions.
                params: params of this estimator, by name.

            Raises:
                DTypeError: an argument is not a function.
            """
            super().__init__(**params)
            for name, function in (("modelFn", modelFn), ("lossFn", lossFn), ("outputFn", outputFn)):
                if not callable(function) and not (name == "outputFn" and function is None):
                    raise DTypeError(f"{name}: expected a function, got {function!r}")
            self.modelFn, self.lossFn, self.outputFn = modelFn, lossFn, outputFn

    def write(self) -> Any:
        """Raise UsageError: an estimator cannot be saved, because its functions cannot be written to files."""
        raise UsageError("TorchEstimator: modelFn and lossFn cannot be saved; the model can: model.save(path)")

    def _fit(self, dataset: DataFrame) -> TorchModel:
        self._check_frame(dataset)
        self._check()
        inputs = _inputs(self)
        columns = [_numbers(dataset, name).alias(name) for name in (*inputs, self.getLabelCol())]
        held_out, patience = self._if_set("validationIndicatorCol"), 0
        if held_out is not None:
            check_held_out(dataset, held_out)
            if self.getStaleness():
                raise ConfigError(f"staleness: expected 0 with rows held out, got {self.getStaleness()}")
            if held_out in (*inputs, self.getLabelCol()):
                raise InputError(f"validationIndicatorCol: expected no input and no label, got {held_out!r}")
            columns.append(F.coalesce(column(held_out).cast("boolean").cast("int"), F.lit(-1)).alias(held_out))
            patience = self.getPatience()
        rows = dataset.select(*columns)
        context = backend_of(dataset)
        num_workers = self.getNumWorkers() if self.isSet(self.numWorkers) else None
        check_workers(context, num_workers)
        loads = count_rows(rows)
        workers = min(num_workers or min(len(loads), cores_each(context, 1)), sum(load.rows for load in loads.values()))
        rows = deal_rows(rows, loads, workers, F.lit(1.0))
        options = TorchOptions(
            inputs,
            tuple(self.getRaggedCols()),
            self.getLabelCol(),
            self.getBatchSize(),
            self.getEpochs(),
            self.getStaleness(),
            self._seed,
            cores_each(context, workers),
            held_out or "",
            patience,
            self.getValidationTol(),
            self.getDevice(),
        )
        table = Table(rows, ColumnNames(inputs, self.getLabelCol()), workers)

        def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> TrainedModule:
            return train(ps, table.frame_for_run, workers, self._program(options), on_step)

        trained = retry_after_server_loss(lambda: self._train_in_context(table, self.getEpochs(), run))
        model = TorchModel(trained.module, trained.width, self.outputFn)._resetUid(self.uid)
        model = self._copyValues(model)
        model._summary = HistorySummary(trained.history)
        return model

    def _program(self, options: TorchOptions) -> ModuleProgram:
        module = self.modelFn()
        if not isinstance(module, torch.nn.Module):
            raise ConfigError(f"modelFn: expected a function that returns a torch.nn.Module, got {module!r}")
        dense = [param for param in module.parameters() if param.requires_grad]
        for name, child in remote_embeddings(module) if options.patience else ():
            if not child.table.withCopy:
                raise ConfigError(
                    f"patience: to keep the best epoch's model, the table of {name!r} needs room for a copy: make it "
                    "with EmbeddingTable(withCopy=True), or set patience to 0"
                )
        optimizer = None
        if dense:
            optimizer = RemoteOptimizer(dense, self.getOptimizer(), self.getLr(), withCopy=options.patience > 0)
        return ModuleProgram(module, optimizer, self.lossFn, options)


class TorchModel(TorchSettings, ByName, Model):
    """A trained PyTorch module, from ``TorchEstimator``. The module's tables stay on the servers."""

    def __init__(self, module: Any, width: int | None = None, outputFn: Function | None = None) -> None:
        """Wrap a module.

        Args:
            module: a trained module.
            width: w if the module's output has shape (rows, w); None if it has shape (rows,).
            outputFn: see ``TorchEstimator``.
        """
        super().__init__()
        self.module, self.width, self.outputFn = module, width, outputFn
        self._summary: HistorySummary | None = None

    @property
    def hasSummary(self) -> bool:
        """True if the model has a ``summary``: after ``fit``, not after ``load``."""
        return self._summary is not None

    @property
    def summary(self) -> HistorySummary:
        """The history of the training. A step is one clock: each worker has used one minibatch.

        Raises:
            RuntimeError: the model was loaded.
        """
        if self._summary is None:
            raise RuntimeError("No training summary available for this TorchModel")
        return self._summary

    def save(self, path: str) -> None:
        """Write the module's ``state_dict`` and its tables to a new folder.

        Args:
            path: a path or any fsspec URL that the servers and the driver can write to.

        Raises:
            UsageError: something exists at this path.
            RecoveryError: the files cannot be written.
        """
        inputs = self.getInputCols() if self.isDefined(self.inputCols) else None
        save_module(
            path,
            self.module,
            {"width": self.width, "inputCols": inputs, "raggedCols": self.getRaggedCols(), "uid": self.uid},
        )

    @classmethod
    def load(cls, path: str, modelFn: Function, outputFn: Function | None = None) -> TorchModel:
        """Read what ``save`` wrote, and create its tables on the servers of the active PS2Context.

        Args:
            path: the folder, which the servers and the driver can read.
            modelFn: returns a module with the same parameters and remote embeddings; the files contain no code.
            outputFn: see ``TorchEstimator``.

        Raises:
            CheckpointMissingError: there is no model at this path.
            CheckpointCorruptError: a file does not match the manifest.
            UsageError: ``modelFn`` returns a module with other parameters or remote embeddings.
        """
        module, record = load_module(path, modelFn)
        model = cls(module, record["width"], outputFn)._resetUid(record["uid"])
        if record["inputCols"] is not None:
            model.setInputCols(record["inputCols"])
        model._set(raggedCols=record["raggedCols"])
        return model

    def free(self) -> None:
        """Free the module's tables on the servers."""
        tables = {child.table.matrix.number: child.table for _, child in remote_embeddings(self.module)}
        for table in tables.values():
            table.free()

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_frame(dataset)
        inputs, output = _inputs(self), self.getPredictionCol()
        if output in dataset.columns:
            raise InputError(f"column {output!r}: it is there already; choose another name for the predictions")
        kind = "double" if self.width is None or self.width == 1 else "array<double>"
        columns = inputs, tuple(self.getRaggedCols())
        predict = _predictor(self.module, self.outputFn, columns, kind, self.getDevice())
        inputs_column = F.struct(*(_numbers(dataset, name).alias(f"c{index}") for index, name in enumerate(inputs)))
        with lending(backend_of(dataset).loan):
            return with_python(dataset).select("*", predict(inputs_column).alias(output))


def _inputs(params: Any) -> tuple[str, ...]:
    if not params.isDefined(params.inputCols) or not params.getInputCols():
        raise InputError("inputCols: expected the names of the module's input columns, got none")
    inputs = tuple(params.getInputCols())
    if unknown := [name for name in params.getRaggedCols() if name not in inputs]:
        raise InputError(f"raggedCols: expected some of inputCols, {', '.join(inputs)}, got {unknown[0]!r}")
    return inputs


def _numbers(frame: DataFrame, name: str) -> Column:
    """Return a column. Vectors are converted to arrays, which Arrow reads faster."""
    has_vectors = isinstance(field(frame, name).dataType, VectorUDT)
    return vector_to_array(column(name), "float32") if has_vectors else column(name)


def _predictor(
    module: Any, output_fn: Function | None, columns: tuple[tuple[str, ...], ...], kind: str, device_name: str
) -> Any:
    names, ragged = columns

    def predict(batches: Iterator[pd.DataFrame]) -> Iterator[pd.Series]:
        task = task_context()
        device = choose_device(device_name, 0 if task is None else task.partitionId())
        module.to(device).eval()
        for batch in batches:
            arrays = [pa.array(batch[f"c{index}"], from_pandas=False) for index in range(len(names))]
            tensors = read_tensors([pa.record_batch(arrays, list(names))], names, ragged)
            with torch.no_grad():
                output = module(*batch_to(device, tensors))
                output_width(output, len(batch))
                output = output if output_fn is None else output_fn(output)
            predictions = np.asarray(copy_out(output), np.float64)
            yield pd.Series(list(predictions) if kind.startswith("array") else predictions.reshape(-1))

    udf: Any = pandas_udf
    return udf(predict, kind)


FORMAT = "ps2.torch-module.1"
MANIFEST, STATE = "module.json", "state_dict.pt"


def save_module(path: str, module: Any, record: Mapping[str, Any]) -> None:
    """Write a module to a new folder. ``record``: further entries of the manifest, which is written last."""
    fs, root = resolve_url(path, "path")
    if fs.exists(root):
        raise UsageError(f"{path}: there is something already; save to a new folder")
    with recovery_errors(root, "making the folder"):
        fs.makedirs(root, exist_ok=True)
    tables: dict[str, str] = {}
    folders: dict[int, str] = {}
    for name, child in remote_embeddings(module):
        number = child.table.matrix.number
        if number not in folders:
            folders[number] = f"table-{len(folders)}"
            child.table.save(f"{str(path).rstrip('/')}/{folders[number]}")
        tables[name] = folders[number]
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    _, digest = write(fs, f"{root}/{STATE}", [buffer.getvalue()])
    manifest = {"format": FORMAT, "xxh3_128": digest, "tables": tables, **record}
    write_json(fs, f"{root}/{MANIFEST}", manifest)


def load_module(path: str, model_fn: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Return the module that ``save_module`` wrote, with new tables on the fleet, and its manifest.

    ``model_fn`` returns a module with the same parameters and remote embeddings; its tables are replaced.
    """
    fs, root = resolve_url(path, "path")
    manifest = read_json(fs, f"{root}/{MANIFEST}", FORMAT)
    if manifest is None:
        raise CheckpointMissingError(f"{path}: expected the folder of a saved module, but it has no {MANIFEST}")
    with recovery_errors(f"{root}/{STATE}", "reading"):
        data = fs.cat_file(f"{root}/{STATE}")
    if xxhash.xxh3_128(data).hexdigest() != manifest["xxh3_128"]:
        raise CheckpointCorruptError(f"{root}/{STATE}: its checksum differs from the manifest's: the file has changed")
    module = model_fn()
    embeddings, tables = dict(remote_embeddings(module)), manifest["tables"]
    if embeddings.keys() != tables.keys():
        raise UsageError(f"{path}: expected remote embeddings {sorted(tables)} in the module, got {sorted(embeddings)}")
    loaded: dict[str, EmbeddingTable] = {}
    for name, child in embeddings.items():
        folder = tables[name]
        if folder not in loaded:
            loaded[folder] = EmbeddingTable.load(f"{str(path).rstrip('/')}/{folder}")
        child.table = loaded[folder]
    try:
        module.load_state_dict(torch.load(io.BytesIO(data), weights_only=True))
    except RuntimeError as error:  # torch raises it for other names and shapes
        raise UsageError(f"{path}: modelFn returns a module that differs from the saved module: {error}") from error
    return module, manifest
