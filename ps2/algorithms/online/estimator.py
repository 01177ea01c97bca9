"""The public estimators and models of online learning: fit, partialFit and fitStream."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar, cast

from pyspark.ml import Estimator
from pyspark.sql import DataFrame

from ps2.algorithms.frame.frames import spark_calls
from ps2.algorithms.frame.memory import freed_on_failure
from ps2.algorithms.frame.streams import StreamEstimator
from ps2.algorithms.online.models import LiveModel, OnlineModel, OnlineParams, new_name
from ps2.algorithms.online.plan import OnlinePlan, OptimizerName
from ps2.algorithms.online.program import OnlineProgram
from ps2.algorithms.online.settings import OnlineFactorSettings
from ps2.algorithms.training.observing import watched_fit
from ps2.algorithms.training.streams.batches import Passes, learn_frame
from ps2.algorithms.training.streams.start import ModelFactory
from ps2.algorithms.training.streams.task import check_clock
from ps2.client.embedding_table import EmbeddingTable
from ps2.coordinator.context import PS2Context
from ps2.coordinator.training_host import training_host
from ps2.errors import ConfigError
from ps2.run.spark.backend_lookup import backend_of

_one_context = threading.Lock()


class OnlineEstimator(OnlineParams, StreamEstimator, Estimator[Any]):
    """Base class of the estimators of online models."""

    # Params that an optimizer does not use: setting one is an error.
    _UNUSED: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ftrl": ("lr",),
        "adagrad": ("alpha", "beta"),
        "adam": ("alpha", "beta"),
    }
    # The class of the models that this estimator returns.
    _MODEL: ClassVar[type[OnlineModel]]

    # -- training ----------------------------------------------------------------------------------------------------

    def partialFit(self, dataset: DataFrame, model: OnlineModel | None = None) -> Any:
        """Learn from rows once; return the model.

        Args:
            dataset: rows to learn from, not a streaming DataFrame.
            model: a model of this estimator, which goes on learning on the servers; None: a new one.

        Raises:
            InputError: there are no rows, or some cannot be learned from. The model may have learned some of them.
            ConfigError: the model is of another kind, or has other settings.
            UsageError: the model learns from a stream.
        """
        with watched_fit(self) as made, spark_calls(dataset):
            self._check_frame(dataset)
            self._check()
            if model is not None:
                self._check_model(model)
            learned = self._learned(dataset, model, 1)
            made(learned)
            return learned

    def _model_factory(self, frame: DataFrame, given: OnlineModel | None) -> ModelFactory:
        plan = self._make_plan()
        if given is not None:
            self._check_model(given)
        return ModelFactory(
            plan.kind,
            {**plan.to_json(), "hasher": self._hasher().to_json()},
            self._begin,
            self._existing,
            self._program,
            self._reader(frame, self._hasher(frame)),
        )

    def _fit(self, dataset: DataFrame) -> Any:
        self._check_frame(dataset)
        self._check()
        return self._learned(dataset, None, self.getOrDefault(self.maxIter))

    def _learned(self, dataset: DataFrame, model: OnlineModel | None, passes: int) -> Any:
        """Learn from a DataFrame in passes; return the model, a new one if none is given."""
        ps, reader = self._context(dataset), self._reader(dataset, self._hasher(dataset))
        started = model if model is not None else self._begin()
        with ExitStack() as learning:
            if model is None:
                learning.enter_context(freed_on_failure(started))
            learning.enter_context(training_host(ps).streams.stream(started.name))
            on_step = learning.enter_context(self._shown(backend_of(dataset), passes))
            program, options = self._program(started), self._learner_options()
            learned = learn_frame(ps, program, reader, options, dataset, Passes(passes, on_step))
        model = self._finish_model(started)
        model._progress = learned
        return model

    # -- parts -------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        super()._check()
        self._make_plan()

    def _context(self, dataset: DataFrame) -> PS2Context:
        with _one_context:
            return PS2Context.getOrCreate(dataset.sparkSession, self._servers())

    def _begin(self, name: str = "") -> OnlineModel:
        """Return a new model on the fleet of the active context."""
        name, plan = name or new_name(), self._make_plan()
        return self._model_of(LiveModel(name, plan, plan.new_table(name), self._hasher()))

    def _existing(self, name: str, ps: PS2Context) -> OnlineModel:
        """Return the model of that name on the fleet; raise NotFoundError if the fleet has none."""
        plan = self._make_plan()
        matrix = ps.vector(name).matrix()
        table = EmbeddingTable.existing(matrix, plan.table_settings())
        return self._model_of(LiveModel(name, plan, table, self._hasher()))

    def _model_of(self, live: LiveModel) -> OnlineModel:
        fitted: OnlineModel = self._finish_model(self._MODEL._of(live))
        return fitted

    def _check_model(self, model: Any) -> None:
        if not isinstance(model, self._MODEL):
            raise ConfigError(f"model: expected a {self._MODEL.__name__}, got {type(model).__name__}")
        check_clock(model.table, self._time())
        have, want = model._live.settings.params(), self._make_plan().params()
        for name in {**have, **want}:
            if have.get(name) != want.get(name):
                raise ConfigError(f"{name}: expected {have.get(name)!r}, as the model has, got {want.get(name)!r}")
        if model._live.hasher != self._hasher():
            raise ConfigError("model: expected the columns of keys that the model has, in the same order")

    def _program(self, model: OnlineModel) -> OnlineProgram:
        return model._live.program

    def _make_plan(self) -> OnlinePlan:
        """Return what the model is made from; raise ConfigError if they contradict each other, or one has no effect."""
        optimizer = self.getOptimizer()
        for name in self._UNUSED[optimizer]:
            if self.isSet(name):
                raise ConfigError(f"{name}: optimizer {optimizer!r} does not use it, got {self.getOrDefault(name)}")
        return OnlinePlan(
            optimizer=cast(OptimizerName, optimizer),
            alpha=self.getAlpha(),
            beta=self.getBeta(),
            lr=self.getLr(),
            l1=self.getL1(),
            l2=self.getL2() if self.getOptimizer() == "ftrl" else 0.0,
            decay=0.0 if self.getOptimizer() == "ftrl" else self.getL2(),
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
