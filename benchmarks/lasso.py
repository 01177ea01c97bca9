"""Lasso by coordinate descent on a schedule: against other schedules, OWL-QN, scikit-learn and celer.

docs/performance/linear.md says how to read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks import frame
from benchmarks.frame import Benchmark, Check, Line, Part, option, tell, timed
from benchmarks.local_spark import cached, spark_and_servers
from benchmarks.ml_data import NEWS20, PARTITIONS, Array, collected, file_in, read_libsvm
from ps2 import PS2Context
from ps2.algorithms.linear.plan import LinearPlan, Problem, ScheduleName
from ps2.algorithms.linear.settings import SolverSettings
from ps2.algorithms.linear.trainer import train
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Facts, Table

# Of the generated rows: features of a block, their correlation where a row has the block, blocks of a row, blocks that
# the labels depend on, and the deviation of their noise.
BLOCK, CORRELATION, BLOCKS_OF_ROW, HIDDEN, NOISE = 10, 0.9, 10, 200, 0.5
# How near to the optimum, relatively.
NEAR = 1e-3
# How near another library's optimum has to be.
SAME = 1e-4
OURS = LinearPlan(settings=SolverSettings(tol=1e-5, maxIter=1000), solver="sap")
OWLQN = LinearPlan(settings=SolverSettings(tol=0.0, maxIter=1000))
# Tolerances of other libraries, the loosest first: the first one that comes near enough counts.
TOLERANCES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6)
# Schedules that "sap" is compared with, each with its goal.
OTHERS: dict[ScheduleName, float | None] = {"random": 2.0, "cyclic": None, "greedy": None}
GOAL_OWLQN, GOAL_PEER = 2.0, 1.0 / 3.0
# The optimum, to compare others with.
EXACT = OURS.with_settings(tol=1e-8)


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(3, "Turns that the medians are of.", least=2)
    rows: int = option(100_000, "Generated rows.", least=1000)
    features: int = option(20_000, "Features of the generated rows.", least=1000)
    ratio: float = option(0.05, "Strength, as a part of the largest one.", least=1e-6)
    limit_s: float = option(20.0, "Seconds after which a training is given up.")


@dataclass(frozen=True, eq=False)
class Data:
    """Rows of one data set.

    Attributes:
        frame: cached DataFrame of ``label`` and ``features``, dealt to two workers.
        x: scipy CSC of float64, shape (n, dim).
        y: float64, shape (n,).
    """

    frame: Any
    x: sp.csc_array
    y: Array

    @property
    def table(self) -> Table:
        return Table(self.frame, ColumnNames(), PARTITIONS)

    @property
    def facts(self) -> Facts:
        n, y = len(self.y), self.y
        return Facts(n, float(n), float(n), (), float(y.mean()), float(y.std(ddof=1)))

    @property
    def largest(self) -> float:
        """The least strength whose model is all zeros."""
        return float(np.abs(self.x.T @ (self.y - self.y.mean())).max() / len(self.y))

    def objective(self, w: Array, strength: float) -> float:
        """Return half the mean squared error at the best intercept, and the penalty."""
        left = self.y - self.x @ w
        return float(0.5 * left.var() + strength * np.abs(w).sum())


def correlated(args: Args) -> Part:
    """Compare on generated rows whose features come in blocks of correlation .9."""
    with spark_and_servers("lasso", args.memory) as (spark, ps):
        return _compared(args, ps, _correlated(spark, args.rows, args.features))


def news20(args: Args) -> Part:
    """Compare on news20-bigram: far more features than rows."""
    with spark_and_servers("lasso", args.memory) as (spark, ps):
        frame = read_libsvm(spark, file_in(args.data_dir, NEWS20.train), NEWS20.features)
        rows = collected(frame)
        assert rows.y is not None
        x = sp.csr_array((rows.x.data, rows.x.indices, rows.x.indptr), shape=(len(rows.y), NEWS20.features))
        return _compared(args, ps, Data(cached(frame, PARTITIONS), sp.csc_array(x), rows.y))


def _correlated(spark: Any, rows: int, features: int) -> Data:
    """Make rows of ten blocks of ten features each, and numbers for labels; seeded.

    Features of a block come together, with values of correlation .9. The labels depend on one feature of each of 200
    blocks.
    """
    parts = [_generated(rows // PARTITIONS, features, number) for number in range(PARTITIONS)]
    created = spark.sparkContext.parallelize(range(PARTITIONS), PARTITIONS).flatMap(
        lambda number: _vectors(rows // PARTITIONS, features, number)
    )
    x = sp.vstack([_matrix(columns, values, features) for columns, values, _ in parts])
    frame = spark.createDataFrame(created, ["label", "features"])
    return Data(cached(frame, None), sp.csc_array(x), np.concatenate([y for _, _, y in parts]))


def _vectors(rows: int, features: int, number: int) -> Any:
    from pyspark.ml.linalg import SparseVector

    columns, values, y = _generated(rows, features, number)
    for label, row, its in zip(y.tolist(), columns, values, strict=True):
        yield label, SparseVector(features, row, its)


def _generated(rows: int, features: int, number: int) -> tuple[Array, Array, Array]:
    """Return columns and values of rows, shape (rows, 100), and labels."""
    rng, blocks = np.random.default_rng([11, number]), features // BLOCK
    # One block of each of ten groups: a row has none twice.
    groups = blocks // BLOCKS_OF_ROW
    chosen = rng.integers(0, groups, (rows, BLOCKS_OF_ROW)) + groups * np.arange(BLOCKS_OF_ROW)
    common = rng.standard_normal((rows, BLOCKS_OF_ROW, 1))
    own = rng.standard_normal((rows, BLOCKS_OF_ROW, BLOCK))
    values = (np.sqrt(CORRELATION) * common + np.sqrt(1.0 - CORRELATION) * own).reshape(rows, -1)
    columns = (chosen[:, :, None] * BLOCK + np.arange(BLOCK)).reshape(rows, -1)
    hidden = np.random.default_rng(11)
    w = np.zeros(features)
    w[hidden.choice(blocks, HIDDEN, replace=False) * BLOCK] = hidden.standard_normal(HIDDEN)
    y = (values * w[columns]).sum(axis=1) + NOISE * rng.standard_normal(rows)
    return columns, values, y


def _matrix(columns: Array, values: Array, features: int) -> sp.csr_array:
    rows, entries = columns.shape
    starts = np.arange(0, rows * entries + 1, entries, dtype=np.int32)  # all libraries take 32 bits
    return sp.csr_array((values.reshape(-1), columns.reshape(-1).astype(np.int32), starts), shape=(rows, features))


@dataclass(frozen=True, eq=False)
class Trained:
    """A training.

    Attributes:
        seconds: of the whole call.
        objectives, at_s: after each step, and when: seconds since the rows were read and described.
        w: shape (dim,).
    """

    seconds: float
    objectives: Array
    at_s: Array
    w: Array


# A training of another library: of data, a strength and a tolerance.
Fit = Callable[[Data, float, float], Array]


class _Enough(Exception):
    """A training has had its time."""


def ours(ps: PS2Context, data: Data, strength: float, plan: LinearPlan, limit_s: float = np.inf) -> Trained:
    """Train with ours; a training that takes too long returns what it had reached."""
    problem = Problem("squared", data.x.shape[1], l1=strength, standardize=False)
    objectives: list[float] = []
    at_s: list[float] = []

    def note(step: Any) -> None:
        objectives.append(step.objective)
        at_s.append(step.seconds)
        if step.seconds > limit_s:
            raise _Enough

    began_s = time.monotonic()
    w = np.zeros(data.x.shape[1])
    try:
        model = train(ps, data.table, problem, plan, data.facts, note)
        w = model.weight.pull()
        model.weight.free()
    except _Enough:
        tell(f"{plan.solver} {plan.schedule}: ended after {len(objectives)} steps")
    return Trained(time.monotonic() - began_s, np.array(objectives), np.array(at_s), w)


@dataclass
class _Way:
    """A training of ours to the target.

    Attributes:
        plan: the plan, with the steps that it takes.
        is_there: whether it gets to the target in time.
        at_s, whole_s: seconds of its steps, and of the whole call.
    """

    name: str
    plan: LinearPlan
    is_there: bool = True
    at_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)


def _compared(args: Args, ps: PS2Context, data: Data) -> Part:
    """Let all trainings take turns on one data set."""
    strength = args.ratio * data.largest
    train = partial(ours, ps, data, strength)
    optimum = train(EXACT)
    target = optimum.objectives[-1] * (1.0 + NEAR)
    variants = [_Way("sap", OURS), _Way("owlqn", OWLQN)]
    variants += [_Way(f"schedule {other}", replace(OURS, schedule=other)) for other in OTHERS]
    for variant in variants:
        _find_steps(variant, train, target, args.limit_s)
    for _ in range(args.rounds):
        for variant in variants:
            if variant.is_there:
                result = train(variant.plan)
                variant.at_s.append(float(result.at_s[-1]))
                variant.whole_s.append(result.seconds)
                tell(f"{variant.name}: {result.at_s[-1]:.2f} s, the call {result.seconds:.2f} s")
    sap, what = variants[0], f"sap, its steps to {NEAR:.1%} of the optimum"
    goals = {"owlqn": GOAL_OWLQN, **{f"schedule {other}": goal for other, goal in OTHERS.items()}}
    lines = [Line(what, variant.name, "s", goals[variant.name], variant.at_s, sap.at_s) for variant in variants[1:]]
    for peer, fit in peers().items():
        tol = next((tol for tol in TOLERANCES if data.objective(fit(data, strength, tol), strength) <= target), None)
        if tol is None:
            tell(f"{peer}: does not reach {NEAR:.1%}")
            continue
        seconds = [timed(fit, data, strength, tol)[1] for _ in range(args.rounds)]
        lines.append(Line(what, f"{peer} in process, tol {tol:g}", "s", GOAL_PEER, seconds, sap.at_s))
        lines.append(Line("sap, the call on cached rows", f"{peer} in process", "s", None, seconds, sap.whole_s))
    facts = {
        "rows": len(data.y),
        "features": data.x.shape[1],
        "non-zeros": data.x.nnz,
        "weights": int(np.count_nonzero(optimum.w)),
        "steps": {
            variant.name: variant.plan.settings.maxIter if variant.is_there else "not reached" for variant in variants
        },
    }
    return Part(lines, [_same(data, strength, optimum)], facts)


def _find_steps(way: _Way, train: Callable[..., Trained], target: float, limit_s: float) -> None:
    """Find the steps that a way takes; what it takes is one turn's figure if that is too long."""
    result = train(way.plan, limit_s=limit_s)
    there = np.flatnonzero(result.objectives <= target)
    if len(there):
        way.plan = way.plan.with_settings(maxIter=int(there[0]) + 1)
        tell(f"{way.name}: {way.plan.settings.maxIter} steps")
    else:
        way.is_there, way.at_s = False, [float(result.at_s[-1])]
        tell(
            f"{way.name}: at {result.objectives[-1] / target * (1.0 + NEAR) - 1:.2%} of the optimum after {limit_s:g} s"
        )
    train(OURS.with_settings(maxIter=2))  # a training that was given up has ended Spark's Python workers


