"""Small tables to train on, shard by shard, and what plain NumPy says of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse as sp
from in_process import ArrayTable, training_context
from scipy.special import expit, logsumexp

from ps2.algorithms.linear.plan import LinearPlan, PathPoint, Problem
from ps2.algorithms.linear.settings import SolverName, SolverSettings
from ps2.algorithms.linear.trainer import TrainedModel, train
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.record import TrainingHistory
from ps2.algorithms.training.table import Facts, Table

COLUMNS = ColumnNames()
WEIGHTED = ColumnNames(weight="weight")


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of all workers.

    Attributes:
        x: shape (n, dim).
        y: shape (n,).
        c: weights, shape (n,).
        cuts: where the shard of each worker but the first begins.
        held: which rows are held out, bool, shape (n,); None: there is no such column.
    """

    x: Any
    y: Any
    c: Any
    cuts: tuple[int, ...]
    held: Any = None

    @property
    def shards(self) -> list[Rows]:
        """The rows of each worker."""
        parts = np.split(np.arange(len(self.y)), self.cuts)
        return [Rows(self.x[part], self.y[part], self.c[part], ()) for part in parts]

    def facts(self, classes: int | None) -> Facts:
        """What the driver knows of the rows to train on."""
        used = np.full(len(self.y), True) if self.held is None else ~self.held
        y, c = self.y[used], self.c[used]
        mean = float(c @ y / c.sum())
        spread = float(c @ (y - mean) ** 2 / (c.sum() - (c @ c) / c.sum()))
        of_classes = tuple(float(c[y == k].sum()) for k in range(classes or 0))
        return Facts(len(y), float(c.sum()), float(c @ c), of_classes, mean, spread**0.5)

    def table(self, columns: ColumnNames, stride: int | None = None) -> ArrayTable:
        """The rows without Spark.

        Args:
            stride: sparse rows, whose feature k is number k * stride; None: dense rows.
        """
        x = self.x
        if stride is not None:
            used = sp.coo_array(x)
            shape = (len(self.y), (x.shape[1] - 1) * stride + 1)
            x = sp.csr_array((used.data, (used.row, used.col * stride)), shape)
        held = np.full(len(self.y), False) if self.held is None else self.held
        return ArrayTable.of(x, self.y, columns=columns, cuts=self.cuts, weight=self.c, held=held)

    def frame(self, spark: Any) -> Any:
        """A cached DataFrame with one rdd_partition a shard."""
        held = np.full(len(self.y), False) if self.held is None else self.held
        rows = [
            (x.tolist(), float(y), float(c), bool(h)) for x, y, c, h in zip(self.x, self.y, self.c, held, strict=True)
        ]
        ends = [0, *self.cuts, len(rows)]
        shards = [rows[begin:end] for begin, end in itertools.pairwise(ends)]
        dealt_rows = spark.sparkContext.parallelize(shards, len(shards)).flatMap(lambda shard: shard)
        frame = spark.createDataFrame(
            dealt_rows, "features array<double>, label double, weight double, held boolean"
        ).cache()
        frame.count()
        return frame


def schema_of(row: Mapping[str, Any]) -> Any:
    """Return the schema of such rows. Spark would run a job to find it out."""
    from pyspark.ml.linalg import Vector, VectorUDT
    from pyspark.sql.types import BooleanType, DoubleType, LongType, StructField, StructType

    types = {bool: BooleanType(), float: DoubleType(), int: LongType()}
    return StructType(
        [
            StructField(name, VectorUDT() if isinstance(value, Vector) else types[type(value)])
            for name, value in row.items()
        ]
    )


def make(n: int = 60, dim: int = 5, cuts: tuple[int, ...] = (30,), classes: int = 2, zeros: float = 0.0) -> Rows:
    """Make rows whose labels depend on the features; a share of their entries is 0."""
    rng = np.random.default_rng(n + dim)
    x = rng.normal(size=(n, dim)) * (rng.random((n, dim)) >= zeros)
    margins = x @ rng.normal(size=(dim, classes)) + rng.gumbel(size=(n, classes))
    return Rows(x, margins.argmax(axis=1).astype(float), rng.integers(1, 4, n).astype(float), cuts)


def plan_of(solver: SolverName = "l-bfgs", **values: Any) -> LinearPlan:
    """Return a plan with values of settings and of the plan's own fields."""
    return change_plan(LinearPlan(settings=SolverSettings(), solver=solver), **values)


def change_plan(plan: LinearPlan, **values: Any) -> LinearPlan:
    """Return the plan with other values of settings and of its own fields."""
    own = {field.name: values.pop(field.name) for field in fields(plan) if field.name in values}
    return replace(plan.with_settings(**values), **own)


@dataclass(frozen=True, eq=False)
class Fit:
    """The result of a training on arrays.

    Attributes:
        w: weights of the features of the rows, shape (dim, width).
        biases: shape (biases,).
        is_sparse: whether the servers have only the weights of features that rows use.
    """

    w: Any
    biases: Any
    history: TrainingHistory
    path: tuple[PathPoint, ...]
    is_sparse: bool


