"""Online models: live on the servers, so they predict with what they have learned so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StructField, StructType

from ps2.algorithms.estimators.frames import check_frame
from ps2.algorithms.estimators.model_files import ModelReader, ModelWriter
from ps2.algorithms.online.ml.params import OnlineModelParams
from ps2.algorithms.online.program import OnlineProgram
from ps2.algorithms.online.scoring import BIAS, probabilities
from ps2.algorithms.online.settings import INTERCEPT, OnlineSettings
from ps2.algorithms.training.streams.labelled_rows import KeyedRows, RowHasher
from ps2.algorithms.training.streams.learner import BatchProgress
from ps2.client.embedding_table import EmbeddingTable
from ps2.coordinator.context import PS2Context
from ps2.errors import InputError, StoppedError

MARGIN = "margin of ps2"


@dataclass(frozen=True)
class LiveModel:
    """A model on the servers.

    Attributes:
        name: of its table among the fleet's vectors.
        settings: what it is.
        table: its weights and the state of their optimizer.
        hasher: makes keys of a row's columns.
    """

    name: str
    settings: OnlineSettings
    table: EmbeddingTable
    hasher: RowHasher

    @property
    def program(self) -> OnlineProgram:
        return OnlineProgram(self.settings, self.table)


class OnlineModel(OnlineModelParams, Model, MLReadable[Any], MLWritable):
    """Base class of online models. Copies share the servers' table; ``free()`` gives its memory back."""

    def __init__(self, live: LiveModel) -> None:
        super().__init__()
        self._live = live
        self._progress: list[BatchProgress] = []

    @property
    def name(self) -> str:
        """Name of the model on the fleet."""
        return self._live.name

    @property
    def settings(self) -> OnlineSettings:
        return self._live.settings

    @property
    def table(self) -> EmbeddingTable:
        """The weights of keys, with the state of their optimizer."""
        return self._live.table

    @property
    def numKeys(self) -> int:
        """Number of keys that have weights."""
        return self.table.keysCount()

    @property
    def intercept(self) -> float:
        """The intercept; 0 without one."""
        if not self.settings.intercept:
            return 0.0
        return float(self.table.pull(np.array([INTERCEPT]))[0, 0])

    @property
    def progress(self) -> list[BatchProgress]:
        """Progressive validation of the rows that ``fit`` or ``partialFit`` has learned, by pass."""
        return list(self._progress)

    def __repr__(self) -> str:
        return f"{type(self).__name__}: uid={self.uid}, name={self.name}"

    def weights(self, keys: Any) -> Any:
        """Return the weights of keys: float32, ``keys.shape + (k,)``, the linear weight first."""
        return self.table.pull(keys)

    def predictProbability(self, rows: KeyedRows) -> Any:
        """Return the probability of label 1 for rows of keys: float64 of shape (n,)."""
        return probabilities(self._live.program.margins(rows))

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_frame(dataset)
        names = [self.getRawPredictionCol(), self.getProbabilityCol(), self.getPredictionCol()]
        for name in filter(None, names):
            if name in dataset.columns:
                raise InputError(f"column {name!r}: it is there already; choose another name for the predictions")
        active = PS2Context.getActive()
        if active is None:
            raise StoppedError(f"{self!r}: its fleet was stopped; an export scores without one (ps2.serving.Scorer)")
        predict = Predictor(self._live.program, self._live.hasher)
        schema = StructType([*dataset.schema.fields, StructField(MARGIN, DoubleType(), False)])
        found = dataset.mapInArrow(predict, schema)
        margin = F.col(f"`{MARGIN}`")
        probability = F.lit(1.0) / (F.lit(1.0) + F.exp(-margin))
        new = [
            array_to_vector(F.array(-margin, margin)),
            array_to_vector(F.array(F.lit(1.0) - probability, probability)),
            (probability > F.lit(self.getThreshold())).cast("double"),
        ]
        added = [column.alias(name) for column, name in zip(new, names, strict=True) if name]
        return found.select(*(F.col(f"`{name}`") for name in dataset.columns), *added)

    def export(self, path: str, since: Any = None) -> Any:
        """Write the weights to a folder, for ``ps2.serving.Scorer``; see ``EmbeddingTable.export``."""
        to_json = getattr(self._live.hasher, "to_json", None)
        return self.table.export(
            path,
            since,
            kind=self.settings.kind,
            config={"kind": self.settings.kind},
            hasher=None if to_json is None else to_json(),
            dense={BIAS: np.array([self.intercept])},
        )

    def free(self) -> None:
        """Free the model's memory on the servers; it cannot be used any more."""
        self.table.free()

    # -- files -------------------------------------------------------------------------------------------------------

    def write(self) -> MLWriter:
        """Return a writer: ``write().overwrite().save(path)``. Servers write the weights and the optimizer's state."""
        return ModelWriter(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """Return a reader: ``read().load(path)``, which needs an active PS2Context."""
        return ModelReader(cls)


@dataclass(frozen=True)
class Predictor:
    """The function of tasks that adds margins to rows."""

    program: OnlineProgram
    hasher: RowHasher

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            margins = self.program.margins(self.hasher.rows(batch))
            columns = [*batch.columns, pa.array(margins)]
            yield pa.record_batch(columns, names=[*batch.schema.names, MARGIN])
