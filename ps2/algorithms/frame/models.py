"""Base classes of trained models: predictions, summaries, files, conversion to pyspark.ml."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from pyspark.ml.linalg import DenseVector, Vector
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import DataFrame

from ps2.algorithms.frame.array_files import ArrayFiles
from ps2.algorithms.frame.frames import check_frame
from ps2.algorithms.frame.heads import ClassHead, Head
from ps2.algorithms.frame.model_files import ModelReader, ModelWriter
from ps2.algorithms.frame.params import ByName, FeatureParams
from ps2.algorithms.frame.predict import as_row, with_predictions
from ps2.algorithms.frame.scoring import FeatureScoring, Scoring
from ps2.algorithms.frame.shared_settings import are_thresholds
from ps2.algorithms.frame.summaries import (
    BinaryClassificationSummary,
    BinaryClassificationTrainingSummary,
    ClassificationSummary,
    ClassificationTrainingSummary,
    HistorySummary,
    model_html,
)
from ps2.algorithms.frame.tables import field
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.record import TrainingHistory
from ps2.array_types import Float64s
from ps2.errors import UsageError
from ps2.run.spark.backend import SparkBackend
from ps2.run.spark.backend_lookup import backend_of
from ps2.run.spark.jvm import new_model

F = TypeVar("F", bound="FittedModel")
M = TypeVar("M", bound="FleetModel")


class FittedModel(ByName, MLReadable[Any], MLWritable):
    """Base class of trained models, which ``fit`` and ``load`` return."""

    _is_model = True
    # The class of the trained parameters, which saves and loads them; None: the model's class overrides both methods.
    _ARRAYS: ClassVar[type[ArrayFiles] | None] = None

    def __init__(self, fitted: Any) -> None:
        super().__init__()
        self._fitted: Any = fitted
        self._summary: Any = None
        # The broadcast of the parameters: its Spark application, the parameters, and the broadcast variable.
        self._shared: tuple[SparkBackend, Any, Any] | None = None

    @classmethod
    def _of(cls: type[F], fitted: Any) -> F:
        """Return a model with trained parameters. (Type checkers accept only settings as arguments of the class.)"""
        make: Any = cls
        model: F = make(fitted)
        return model

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the summary and the broadcast, which only Spark's driver can have."""
        return vars(self) | {"_summary": None, "_shared": None}

    def _share(self, spark: SparkBackend) -> Callable[[], Any]:
        """Return a function that tasks call to get the parameters; large ones are sent once to each executor."""
        fitted = self._predictor
        if fitted.is_light:
            return lambda: fitted
        shared = self._shared
        # Compared by identity, as equality would compare arrays element by element.
        if shared is None or shared[0] != spark or shared[1] is not fitted:
            self._shared = shared = spark, fitted, spark.broadcast(fitted)
        broadcast = shared[2]
        return lambda: broadcast.value

    @property
    def _predictor(self) -> Any:
        """The trained parameters that predictions need; by default, all."""
        return self._fitted

    @property
    def fitted(self) -> Any:
        """The trained parameters that predictions need, as an object that works without Spark."""
        return self._predictor

    def scoring(self) -> Scoring:
        """Return a description of how ``transform`` scores rows, for scorers without Spark and servers.

        Raises:
            UsageError: the model cannot score rows without Spark.
        """
        raise UsageError(f"{type(self).__name__} cannot score rows without Spark and servers")

    @property
    def hasSummary(self) -> bool:
        """Whether there is a ``summary``: after ``fit``, but not after ``load``."""
        return self._summary is not None

    @property
    def summary(self) -> Any:
        """The history of the training, and metrics of the training data.

        Raises:
            RuntimeError: the model was loaded.
        """
        if self._summary is None:
            raise RuntimeError(f"No training summary available for this {type(self).__name__}")
        return self._summary

    def _remember(self, dataset: DataFrame, history: TrainingHistory) -> None:
        """Attach the history of the training."""
        self._summary = HistorySummary(history)

    def _repr_html_(self) -> str:
        return model_html(self, None if self._summary is None else self._summary.history)

    def write(self) -> MLWriter:
        """Return a writer: ``write().overwrite().save(path)``."""
        return ModelWriter(self)

    def _write_content(self, url: str) -> dict[str, Any]:
        """Write the trained parameters to a folder; return PS2's entry in the metadata."""
        content: dict[str, Any] = self._fitted.write(url)
        return content

    @classmethod
    def _read_content(cls, path: str, url: str, content: Any) -> Any:
        """Read the trained parameters that the metadata describe."""
        assert cls._ARRAYS is not None
        return cls._ARRAYS.read(path, url, content)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """Return a reader: ``read().load(path)``, of models of this class."""
        return ModelReader(cls)

    def _as_pyspark(self, cls: type, *arguments: Any) -> Any:
        """Return a model of a class of pyspark.ml. ``arguments`` follow the uid in the Java class's constructor."""
        return new_model(cls, self.uid, arguments, self)


