"""What the parts of ``benchmarks.lasso`` are asked for and answer, and the trainings that they compare."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.frame import tell
from benchmarks.lasso_data import Data
from benchmarks.local_spark import local_spark
from benchmarks.ml_data import Array
from ps2 import PS2Context
from ps2.algorithms.linear.coordinates.path import PathOptions, PathPoint
from ps2.algorithms.linear.problem import Problem, SolverOptions
from ps2.algorithms.linear.trainer import train

SERVERS = 2
# How near to the optimum, relatively.
NEAR = 1e-3
# How near another library's optimum has to be.
SAME = 1e-4
OURS = SolverOptions("sap", tol=1e-5, steps=1000)
OWLQN = SolverOptions("l-bfgs", tol=0.0, steps=1000)
# Tolerances of other libraries, the loosest first: the first one that comes near enough counts.
TOLERANCES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6)


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        rounds: turns that the medians are of.
        data_dir: folder of news20-bigram; empty: no part needs it.
        rows, features: of the generated rows.
        ratio: the strength, or a path's last one, as a part of the least one whose model is all zeros.
        models: of a path.
        most_s: a training by another schedule is given up after this time.
        memory: of Spark's JVM.
    """

    rounds: int
    data_dir: str
    rows: int
    features: int
    ratio: float
    models: int
    most_s: float
    memory: str


@dataclass(frozen=True, eq=False)
class Trained:
    """A training.

    Attributes:
        seconds: of the whole call.
        objectives, at_s: after each step, and when: seconds since the rows were read and described.
        w: shape (dim,).
        path: models of a path.
    """

    seconds: float
    objectives: Array
    at_s: Array
    w: Array
    path: tuple[PathPoint, ...] = ()


# A training of another library: of data, a strength and a tolerance.
Fit = Callable[[Data, float, float], Array]


class _Enough(Exception):
    """A training has had its time."""


@contextmanager
def spark_and_servers(asked: Asked, part: str) -> Iterator[tuple[Any, PS2Context]]:
    """Yield a Spark on two cores, and a fleet."""
    with (
        local_spark(f"lasso_{part}", 2, asked.memory) as spark,
        PS2Context.getOrCreate(spark, servers=SERVERS) as ps,
    ):
        yield spark, ps


def ours(
    ps: PS2Context,
    data: Data,
    strength: float,
    options: SolverOptions,
    most_s: float = np.inf,
    target: float = -np.inf,
) -> Trained:
    """Train with ours; a training that takes too long, or is as good as the target, returns what it had reached."""
    problem = Problem("squared", data.x.shape[1], l1=strength, standardize=False)
    objectives: list[float] = []
    at_s: list[float] = []

    def note(step: Any) -> None:
        objectives.append(step.objective)
        at_s.append(step.seconds)
        if step.seconds > most_s or step.objective <= target:
            raise _Enough

    began_s = time.monotonic()
    w = np.zeros(data.x.shape[1])
    path: tuple[PathPoint, ...] = ()
    try:
        made = train(ps, data.table, problem, options, data.facts, note)
        w, path = made.weight.pull(), made.path
        made.weight.free()
    except _Enough:
        tell(f"{options.solver} {options.schedule}: ended after {len(objectives)} steps")
    return Trained(time.monotonic() - began_s, np.array(objectives), np.array(at_s), w, path)


def path_of(options: SolverOptions, models: int, ratio: float) -> SolverOptions:
    return replace(options, path=PathOptions((), models, ratio))


def peers() -> dict[str, Fit]:
    """Return the trainings of other libraries that are installed."""
    found: dict[str, Fit] = {"celer": _celer, "scikit-learn": _sklearn}
    packages = {"celer": "celer", "scikit-learn": "sklearn"}
    for name, package in packages.items():
        if find_spec(package) is None:
            tell(f"{name} is left out; python -m pip install -r benchmarks/requirements.txt")
            del found[name]
    return found


def _celer(data: Data, strength: float, tol: float) -> Array:
    import celer

    model = celer.Lasso(alpha=strength, tol=tol, fit_intercept=True).fit(_old(data), data.y)
    return np.asarray(model.coef_)


def _sklearn(data: Data, strength: float, tol: float) -> Array:
    from sklearn.linear_model import Lasso

    return np.asarray(Lasso(alpha=strength, tol=tol, max_iter=10_000).fit(_old(data), data.y).coef_)


def _old(data: Data) -> Any:
    """Return the matrix in the form that all libraries know."""
    import scipy.sparse as sp

    return sp.csc_matrix(data.x)


@dataclass(frozen=True, eq=False)
class PeersBest:
    """The shortest training of another library that came near enough."""

    tol: float
    seconds: float


def peer_near(fit: Fit, data: Data, strength: float, target: float) -> PeersBest | None:
    """Return the loosest tolerance that reaches an objective, and its seconds."""
    for tol in TOLERANCES:
        began_s = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            w = fit(data, strength, tol)
        seconds = time.monotonic() - began_s
        if data.objective(w, strength) <= target:
            return PeersBest(tol, seconds)
    return None


def seconds_of(fit: Callable[[], Any], rounds: int) -> list[float]:
    """Return the seconds of some calls."""
    found = []
    for _ in range(rounds):
        began_s = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit()
        found.append(time.monotonic() - began_s)
    return found
