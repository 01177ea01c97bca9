"""``autolog``: each fit logs its params, losses, other metrics and model to MLflow.

The fit's thread only records steps. Another thread calls the tracking server, so a slow or failing server does not
delay or break a fit.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.dummy import DummyProcess
from queue import SimpleQueue
from typing import Any

import mlflow
from mlflow.entities import Metric, Param, RunTag

from ps2.algorithms.training.observing import observe_fits
from ps2.algorithms.training.record import StepReport, TrainingHistory
from ps2.errors import ConfigError
from ps2.mlflow.flavor import log_model
from ps2.version import __version__

log = logging.getLogger(__name__)

# The minimum time between two requests with metrics of steps.
FLUSH_S = 5.0
# The maximum time for which the end of a fit waits for the tracking server.
WAIT_S = 30.0
# The limits of tracking servers: the length of a value, and the numbers of params and of metrics in a request.
MAX_VALUE_CHARS, MAX_PARAMS, MAX_METRICS = 500, 100, 1000


@dataclass(frozen=True)
class _Options:
    """The arguments of ``autolog``; ``every``: log every n-th step."""

    log_models: bool
    every: int
    tags: Mapping[str, str]


def autolog(
    log_models: bool = True,
    disable: bool = False,
    log_every_n_step: int = 1,
    extra_tags: Mapping[str, str] | None = None,
) -> None:
    """Log each ``fit``, ``partialFit`` and ``fitStream`` of PS2's estimators to MLflow, in the active or a new run.

    A run gets all params, including defaults; the metrics ``loss``, ``validation_loss`` and those of the family, by
    step; the duration, rows per second and other totals of ``summary``; a plot of the loss, if matplotlib is installed;
    and the model. For a second fit in the same run, all names begin with the estimator's name and a number. For
    ``CrossValidator``, ``TrainValidationSplit`` and ``OneVsRest``, only the fit of the best params is logged, not the
    fits in their threads. The steps of a stream are its batches. If the tracking server fails, the fit continues, with
    a warning in the log.

    Args:
        log_models: whether to log models.
        disable: whether to stop logging fits.
        log_every_n_step: log only every n-th step.
        extra_tags: tags that each run gets in addition.

    Raises:
        ConfigError: ``log_every_n_step`` is below 1.
    """
    if log_every_n_step < 1:
        raise ConfigError(f"log_every_n_step: expected at least 1, got {log_every_n_step!r}")
    options = _Options(log_models, log_every_n_step, dict(extra_tags or {}))
    observe_fits(None if disable else _Autologger(options))


class _Autologger:
    """Creates a ``_LoggedFit`` for each fit."""

    def __init__(self, options: _Options) -> None:
        self._options = options
        self._lock = threading.Lock()
        # The number of fits in each run, and of each estimator in a run (key: "run_id name").
        self._fits: Counter[str] = Counter()

    def __call__(self, estimator: Any) -> _LoggedFit | None:
        active = mlflow.active_run()
        if active is None and isinstance(threading.current_thread(), DummyProcess):
            return None  # a thread of CrossValidator, TrainValidationSplit or OneVsRest
        prefix = ""
        if active is not None:
            name, run_id = type(estimator).__name__, active.info.run_id
            with self._lock:
                self._fits[run_id] += 1
                self._fits[f"{run_id} {name}"] += 1
                if self._fits[run_id] > 1:
                    prefix = f"{name}_{self._fits[f'{run_id} {name}']}/"
        return _LoggedFit(estimator, self._options, None if active is None else active.info.run_id, prefix)


class _LoggedFit:
    """The log of one fit in a run; implements ``FitWatch``."""

    def __init__(self, estimator: Any, options: _Options, run_id: str | None, prefix: str) -> None:
        self._name = type(estimator).__name__
        self._options = options
        self._prefix = prefix
        self._uri = mlflow.get_tracking_uri()
        self._run_id = run_id
        self._creates_run = run_id is None
        self._failed = False
        self._lock = threading.Lock()
        self._pending: list[Metric] = []
        self._flushed_s = self._began_s = time.monotonic()
        self._calls: SimpleQueue[Callable[[], None] | threading.Event | None] = SimpleQueue()
        defined = [param for param in estimator.params if estimator.isDefined(param)]
        params = {param.name: _text(estimator.getOrDefault(param)) for param in defined}
        tags = {
            "estimator_name": self._name,
            "estimator_class": f"{type(estimator).__module__}.{self._name}",
            "ps2_version": __version__,
            **options.tags,
        }
        self._calls.put(lambda: self._begin(params, tags))
        # A daemon thread: the program must be able to end even if the server does not answer.
        threading.Thread(target=self._serve, name="ps2-mlflow", daemon=True).start()

    # -- in the fit's threads ----------------------------------------------------------------------------------------

    def step(self, report: StepReport) -> None:
        if report.number % self._options.every:
            return
        speed = report.rows / report.seconds if report.seconds else 0.0
        values = {"loss": report.objective, "seconds": report.seconds, "rows_per_s": speed, **report.metrics}
        if report.validation is not None:
            values["validation_loss"] = report.validation
        with self._lock:
            self._pending += self._metrics(values, report.number)
            must_flush = time.monotonic() - self._flushed_s >= FLUSH_S
            if must_flush:
                self._flushed_s = time.monotonic()
        if must_flush:
            self._calls.put(self._flush)

    def ended(self, model: Any) -> None:
        seconds = time.monotonic() - self._began_s
        self._call(lambda: self._log_end(model, seconds))
        if model is not None and self._options.log_models and not self._failed:
            self._log_model(model)
        if self._creates_run:
            self._call(lambda: mlflow.end_run("FAILED" if model is None else "FINISHED"))
        self._calls.put(None)

    def _log_model(self, model: Any) -> None:
        try:
            log_model(model, self._prefix.replace("/", "-") + "model", run_id=self._run_id)
        except Exception as error:  # MLflow raises errors of any type; none may break a fit
            log.warning("MLflow at %s: the model of %s is not logged: %s", self._uri, self._name, error)

    def _call(self, function: Callable[[], None]) -> None:
        """Let the other thread call a function, and wait until it has returned."""
        returned = threading.Event()
        self._calls.put(function)
        self._calls.put(returned)
        if not self._failed and not returned.wait(WAIT_S):
            self._fail(f"no answer within {WAIT_S:g} s")

    # -- in the thread that talks to the server ----------------------------------------------------------------------

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            if isinstance(call, threading.Event):
                call.set()
            elif not self._failed:
                try:
                    call()
                except Exception as error:  # MLflow raises errors of any type; none may break a fit
                    self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        with self._lock:
            is_first, self._failed = not self._failed, True
        if is_first:
            log.warning("MLflow at %s: the fit of %s continues, but is not logged: %s", self._uri, self._name, reason)

    @property
    def _tracking(self) -> mlflow.MlflowClient:
        return mlflow.MlflowClient(self._uri)

    @property
    def _active_run_id(self) -> str:
        assert self._run_id is not None  # _begin has set the id
        return self._run_id

    def _begin(self, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        if self._run_id is None:
            self._run_id = mlflow.start_run(tags=dict(tags)).info.run_id
        client, run_id = self._tracking, self._run_id
        entries = [Param(self._prefix + name, value) for name, value in params.items()]
        for begin in range(0, len(entries), MAX_PARAMS):
            client.log_batch(run_id, params=entries[begin : begin + MAX_PARAMS])
        if not self._creates_run:
            client.log_batch(run_id, tags=[RunTag(self._prefix + name, value) for name, value in tags.items()])

    def _flush(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, []
        for begin in range(0, len(pending), MAX_METRICS):
            self._tracking.log_batch(self._active_run_id, metrics=pending[begin : begin + MAX_METRICS])

    def _log_end(self, model: Any, seconds: float) -> None:
        values = {"fit_seconds": seconds}
        history: TrainingHistory | None = model.summary.history if getattr(model, "hasSummary", False) else None
        if history is not None:
            values.update(_totals(history))
            if len(history.objective) > history.steps:
                self._pending += self._metrics({"loss": history.objective[0]}, 0)
        with self._lock:
            self._pending += self._metrics(values, 0)
        self._flush()
        if history is not None:
            self._tracking.set_tag(self._active_run_id, f"{self._prefix}reason", history.reason)
            with suppress(ConfigError):  # matplotlib is not installed, or there is no step to draw
                figure = model.summary.plot().figure
                self._tracking.log_figure(self._active_run_id, figure, f"{self._prefix}loss.png")

    def _metrics(self, values: Mapping[str, float], step: int) -> list[Metric]:
        now_ms = int(time.time() * 1000)
        return [Metric(self._prefix + name, float(value), now_ms, step) for name, value in values.items()]


def _totals(history: TrainingHistory) -> dict[str, float]:
    """Return the totals of a training, as metrics."""
    seconds = math.fsum(history.seconds)
    totals: dict[str, float] = {
        "training_seconds": seconds,
        "training_steps": history.steps,
        "training_rows": history.rows,
        "training_bytes": history.bytes,
    }
    if seconds:
        totals["training_rows_per_s"] = history.rows / seconds
    if history.best is not None:
        totals["best_step"] = history.best
    if history.oob_score is not None:
        totals["oob_score"] = history.oob_score
    return totals


def _text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 3] + "..."