class FeatureModel(FittedModel, FeatureParams):
    """A trained model that adds columns to rows of features."""

    # The class whose ``load`` reads the saved model without Spark, as "module:class"; "": that of ``_ARRAYS``.
    _LOADER = ""

    @property
    def numFeatures(self) -> int:
        """The number of features that the model was trained on."""
        return int(self._fitted.dim)

    def __repr__(self) -> str:
        values = {"uid": self.uid, **self._shown_values(), "numFeatures": self.numFeatures}
        return f"{type(self).__name__}: {', '.join(f'{name}={value}' for name, value in values.items())}"

    def _shown_values(self) -> dict[str, Any]:
        """Return what ``repr`` shows in addition to the number of features, by name."""
        return {}

    @abstractmethod
    def _head(self) -> Head:
        """Return the head that turns margins into predictions, for the current params."""

    @abstractmethod
    def _outputs(self) -> list[tuple[str, str]]:
        """Return the name and the kind of each column to add; a column whose name is "" is not added."""

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_frame(dataset)
        names = [(name, kind) for name, kind in self._outputs() if name]
        if not names:
            return dataset
        load_fitted = self._share(backend_of(dataset))
        columns = ColumnNames(self._features, label=None, margin=self._margin_column)
        return with_predictions(dataset, columns, self.numFeatures, load_fitted, self._head(), names)

    def scoring(self) -> FeatureScoring:
        """Return a description of how ``transform`` scores rows, for scorers without Spark and servers.

        Raises:
            UsageError: the model is a tree of a forest, which cannot score rows without Spark.
        """
        arrays = self._ARRAYS
        loader = self._LOADER or ("" if arrays is None else f"{arrays.__module__}:{arrays.__name__}")
        if not loader:
            raise UsageError(f"{type(self).__name__}: expected a whole model, got one of its trees")
        outputs = tuple((name, kind) for name, kind in self._outputs() if name)
        missing = bool(self._fitted.takes_missing)
        columns = self._features, self._head(), outputs, self._margin_column
        return FeatureScoring(loader, self.numFeatures, missing, *columns, self._rounds)

    @property
    def _margin_column(self) -> str | None:
        """The column of initial margins, to which the model's margins are added; None: there is no such column."""
        return None

    @property
    def _rounds(self) -> int | None:
        """The number of boosting rounds whose trees predict; None: all rounds, or the model has no rounds."""
        return None


class FleetModel(FeatureModel):
    """Base class of trained models that predict labels."""

    def _shown_values(self) -> dict[str, Any]:
        return {"numClasses": self.numClasses} if hasattr(self, "numClasses") else {}

    def predict(self, value: Any) -> float:
        """Predict one row.

        Args:
            value: a vector of pyspark, an array or a list of ``numFeatures`` numbers.
        """
        head = self._head()
        return float(head.prediction(self._raw(value))[0])

    def _raw(self, value: Any) -> Float64s:
        return self._head().raw(self._predictor.margins(as_row(value, self.numFeatures, self._fitted.takes_missing)))

    def evaluate(self, dataset: DataFrame) -> Any:
        """Return a summary of the predictions for a DataFrame with labels; it computes metrics on request."""
        check_frame(dataset)
        field(dataset, self.getOrDefault("labelCol"))  # raises an error that names the columns
        return self._summaries()[0](self, dataset)

    def _remember(self, dataset: DataFrame, history: TrainingHistory) -> None:
        self._summary = self._summaries()[1](self, dataset, history)

    @abstractmethod
    def _summaries(self) -> tuple[Any, Any]:
        """Return the class of the summaries that ``evaluate`` returns, and the class of the training's summary."""

    def _with_all_columns(self: M) -> M:
        """Return this model if all its columns of predictions have names, else a copy in which they do."""
        columns = {"raw": "rawPredictionCol", "probability": "probabilityCol", "prediction": "predictionCol"}
        unnamed = [kind for name, kind in self._outputs() if not name and kind in columns]
        if not unnamed:
            return self
        return self.copy({getattr(self, columns[kind]): f"{kind} of {self.uid}" for kind in unnamed})


class ClassifyingModel(FleetModel):
    """Base class of classification models."""

    def _summaries(self) -> tuple[Any, Any]:
        if self.numClasses == 2:
            return BinaryClassificationSummary, BinaryClassificationTrainingSummary
        return ClassificationSummary, ClassificationTrainingSummary

    @property
    def numClasses(self) -> int:
        """The number of classes; labels are 0 to ``numClasses - 1``."""
        return int(self._fitted.classes or 2)

    def predictRaw(self, value: Any) -> Vector:
        """Return the raw prediction of each class for one row."""
        return DenseVector(self._raw(value)[0])

    def _outputs(self) -> list[tuple[str, str]]:
        return [(self.getOrDefault("rawPredictionCol"), "raw"), (self.getOrDefault("predictionCol"), "prediction")]


class ProbabilityModel(ClassifyingModel):
    """Base class of classification models with probabilities; by default, a row has a margin for each class."""

    def _head(self) -> Head:
        return ClassHead(self.numClasses, "softmax", thresholds=self._thresholds())

    def predictProbability(self, value: Any) -> Vector:
        """Return the probability of each class for one row."""
        probability = self._head().probability(self._raw(value))
        assert probability is not None
        return DenseVector(probability[0])

    def _outputs(self) -> list[tuple[str, str]]:
        raw, prediction = super()._outputs()
        return [raw, (self.getOrDefault("probabilityCol"), "probability"), prediction]

    def _thresholds(self) -> tuple[float, ...] | None:
        """Return the thresholds that are set; raise UsageError unless there is one for each class."""
        if not self.isSet("thresholds"):
            return None
        thresholds = tuple(self.getOrDefault("thresholds"))
        check_thresholds(thresholds, self.numClasses)
        return thresholds


class FleetRegressionModel(FleetModel):
    """Base class of regression models."""

    def _outputs(self) -> list[tuple[str, str]]:
        return [(self.getOrDefault("predictionCol"), "prediction")]


def check_thresholds(thresholds: tuple[float, ...], classes: int) -> None:
    """Raise UsageError unless there is one threshold per class, none negative and at most one 0."""
    if len(thresholds) != classes:
        raise UsageError(f"thresholds: expected one for each of {classes} classes, got {len(thresholds)}")
    if not are_thresholds(thresholds):
        raise UsageError(f"thresholds: expected positive numbers, of which one may be 0, got {list(thresholds)}")
