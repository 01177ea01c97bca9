"""Estimators whose training goes on from a model."""

from __future__ import annotations

from typing import Any, TypeVar

from pyspark.ml.util import MLWriter

from ps2.algorithms.frame.estimator import TrainingEstimator
from ps2.errors import UsageError

E = TypeVar("E", bound="HasInitialModel")


class HasInitialModel(TrainingEstimator):
    """An estimator whose training may go on from a model: ``setInitialModel``, or the keyword ``initialModel``."""

    # What the training begins with; None: it begins anew.
    _initial: Any = None

    def setInitialModel(self: E, value: Any) -> E:
        """Set a model to go on from; None: begin anew. It is not part of the estimator's file.

        Raises:
            ConfigError: the estimator's training cannot begin with it.
        """
        self._initial = None if value is None else self._start_of(value)
        return self

    def _start_of(self, value: Any) -> Any:
        """Return what a training begins with; raise ConfigError if the model is of another kind."""
        raise NotImplementedError

    def setParams(self: E, **params: Any) -> E:
        """Set params, and perhaps the initial model, by name.

        Raises:
            TypeError: there is no such param, or its value has another type.
            ConfigError: the training cannot begin with the initial model.
        """
        if "initialModel" in params:
            self.setInitialModel(params.pop("initialModel"))
        return super().setParams(**params)

    def write(self) -> MLWriter:
        """Return a writer: ``write().overwrite().save(path)``.

        Raises:
            UsageError: there is an initial model, which is not part of the file.
        """
        if self._initial is not None:
            raise UsageError("initialModel: a file of the estimator would lack it; save the model itself")
        return super().write()