def _same(data: Data, strength: float, optimum: Trained) -> Check:
    """Compare the optimum with scikit-learn's, or celer's; without them with the gap that ours has proven."""
    result = peers()
    ours_value = data.objective(optimum.w, strength)
    for peer in ("celer", "scikit-learn"):
        if peer in result:
            value = data.objective(result[peer](data, strength, 1e-8), strength)
            return Check(f"the optimum, against {peer}'s", abs(ours_value / value - 1.0), SAME)
    return Check("the optimum, by our history and by NumPy", abs(ours_value / optimum.objectives[-1] - 1), SAME)


def peers() -> dict[str, Fit]:
    """Return the trainings of other libraries that are installed."""
    result: dict[str, Fit] = {"celer": _celer, "scikit-learn": _sklearn}
    packages = {"celer": "celer", "scikit-learn": "sklearn"}
    for name, package in packages.items():
        if find_spec(package) is None:
            tell(f"{name} is left out; python -m pip install -r benchmarks/requirements.txt")
            del result[name]
    return result


def _celer(data: Data, strength: float, tol: float) -> Array:
    import celer

    model = celer.Lasso(alpha=strength, tol=tol, fit_intercept=True).fit(sp.csc_matrix(data.x), data.y)
    return np.asarray(model.coef_)


def _sklearn(data: Data, strength: float, tol: float) -> Array:
    from sklearn.linear_model import Lasso

    return np.asarray(Lasso(alpha=strength, tol=tol, max_iter=10_000).fit(sp.csc_matrix(data.x), data.y).coef_)


BENCHMARK = Benchmark(
    "lasso",
    Args,
    {"correlated": correlated, "news20": news20},
    {"news20": NEWS20.train},
    packages=("scikit-learn", "celer"),
)

if __name__ == "__main__":
    BENCHMARK.main()
