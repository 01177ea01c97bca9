"""The public estimators and models of online learning: fit, partialFit and fitStream."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar, cast

from pyspark.ml import Estimator, Model
from pyspark.sql import DataFrame

from ps2.algorithms.frame.key_hasher import KeyParams
from ps2.algorithms.frame.keyed_models import KeyedClassModel, KeyedEstimator
from ps2.algorithms.frame.memory import freed_on_failure
from ps2.algorithms.online.plan import OnlinePlan, OptimizerName
from ps2.algorithms.online.program import LiveModel, new_name
from ps2.algorithms.online.scoring import probabilities
from ps2.algorithms.online.settings import OnlineFactorSettings, OnlineSettings
from ps2.algorithms.training.streams.learner import BatchProgress, Passes, learn_frame
from ps2.algorithms.training.streams.start import ModelFactory
from ps2.client.embedding_table import EmbeddingTable
from ps2.coordinator.context import PS2Context
from ps2.coordinator.training_host import training_host
from ps2.data.hashing import FieldHasher
from ps2.data.key_rows import KeyRows
from ps2.errors import ConfigError
from ps2.run.spark.backend_lookup import backend_of

_one_context = threading.Lock()


class OnlineParams(OnlineSettings, KeyParams):
    """An online estimator or model."""

    def getLocalSteps(self) -> bool:
        """Get localSteps: by default True, except with 'adam'."""
        if self.isSet(self.localSteps):
            return bool(self.getOrDefault(self.localSteps))
        return self.getOptimizer() != "adam"


class OnlineModel(OnlineParams, KeyedClassModel, Model):
    """Base class of online models."""

    _ARRAYS: ClassVar[Any] = LiveModel
    # The progressive validation of each pass.
    _progress = cast("Sequence[BatchProgress]", ())

    @property
    def settings(self) -> OnlinePlan:
        """The settings of the model."""
        settings: OnlinePlan = self._fitted.settings
        return settings

    @property
    def numKeys(self) -> int:
        """Number of keys that have weights."""
        return self.table.keysCount()

    @property
    def intercept(self) -> float:
        """The intercept; 0 for a model without an intercept."""
        return float(self._fitted.intercept)

    @property
    def progress(self) -> list[BatchProgress]:
        """Progressive validation of the last ``fit`` or ``partialFit``: one entry for each pass over the rows."""
        return list(self._progress)

    def __repr__(self) -> str:
        return f"{type(self).__name__}: uid={self.uid}, name={self.name}"

    def weights(self, keys: Any) -> Any:
        """Return the weights of keys: float32, ``keys.shape + (k,)``, the linear weight first."""
        return self.table.pull(keys)

    def predictProbability(self, rows: KeyRows) -> Any:
        """Return the probability of label 1 for rows of keys: float64 of shape (n,)."""
        return probabilities(self._fitted.predictor().margins(rows))


class OnlineEstimator(OnlineParams, KeyedEstimator, Estimator[Any]):
    """Base class of the estimators of online models."""

    # The params that each optimizer does not use: setting them is an error.
    _UNUSED: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ftrl": ("lr",),
        "adagrad": ("alpha", "beta"),
        "adam": ("alpha", "beta"),
    }

    def _fit(self, dataset: DataFrame) -> Any:
        self._check_frame(dataset)
        self._check()
        return self._learn(dataset, None, self.getOrDefault(self.maxIter))

    def _learn_once(self, dataset: DataFrame, model: Any) -> Any:
        if model is not None:
            self._check_model(model, self._hasher())
        return self._learn(dataset, model, 1)

    def _learn(self, dataset: DataFrame, model: OnlineModel | None, passes: int) -> Any:
        """Learn from a DataFrame in passes; return the model, a new one if there is none."""
        reader = self._reader(dataset, self._hasher(dataset))
        with _one_context:
            ps = PS2Context.getOrCreate(dataset.sparkSession, self._if_set("numServers"))
        learner = self._begin() if model is None else model
        with ExitStack() as learning:
            if model is None:
                learning.enter_context(freed_on_failure(learner))
            learning.enter_context(training_host(ps).streams.stream(learner.name))
            on_step = learning.enter_context(self._show_training(backend_of(dataset), passes))
            program, options = learner.fitted.predictor(), self._learner_options()
            progress = learn_frame(ps, program, reader, options, dataset, Passes(passes, on_step))
        model = self._finish_model(learner)
        model._progress = progress
        return model

    def _model_factory(self, frame: DataFrame, given: OnlineModel | None) -> ModelFactory:
        plan = self._make_plan()
        if given is not None:
            self._check_model(given, self._hasher())
        return ModelFactory(
            plan.kind,
            {**plan.to_json(), "hasher": self._hasher().to_json()},
            self._begin,
            self._existing,
            lambda model: model.fitted.predictor(),
            self._reader(frame, self._hasher(frame)),
        )

    def _check(self) -> None:
        super()._check()
        self._make_plan()

    def _begin(self, name: str = "") -> OnlineModel:
        """Return a new model on the fleet of the active context."""
        name, plan = name or new_name(), self._make_plan()
        return self._model_of(LiveModel(name, plan, plan.new_table(name), self._hasher()))

    def _existing(self, name: str, ps: PS2Context) -> OnlineModel:
        """Return the model of that name on the fleet; raise NotFoundError if the fleet has none."""
        plan = self._make_plan()
        table = EmbeddingTable.existing(ps.vector(name).matrix(), plan.table_settings())
        return self._model_of(LiveModel(name, plan, table, self._hasher()))

    def _model_of(self, live: LiveModel) -> OnlineModel:
        model: OnlineModel = self._finish_model(self._MODEL._of(live))
        return model

    def _check_settings(self, model: OnlineModel, hasher: FieldHasher) -> None:
        existing, requested = model.settings.params(), self._make_plan().params()
        for name in {**existing, **requested}:
            expected, value = existing.get(name), requested.get(name)
            if value != expected:
                raise ConfigError(f"{name}: expected {expected!r}, as the model has, got {value!r}")

    def _make_plan(self) -> OnlinePlan:
        """Return the settings of the model; raise ConfigError if params contradict each other, or have no effect."""
        optimizer, is_ftrl = self.getOptimizer(), self.getOptimizer() == "ftrl"
        for name in self._UNUSED[optimizer]:
            if self.isSet(name):
                raise ConfigError(f"{name}: optimizer {optimizer!r} does not use it, got {self.getOrDefault(name)}")
        return OnlinePlan(
            optimizer=cast(OptimizerName, optimizer),
            alpha=self.getAlpha(),
            beta=self.getBeta(),
            lr=self.getLr(),
            l1=self.getL1(),
            l2=self.getL2() if is_ftrl else 0.0,
            decay=0.0 if is_ftrl else self.getL2(),
            local_steps=self.getLocalSteps(),
            intercept=self.getOrDefault(self.fitIntercept),
            seed=self._seed,
            key_arguments=self._key_arguments(),
        )


class OnlineLogisticRegressionModel(OnlineModel):
    """A trained ``OnlineLogisticRegression``."""

    __module__ = "ps2.algorithms.classification"


class OnlineLogisticRegression(OnlineEstimator):
    """Logistic regression on keys without bound, that learns from batches and streams (McMahan et al., 2013).

    Example::

        estimator = OnlineLogisticRegression(keysCol="keys", labelCol="click", alpha=0.1, l1=1.0)
        training = estimator.fitStream(clicks, checkpointLocation="hdfs:///jobs/clicks")
        training.lastProgress  # each row was predicted before it was learned
        training.model.transform(rows)
    """

    __module__ = "ps2.algorithms.classification"
    _MODEL = OnlineLogisticRegressionModel


class OnlineFMModel(OnlineFactorSettings, OnlineModel):
    """A trained ``OnlineFM``."""

    __module__ = "ps2.algorithms.classification"


class OnlineFM(OnlineFactorSettings, OnlineEstimator):
    """Factorization machine on keys without bound, that learns from batches and streams (Rendle, 2010).

    Example::

        model = OnlineFM(keysCol="keys", labelCol="click", factorSize=8).fit(rows)
    """

    __module__ = "ps2.algorithms.classification"
    _MODEL = OnlineFMModel

    _UNUSED: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ftrl": (),
        "adagrad": ("alpha", "beta", "factorL2"),
        "adam": ("alpha", "beta", "factorL2"),
    }

    def _make_plan(self) -> OnlinePlan:
        plain = super()._make_plan()
        decay = self.getFactorL2() if plain.is_ftrl else plain.decay
        return replace(plain, factors=self.getFactorSize(), init_scale=self.getInitStd(), decay=decay)