def fit(
    rows: Rows, problem: Problem, plan: LinearPlan, columns: ColumnNames = WEIGHTED, stride: int | None = None
) -> Fit:
    """Train on two servers of this process.

    Args:
        stride: as of ``Rows.table``.
    """
    with training_context() as ps:
        model = train(ps, rows.table(columns, stride), problem, plan, _facts(rows, problem, columns))
        features = np.arange(rows.x.shape[1]) * (stride or 1)
        keys = features[:, None] * problem.width + np.arange(problem.width)
        w = model.weight.pull(keys.reshape(-1)).reshape(keys.shape)
        return Fit(w, model.biases, model.history, model.path, model.weight.isSparse)


def trained(
    ps: Any, frame: Any, rows: Rows, problem: Problem, plan: LinearPlan, columns: ColumnNames = COLUMNS
) -> TrainedModel:
    """Train on a frame of the rows."""
    return train(ps, Table(frame, columns, len(rows.cuts) + 1), problem, plan, _facts(rows, problem, columns))


def _facts(rows: Rows, problem: Problem, columns: ColumnNames) -> Facts:
    plain = rows if columns.weight else replace(rows, c=np.ones(len(rows.y)))
    return (plain if columns.validation else replace(plain, held=None)).facts(problem.classes)


def losses(problem: Problem, margins: Any, y: Any, b: Any) -> Any:
    """The loss of each row, of the simplest formulas."""
    sign = 2 * y - 1
    if problem.loss == "softmax":
        return logsumexp(margins, axis=1) - margins[np.arange(len(y)), y.astype(int)]
    if problem.loss == "logistic":
        return np.logaddexp(0, -sign * margins)
    if problem.loss == "squaredHinge":
        return np.maximum(1 - sign * margins, 0) ** 2
    if problem.loss == "squared":
        return 0.5 * (margins - y) ** 2
    assert problem.loss == "huber"
    scale, eps = np.exp(b[1]), problem.epsilon
    z = np.abs(margins - y) / scale
    return 0.5 * (scale + np.where(z <= eps, z**2, 2 * eps * z - eps**2) * scale)


def objective(problem: Problem, rows: Rows, w: Any, b: Any) -> float:
    """The objective at weights of the features as they are given, shape (dim, width), and biases."""
    scaled = w * deviations(rows)[:, None] if problem.standardize else w
    margins = rows.x @ w + (b if problem.loss == "softmax" else b[:1])
    of_rows = losses(problem, margins if problem.loss == "softmax" else margins[:, 0], rows.y, b)
    mean = rows.c @ of_rows / rows.c.sum()
    return float(mean + problem.l1 * np.abs(scaled).sum() + 0.5 * problem.l2 * (scaled**2).sum())


def deviations(rows: Rows) -> Any:
    """Standard deviations as pyspark's Summarizer has them; 0 of equal values, whose mean BLAS may round."""
    mean = rows.c @ rows.x / rows.c.sum()
    result = np.sqrt(rows.c @ (rows.x - mean) ** 2 / (rows.c.sum() - (rows.c @ rows.c) / rows.c.sum()))
    return np.where(np.ptp(rows.x[rows.c > 0], axis=0) == 0, 0.0, result)


def minimum(problem: Problem, rows: Rows) -> float:
    """The smallest objective, by SciPy; with an L1 penalty, weights are differences of positive numbers."""
    size, split = problem.size, problem.l1 > 0
    free = np.full(problem.biases, problem.fit_intercept)
    if problem.loss == "huber":
        free[1] = True

    def unpack(v: Any) -> tuple[Any, Any]:
        w = v[:size] - v[size : 2 * size] if split else v[:size]
        return w.reshape(problem.dim, problem.width), v[-problem.biases :] * free

    smooth = replace(problem, l1=0.0)
    scale = deviations(rows) if problem.standardize else np.ones(problem.dim)

    def at(v: Any) -> float:
        w, b = unpack(v)
        safe = np.where(scale > 0, scale, 1.0)[:, None]
        penalty = problem.l1 * v[: 2 * size].sum() if split else 0.0
        return objective(smooth, rows, w / safe * (scale > 0)[:, None], b) + penalty

    start = np.zeros(size * (2 if split else 1) + problem.biases)
    bounds = [(0, None)] * (2 * size) + [(None, None)] * problem.biases if split else None
    result = scipy.optimize.minimize(
        at, start, method="L-BFGS-B", bounds=bounds, options={"maxiter": 5000, "maxfun": 10**6, "ftol": 1e-14}
    )
    return float(result.fun)


def logistic_gradient(rows: Rows, w: Any, b: Any) -> tuple[Any, Any]:
    """Gradient of the mean logistic loss by weights, shape (dim,), and by the intercept, shape (1,)."""
    slopes = rows.c * (expit(rows.x @ w + b[0]) - rows.y) / rows.c.sum()
    return rows.x.T @ slopes, np.array([slopes.sum()])
