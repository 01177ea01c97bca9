"""The public estimators and models of online learning: fit, partialFit and fitStream."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar, cast

from pyspark.ml import Estimator, Model
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ps2.algorithms.frame.key_hasher import KeyParams
from ps2.algorithms.frame.keyed_models import KeyedClassModel, KeyedEstimator
from ps2.algorithms.frame.memory import freed_on_failure
from ps2.algorithms.online.plan import OnlinePlan, OptimizerName
from ps2.algorithms.online.program import LiveModel, new_name
from ps2.algorithms.online.scoring import probabilities
from ps2.algorithms.online.settings import OnlineFactorSettings, OnlineSettings
from ps2.algorithms.training.streams.learner import BatchProgress, HeldOut, Passes, learn_frame
from ps2.algorithms.training.streams.start import ModelFactory
from ps2.client.embedding_table import EmbeddingTable
from ps2.client.matrix import owning
from ps2.coordinator.context import PS2Context
from ps2.coordinator.training_host import training_host
from ps2.data.hashing import FieldHasher
from ps2.data.key_rows import KeyRows
from ps2.errors import ConfigError
from ps2.run.spark.backend_lookup import backend_of

# Fits in several threads must not each start a context.
_context_lock = threading.Lock()


class OnlineParams(OnlineSettings, KeyParams):
    """The params that online estimators and models share."""

    def getLocalSteps(self) -> bool:
        """Get localSteps: by default True, except with 'adam'."""
        if self.isSet(self.localSteps):
            return bool(self.getOrDefault(self.localSteps))
        return self.getOptimizer() != "adam"


class OnlineModel(OnlineParams, KeyedClassModel, Model):
    """Base class of online models."""

    _ARRAYS: ClassVar[Any] = LiveModel
    # The progressive validation: one entry for each pass of the last training.
    _progress = cast("Sequence[BatchProgress]", ())

    @property
    def settings(self) -> OnlinePlan:
        """The model's settings, such as optimizer, learning rates and penalties."""
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
        """Progressive validation of the last ``fit`` or ``partialFit``: one entry for each pass over the rows.

        If rows were held out, ``heldOut`` has their measures after the pass, and with ``patience`` the model is that of
        the pass with the smallest ``heldOut.logLoss``.
        """
        return list(self._progress)

    def __repr__(self) -> str:
        return f"{type(self).__name__}: uid={self.uid}, name={self.name}"

    def weights(self, keys: Any) -> Any:
        """Return the weights of keys: float32, ``keys.shape + (k,)``: the linear weight, then the vector."""
        return self.table.pull(keys)

    def predictProbability(self, rows: KeyRows) -> Any:
        """Return the probability of label 1 for rows of keys: float64 of shape (n,)."""
        return probabilities(self._fitted.predictor().margins(rows))


class OnlineEstimator(OnlineParams, KeyedEstimator, Estimator[Any]):
    """Base class of the estimators of online models."""

    # The params that an optimizer does not use; setting one of them is an error.
    _UNUSED: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ftrl": ("lr",),
        "adagrad": ("alpha", "beta"),
        "adam": ("alpha", "beta"),
    }

    def _fit(self, dataset: DataFrame) -> Any:
        self._check_frame(dataset)
        self._check()
        return self._learn(dataset, self._initial, self.getOrDefault(self.maxIter))

    def _learn_once(self, dataset: DataFrame, model: Any) -> Any:
        return self._learn(dataset, model, 1)

    def _learn(self, dataset: DataFrame, model: OnlineModel | None, passes: int) -> Any:
        """Learn from a DataFrame in ``passes`` passes; return the model, which is new if ``model`` is None."""
        if model is not None:
            self._check_model(model, self._hasher())
        reader = self._reader(dataset, self._hasher(dataset))
        with _context_lock:
            ps = PS2Context.getOrCreate(dataset.sparkSession, self._if_set("numServers"))
        held_out = self._held_out(dataset)
        keeps_best = held_out is not None and model is None and self.getPatience() > 0
        learner = self._new_model(with_copy=keeps_best) if model is None else model
        with ExitStack() as resources:
            if model is None:
                resources.enter_context(freed_on_failure(learner))
            resources.enter_context(owning(learner.fitted.matrices))
            resources.enter_context(training_host(ps).streams.stream(learner.name))
            on_step = resources.enter_context(self._show_training(backend_of(dataset), passes))
            program, options = learner.fitted.predictor(), self._learner_options()
            steps = Passes(passes, on_step)
            if held_out is not None:
                patience, tolerance = (self.getPatience() if keeps_best else 0), self.getValidationTol()
                steps = replace(steps, held_out=HeldOut(dataset.where(held_out), program, patience, tolerance))
                dataset = dataset.where(F.coalesce(~held_out, F.lit(True)))
            progress = learn_frame(ps, program, reader, options, dataset, steps)
        model = self._finish_model(learner)
        model._progress = progress
        return model

    def _model_factory(self, frame: DataFrame, initial_model: OnlineModel | None) -> ModelFactory:
        plan = self._make_plan()
        if initial_model is not None:
            self._check_model(initial_model, self._hasher())
        return ModelFactory(
            plan.kind,
            {**plan.to_json(), "hasher": self._hasher().to_json()},
            self._new_model,
            self._existing,
            lambda model: model.fitted.predictor(),
            self._reader(frame, self._hasher(frame)),
        )

    def _check(self) -> None:
        super()._check()
        self._make_plan()

    def _new_model(self, name: str = "", with_copy: bool = False) -> OnlineModel:
        """Return a new model on the servers of the active context; with a name, it stays until ``free()``."""
        is_named, name, plan = bool(name), name or new_name(), self._make_plan()
        live = LiveModel(name, plan, plan.new_table(name, with_copy), self._hasher())
        return self._model_of(live if is_named else live.own())

    def _existing(self, name: str, ps: PS2Context) -> OnlineModel:
        """Return the model called ``name`` on the servers; raise NotFoundError if there is none."""
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
        """Return the model's settings; raise ConfigError if params contradict each other, or would have no effect."""
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
    """Logistic regression on an unbounded set of keys, trained on batches and streams (McMahan et al., 2013).

    Example::

        estimator = OnlineLogisticRegression(keysCol="keys", labelCol="click", alpha=0.1, l1=1.0)
        training = estimator.fitStream(clicks, checkpointLocation="hdfs:///jobs/clicks")
        training.lastProgress  # progressive validation: each row is predicted before the model learns from it
        training.model.transform(rows)
    """

    __module__ = "ps2.algorithms.classification"
    _MODEL = OnlineLogisticRegressionModel


class OnlineFMModel(OnlineFactorSettings, OnlineModel):
    """A trained ``OnlineFM``."""

    __module__ = "ps2.algorithms.classification"


class OnlineFM(OnlineFactorSettings, OnlineEstimator):
    """Factorization machine on an unbounded set of keys, trained on batches and streams (Rendle, 2010).

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
        plan = super()._make_plan()
        decay = self.getFactorL2() if plan.is_ftrl else plan.decay
        return replace(plan, factors=self.getFactorSize(), init_scale=self.getInitStd(), decay=decay)
