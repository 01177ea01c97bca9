"""``fit``: train a model on the servers of the active context."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import DataFrame

from ps2.algorithms.frame.dealing import Dealer, check_workers
from ps2.algorithms.frame.frames import check_frame, mark_held_out, spark_calls
from ps2.algorithms.frame.model_files import EstimatorReader, EstimatorWriter
from ps2.algorithms.frame.one_job import OneJob
from ps2.algorithms.frame.params import ByName, FeatureParams
from ps2.algorithms.frame.placement import Request, Work, place
from ps2.algorithms.frame.retry import retry_after_server_loss
from ps2.algorithms.frame.settings import Plan, Settings
from ps2.algorithms.frame.tables import check_columns, column, survey
from ps2.algorithms.frame.unlabelled import survey_rows
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.observing import current_watch, watched_fit
from ps2.algorithms.training.only_worker import OnStep, Train, train_in_only_worker
from ps2.algorithms.training.progress import progress
from ps2.algorithms.training.record import Placement, StepReport, TrainingHistory, Via
from ps2.algorithms.training.table import Table
from ps2.coordinator.context import PS2Context
from ps2.coordinator.training_host import training_host
from ps2.dashboard.training_log import TRAININGS
from ps2.errors import ConfigError, InputError, SlotsError, StoppedError, UsageError, WorkerError
from ps2.run.spark.backend import SparkBackend
from ps2.run.spark.backend_lookup import backend_of, free_slots

T = TypeVar("T")
E = TypeVar("E", bound="TrainingEstimator")
H = TypeVar("H", bound="HasInitialModel")
V = TypeVar("V", bound="HasValidationData")

# The temporary column of booleans, true for rows that are held out.
HELD_OUT = "ps2 held out"
# How long to wait for task slots that other jobs of the application use, such as evaluations in other threads.
SLOTS_TIMEOUT_S = 3600.0
POLL_S = 0.2


class TrainingEstimator(ByName, MLReadable[Any], MLWritable):
    """Base class of all estimators."""

    # The name under which another driver can resume the training; "": none can.
    _name = ""

    if not TYPE_CHECKING:  # type checkers see pyspark.ml's method, which knows the class of the model

        def fit(self, dataset: Any, params: Any = None) -> Any:
            """Train on rows; return the model, or a list of models.

            Args:
                dataset: the rows, a DataFrame.
                params: a dict of values that replace those of the estimator, by ``Param``; for a list of such dicts,
                    ``fit`` returns a list of models.
            """
            if params and isinstance(params, dict):
                return self.copy(params).fit(dataset)
            if params is not None and params != {}:
                return super().fit(dataset, params)
            with watched_fit(self) as set_model, spark_calls(dataset):
                model = super().fit(dataset)
                set_model(model)
                return model

    def _resumable(self: E, name: str) -> E:
        """Name the training, so that a context that is restored from one of its checkpoints can resume it."""
        self._name = name
        return self

    def _check(self) -> None:
        """Raise ConfigError for unusable params, before any Spark job."""
        self._check_values()

    def _check_frame(self, dataset: Any) -> None:
        """Raise InputError or StoppedError unless ``dataset`` is a DataFrame whose Spark session runs."""
        check_frame(dataset)
        if backend_of(dataset).is_stopped():
            raise StoppedError("the SparkSession of the DataFrame is stopped: make a new one, and read the rows again")

    def _fit(self, dataset: DataFrame) -> Any:
        self._check_frame(dataset)
        self._check()
        model, history = self._train_on(dataset)
        return self._finish_model(model, dataset, history)

    def _train_on(self, dataset: DataFrame) -> tuple[Any, TrainingHistory]:
        """Survey rows and train; return the model, and the history of the training."""
        raise NotImplementedError

    def _finish_model(
        self, fitted: Any, dataset: DataFrame | None = None, history: TrainingHistory | None = None
    ) -> Any:
        """Give a model the params of its estimator, and the history of its training if it has one."""
        model = self._copyValues(fitted._resetUid(self.uid))
        if history is not None:
            model._remember(dataset, history)
        return model

    def _train_in_context(
        self, table: Table, steps: int, train: Callable[[PS2Context, Callable[[StepReport], None]], T]
    ) -> T:
        """Train on the servers of the active context, or of a new one, in at most ``steps`` steps."""
        spark = backend_of(table.frame)
        ps = PS2Context.getOrCreate(table.frame.sparkSession, self._if_set("numServers"))
        host = training_host(ps)
        host.begin_fit()

        def run() -> T:
            with self._show_training(spark, steps) as on_step:
                return train(ps, on_step)

        return when_free(spark, table.workers, run, host.held_slots)

    def _train_in_one_job(
        self, dataset: DataFrame, table: Table, steps: int, train: Callable[[PS2Context, OnStep], Any]
    ) -> Any:
        """Survey rows and train on them in one Spark job; return the result, None if one job cannot train on them."""
        try:
            return self._train_in_context(table, steps, train)
        except WorkerError:
            if dataset.isEmpty():
                return None
            raise

    def _why_durable(self) -> str:
        """Return why the servers must store the training's state, in words for messages; "": they need not."""
        if self._name:
            return "another driver may resume this training"
        ps = PS2Context.getActive()
        # The context's own checkpoints only contain the state of trainings on the servers.
        makes_checkpoints = ps is not None and (ps.conf.checkpointEverySteps or ps.conf.checkpointEveryS)
        return "checkpoints are made during the training" if makes_checkpoints else ""

    @contextmanager
    def _show_training(self, spark: SparkBackend, steps: int) -> Iterator[Callable[[StepReport], None]]:
        """Show a training in a progress line and on the live page; yield the function to call after each step."""
        name, watch = type(self).__name__, current_watch()
        params = {param.name: self.getOrDefault(param) for param in self.params if self.isSet(param)}
        with TRAININGS.training(name, steps, params) as log_step, progress(name, steps, spark) as on_step:

            def step(report: StepReport) -> None:
                log_step(report)
                on_step(report)
                if watch is not None:
                    watch.step(report)

            yield step

    def write(self) -> MLWriter:
        """Return a writer: ``write().overwrite().save(path)``."""
        return EstimatorWriter(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """Return a reader of estimators of this class: ``read().load(path)``."""
        return EstimatorReader(cls)


@dataclass(frozen=True, eq=False)
class Job:
    """A training that is ready to start: the resolved plan, the survey's result, the placement, and the dealt rows."""

    plan: Any
    survey: Any
    placement: Placement
    table: Table


class SurveyingEstimator(TrainingEstimator):
    """Base class of estimators that survey a table, choose where to train, deal its rows and train."""

    # The maximum number of classes. None: labels are numbers; 0: no limit.
    _CLASSES: int | None = None
    # Whether another driver can resume a training in the only worker's process, as it can with servers.
    _LOCAL_IS_DURABLE = False
    # The family's function that trains on the servers of a context, and returns a result with a ``history``.
    _TRAIN: Train
    # The classes of the family's plan and public model, for the defaults of ``_resolve`` and ``_trained_model``.
    _PLAN: ClassVar[type[Plan[Any]]]
    _MODEL: ClassVar[Any]

    def _plan(self) -> Any:
        """Return the settings, or a plan; raise ConfigError if params contradict each other, before any Spark job."""
        bases = type(self).__mro__
        return self._values(next(base for base in bases if issubclass(base, Settings) and not base._has_params))

    def _survey(self, dataset: DataFrame, columns: ColumnNames) -> Any:
        """Survey a table before training; return a ``Survey``, or a ``TableSurvey`` if rows have no labels."""
        return survey_rows(dataset, columns) if columns.label is None else survey(dataset, columns, self._CLASSES)

    def _resolve(self, plan: Any, survey: Any) -> Any:
        """Return a plan with facts about the table; raise ConfigError or LimitError if it cannot be trained.

        By default, settings become a ``_PLAN``, with the survey's ``dim`` and ``classes`` if ``_PLAN`` has such fields.
        """
        if not isinstance(plan, Settings):
            return plan
        facts = {field.name for field in fields(self._PLAN)} & {"dim", "classes"}
        return self._PLAN(settings=plan, **{name: getattr(survey, name) for name in facts})

    def _work(self, plan: Any, survey: Any) -> Work:
        """Return the work of a resolved plan, for the cost model. It is not used if a family always uses servers."""
        return plan.work(survey.rows, survey.cost) if hasattr(plan, "work") else Work(0.0, 1.0, 0.0)

    def _with_rows(self, job: Job) -> Any:
        """Return the plan completed with facts that depend on the placement or on the dealt rows."""
        return job.plan

    def _steps(self, plan: Any) -> int:
        """Return the maximum number of steps of a plan."""
        return int(getattr(plan.settings, "maxIter", 1))

    def _train(self, ps: PS2Context, job: Job, on_step: OnStep) -> Any:
        """Train as the placement requires; return a result with a ``history``."""
        if job.placement.via == "local":
            return train_in_only_worker(ps, job.table, job.plan.form, self._TRAIN, job.plan, on_step)
        return self._TRAIN(ps, job.table, job.plan, on_step=on_step)

    def _trained_model(self, trained: Any, job: Job) -> Any:
        """Return the public model for the result of ``_train``, which by default is a ``Trained``."""
        return self._MODEL._of(trained.model)

    def _history(self, trained: Any, job: Job, model: Any) -> TrainingHistory:
        """Return the history of the training from the result of ``_train``."""
        history: TrainingHistory = trained.history
        return history

    def _check(self) -> None:
        super()._check()
        self._request().check()

    def _request(self) -> Request:
        """Return the user's requirements for the placement."""
        return Request(self.getOrDefault("via") if self.hasParam("via") else "servers", self._requested_workers)

    def _earlier_via(self) -> Via | None:
        """Return where an earlier driver has run this training; None: there is no earlier driver."""
        return None

    def _place(self, work: Work, dealer: Dealer) -> Placement:
        """Choose where to train."""
        why_servers = "" if self._LOCAL_IS_DURABLE else self._why_durable()
        request = replace(self._request(), why_servers=why_servers, earlier_via=self._earlier_via())
        return place(work, dealer.cores, request)

    def _train_model(self, plan: Any, survey: Any, dealer: Dealer) -> tuple[Any, TrainingHistory]:
        """Choose where to train, deal the rows and train; return the model and the history of the training."""
        resolved = self._resolve(plan, survey)
        if isinstance(resolved, Plan):
            resolved = replace(resolved, name=self._name)
        placement = self._place(self._work(resolved, survey), dealer)
        table = dealer(placement.workers)
        job = Job(resolved, survey, replace(placement, workers=table.workers), table)
        job = replace(job, plan=self._with_rows(job))
        steps = self._steps(job.plan)
        trained = self._train_in_context(table, steps, lambda ps, on_step: self._train(ps, job, on_step))
        model = self._trained_model(trained, job)
        return model, replace(self._history(trained, job, model), placement=job.placement)

    def _train_on(self, dataset: DataFrame) -> tuple[Any, TrainingHistory]:
        return self._survey_and_train(self._plan(), dataset)

    def _survey_and_train(self, plan: Any, dataset: DataFrame) -> tuple[Any, TrainingHistory]:
        """Survey a table and train; see ``_train_model``."""
        survey, dealer = self._survey_and_deal(dataset)
        return retry_after_server_loss(lambda: self._train_model(plan, survey, dealer))

    @abstractmethod
    def _survey_and_deal(self, dataset: DataFrame) -> tuple[Any, Any]:
        """Check and survey a table; return the survey, and the function that deals its rows (see ``Dealer``)."""


class FleetEstimator(FeatureParams, SurveyingEstimator):
    """Base class of estimators that learn from features."""

    def _one_job(self, plan: Any, dataset: DataFrame) -> OneJob | None:
        """Check a table; return the fit in one Spark job; None: Spark has to survey the rows."""
        return None

    def _survey_and_train(self, plan: Any, dataset: DataFrame) -> tuple[Any, TrainingHistory]:
        may_be_local = self._request().via != "servers" and self._requested_workers in (None, 1)
        job = self._one_job(plan, dataset) if may_be_local and not self._why_durable() else None
        if job is None or not job.is_small:
            return super()._survey_and_train(plan, dataset)
        trained, survey = retry_after_server_loss(job.run), job.survey
        if trained is not None:
            return trained
        if survey is None:
            return super()._survey_and_train(plan, dataset)
        return retry_after_server_loss(lambda: self._train_model(plan, survey, job.dealer))

    def _check_table(self, dataset: DataFrame) -> ColumnNames:
        """Check the columns and the number of workers; return the names of the columns to train on."""
        columns = self._columns()
        check_columns(dataset, columns)
        check_workers(backend_of(dataset), self._requested_workers)
        return columns

    def _survey_and_deal(self, dataset: DataFrame) -> tuple[Any, Dealer]:
        """Check and survey a table; return the survey, and the dealer of its rows."""
        columns = self._check_table(dataset)
        if backend_of(dataset).shares_host:
            self._compile_ahead()
        survey = self._survey(dataset, columns)
        return survey, Dealer(dataset, columns, survey, self._requested_workers)

    def _compile_ahead(self) -> None:
        """Start to compile slow kernels in another process, which writes them to this host's cache for the workers."""

    def _columns(self) -> ColumnNames:
        """Return the names of the columns to train on."""
        optional = map(self._if_set, ("weightCol", "validationIndicatorCol", "baseMarginCol", "groupCol"))
        label = self.getOrDefault("labelCol") if self.hasParam("labelCol") else None
        return ColumnNames(self._features, label, *optional)


def when_free(spark: SparkBackend, slots: int, run: Callable[[], T], held_slots: Callable[[], int]) -> T:
    """Call ``run``, which starts workers, when other jobs leave enough task slots; repeat it if a job took the slots.

    The workers then wait for the slots that other runs of the context hold. Raise SlotsError if there are too few slots
    although no other job runs, or after ``SLOTS_TIMEOUT_S``.
    """
    deadline_s = time.monotonic() + SLOTS_TIMEOUT_S
    while True:
        while spark.has_active_jobs() and free_slots(spark) + held_slots() < slots and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        try:
            return run()
        except SlotsError:
            if not spark.has_active_jobs() or time.monotonic() > deadline_s:
                raise


class HasValidationData(TrainingEstimator):
    """An estimator that measures held-out rows: ``setValidationData``, or the keyword ``validationData``."""

    _OBJECTS: ClassVar[tuple[str, ...]] = ("validationData",)
    # The rows to hold out; None: validationIndicatorCol marks them, if there are any.
    _validation_data: Any = None

    def setValidationData(self: V, value: DataFrame | None) -> V:
        """Set a DataFrame of held-out rows with the columns of those to train on, in place of validationIndicatorCol.

        None: there are none. A saved estimator lacks them. Copies, such as those of ``CrossValidator``, have them.

        Raises:
            InputError: the value is no DataFrame.
        """
        if value is not None:
            check_frame(value)
        self._validation_data = value
        return self

    if not TYPE_CHECKING:  # as in the base class

        def fit(self, dataset: Any, params: Any = None) -> Any:
            """Train on rows; return the model, or a list of models. See ``setValidationData``, too."""
            if self._validation_data is None or params:
                return super().fit(dataset, params)
            return self._fit_united(dataset, lambda estimator, rows: estimator.fit(rows))

    def _fit_united(self, dataset: DataFrame, fit: Callable[[Any, DataFrame], T]) -> T:
        """Unite rows with the held-out rows under an indicator column; return the result of a copy's ``fit``."""
        self._check_frame(dataset)
        if (marked := self._if_set("validationIndicatorCol")) is not None:
            raise ConfigError(f"validationData: expected no validationIndicatorCol beside it, got {marked!r}")
        names = [name for name in dataset.columns if name in self._validation_data.columns]
        # CrossValidator adds a column of its own to the rows to train on.
        params = [param for param in self.params if param.name.endswith(("Col", "Cols")) and self.isDefined(param)]
        for value in map(self.getOrDefault, params):
            for name in [value] if isinstance(value, str) else value or ():
                if name in dataset.columns and name not in names:
                    raise InputError(f"validationData: expected the columns of the rows to train on, got no {name!r}")
        estimator = self.copy()
        estimator._validation_data = None
        estimator._set(validationIndicatorCol=HELD_OUT)
        train, held_out = (data.select(*map(column, names)) for data in (dataset, self._validation_data))
        model: Any = fit(estimator, mark_held_out(train, held_out, HELD_OUT))
        if model.hasParam("validationIndicatorCol") and model.isSet("validationIndicatorCol"):
            model.clear(model.validationIndicatorCol)
        return model

    def setParams(self: V, **params: Any) -> V:
        """Set params by name, and models, rows or functions such as ``initialModel``.

        Raises:
            TypeError: there is no such param, or its value has another type.
            InputError: the validation data are no DataFrame.
            ConfigError: the training cannot begin with the initial model, or a function is none.
        """
        for name in self._OBJECTS:
            if name in params:
                getattr(self, f"set{name[0].upper()}{name[1:]}")(params.pop(name))
        return super().setParams(**params)

    def write(self) -> MLWriter:
        """Return a writer: ``write().overwrite().save(path)``.

        Raises:
            UsageError: there are validation data, which are not part of the file.
        """
        if self._validation_data is not None:
            raise UsageError("validationData: a file of the estimator would lack them; set them after loading it")
        return super().write()


class HasInitialModel(HasValidationData):
    """An estimator whose training can begin with a model: ``setInitialModel``, or the keyword ``initialModel``."""

    _OBJECTS: ClassVar[tuple[str, ...]] = (*HasValidationData._OBJECTS, "initialModel")
    # The result of ``_read_initial_model``; None: the training begins from scratch.
    _initial: Any = None

    def setInitialModel(self: H, value: Any) -> H:
        """Set the model with which the training begins; None: it begins from scratch. A saved estimator lacks it.

        Raises:
            ConfigError: the estimator's training cannot begin with this model.
        """
        self._initial = None if value is None else self._read_initial_model(value)
        return self

    @abstractmethod
    def _read_initial_model(self, value: Any) -> Any:
        """Return the parameters of an initial model; raise ConfigError if the training cannot begin with this model."""

    def write(self) -> MLWriter:
        """Return a writer: ``write().overwrite().save(path)``.

        Raises:
            UsageError: there is an initial model, or there are validation data, which are not part of the file.
        """
        if self._initial is not None:
            raise UsageError("initialModel: a file of the estimator would lack it; save the model itself")
        return super().write()
