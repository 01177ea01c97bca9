"""Multinomial naive Bayes: workers add counts to the servers', which turn them into logarithms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.frame.array_files import ArrayModel, ModelFiles
from ps2.algorithms.frame.program import Ask, DoTask, Program, Steps, Task
from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Record, Trained
from ps2.array_types import Float64s
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from tests.kernels.naive_bayes.settings import NaiveBayesSettings


@dataclass(frozen=True, kw_only=True)
class NaiveBayesPlan(Plan[NaiveBayesSettings]):
    """A training: the settings, and the numbers of features and classes."""

    dim: int
    classes: int

    @property
    def form(self) -> Form:
        """The form that rows must have."""
        return Form(self.dim, self.classes, counts=True)


class ClassProbabilities(ArrayModel):
    """log P(feature | class), shape (classes, features), and log P(class), shape (classes,)."""

    _MODEL_CLASS = "tests.kernels.naive_bayes.estimator.NaiveBayesModel"
    _FILES = ModelFiles("naive_bayes.v1", "naive Bayes", {"features": "f", "priors": "f"})

    def __init__(self, features: Float64s, priors: Float64s) -> None:
        self.features, self.priors = features, priors
        self.classes, self.dim = features.shape

    def margins(self, x: Any) -> Float64s:
        """Return log P(row and class) of rows, shape (n, classes)."""
        return x @ self.features.T + self.priors


class Count(Task):
    """Add the sums of each class's rows to the servers' counts; report the number of rows of each class."""


@dataclass(frozen=True, eq=False)
class Counting:
    """What a worker does for each task; picklable."""

    counts: DCVMatrix

    def __call__(self, reading: Reading) -> DoTask:
        def count(worker: Any, task: Task) -> None:
            rows, classes = reading.training, np.arange(self.counts.rows)
            is_of_class = np.equal(rows.y, classes[:, None]).astype(float)  # (classes, n)
            self.counts.add(classes, is_of_class @ rows.x, rows.keys)
            worker.report({"rows": is_of_class.sum(axis=1)})

        return count


class NaiveBayesProgram(Program[Trained[ClassProbabilities]]):
    """Multinomial naive Bayes."""

    def __init__(self, plan: NaiveBayesPlan, record: Record, names: CheckpointNames) -> None:
        super().__init__(plan, plan.form, record)
        first = names.vector(lambda name: DCV.dense(plan.dim, plan.classes, "float64", name=name))
        self._counts = [first, *(names.vector(first.derive) for _ in range(1, plan.classes))]

    def drive(self, ask: Ask) -> Steps[Float64s]:
        report = yield Count()
        ask(self._take_logarithms)
        smoothed = report.rows + self.plan.settings.smoothing
        return np.log(smoothed / smoothed.sum())

    def _take_logarithms(self) -> None:
        smoothing = self.plan.settings.smoothing
        for counts in self._counts:
            total = counts.sum() + smoothing * self.plan.dim
            counts.zip().apply("log_shares", total=total, smoothing=smoothing)

    def worker(self) -> Callable[[Reading], DoTask]:
        return Counting(self._counts[0].matrix())

    def result(self, priors: Float64s) -> Trained[ClassProbabilities]:
        return Trained(ClassProbabilities(self._counts[0].matrix().pull(), priors), self.record.history())

    def free(self) -> None:
        for counts in self._counts:
            counts.free()
