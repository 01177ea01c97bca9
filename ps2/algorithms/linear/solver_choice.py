"""Which solver and optimizer an estimator trains with, and which parameters go with them."""

from __future__ import annotations

from typing import Any

from ps2.algorithms.linear.settings import TAKES, SolverName
from ps2.algorithms.linear.solvers.optimizer import lazy_ones, step_of
from ps2.errors import ConfigError
from ps2.ops.all import optimizer_steps

# The parameters that not every solver takes.
CHOOSY = sorted({name for names in TAKES.values() for name in names})
# Values of ``solver`` that stand for a solver and an optimizer; None: that of ``optimizer``.
STANDS_FOR: dict[Any, tuple[SolverName, str | None]] = {
    "auto": ("l-bfgs", None),
    "adamW": ("minibatch", "adamW"),
    "gd": ("minibatch", "gd"),
}
TAKES_L1 = ("l-bfgs", "normal", "minibatch", "ma-sgd", "sap")
# Why a solver cannot begin with a model.
NO_INITIAL_MODEL = {
    "normal": "computes the minimum at once",
    "sap": "begins with the model of all zeros, as its paths do",
}


def choose_solver(params: Any) -> tuple[SolverName, str]:
    """Return solver and optimizer of an estimator, without the names that stand for others.

    Raises:
        ConfigError: solver and optimizer contradict each other.
    """
    name, optimizer = params.getSolver(), params.getOptimizer()
    solver, its_optimizer = STANDS_FOR.get(name, (name, None))
    if params.isSet("optimizer"):
        if not params.isSet("solver") or name == "auto":
            return "minibatch", optimizer
        if its_optimizer not in (None, optimizer):
            raise ConfigError(
                f"optimizer: solver {name!r} has an update rule of its own, got {optimizer!r}; 'minibatch' takes it"
            )
    return solver, its_optimizer or optimizer


def check_solver(params: Any, solver: SolverName, optimizer: str, l1: float) -> None:
    """Raise ConfigError if a solver does not take what is set.

    Args:
        params: the estimator.
        l1: the strength of the L1 penalty.
    """
    for name in CHOOSY:
        if name in TAKES.get(solver, ()) or not params.hasParam(name) or not params.isSet(name):
            continue
        if _differs(params, name):
            takers = ", ".join(repr(taker) for taker, names in TAKES.items() if name in names)
            raise ConfigError(f"{name}: solver {params.getSolver()!r} does not take it, only {takers}")
    if l1 > 0 and solver not in TAKES_L1:
        raise ConfigError(
            f"elasticNetParam: solver {solver!r} takes L2 penalties only, got {params.getElasticNetParam():g}; "
            f"{', '.join(map(repr, TAKES_L1))} take both"
        )
    if params.getLazy():
        _check_lazy(optimizer, params.getRegParam())
    _check_local_steps(params)
    if solver == "sap":
        _check_coordinates(params, l1)


def check_initial_model(solver: str, optimizer: str) -> None:
    """Raise ConfigError if a solver cannot begin with a model."""
    if solver in NO_INITIAL_MODEL:
        raise ConfigError(
            f"initialModel: solver {solver!r} {NO_INITIAL_MODEL[solver]}, and takes none; 'l-bfgs' takes it"
        )
    if solver == "minibatch" and _follows_from_sums(optimizer):
        raise ConfigError(
            f"initialModel: the weights of optimizer {optimizer!r} follow from sums of gradients, which a "
            "model does not have; 'adagrad' takes it"
        )


def _follows_from_sums(optimizer: str) -> bool:
    """Return whether weights follow from sums over all steps, as FTRL's do."""
    declared = step_of(optimizer).optimizer
    return declared is not None and declared.catch_up is not None


def _check_lazy(optimizer: str, penalty: float) -> None:
    if penalty > 0 and not _follows_from_sums(optimizer):
        takers = ", ".join(repr(name) for name in optimizer_steps() if _follows_from_sums(name))
        raise ConfigError(
            f"lazy: with a penalty, which changes all weights in each step, only optimizer {takers} takes it, "
            f"got {optimizer!r} with regParam {penalty:g}"
        )
    if "lazy" not in step_of(optimizer).params:
        takers = ", ".join(map(repr, lazy_ones()))
        raise ConfigError(f"lazy: optimizer {optimizer!r} does not take it, only {takers}")


def _check_local_steps(params: Any) -> None:
    """Raise ConfigError for params of local steps that are without effect."""
    if _differs(params, "momentum") and not params.getAdaptiveMomentum():
        raise ConfigError(f"momentum: adaptiveMomentum=False has none, got {params.getMomentum():g}")
    if params.getLocalSearch() == "never":
        for name in ("momentum", "adaptiveMomentum", "localSteps"):
            if _differs(params, name):
                value = params.getOrDefault(name)
                raise ConfigError(f"{name}: localSearch='never' takes no local steps, got {value}")


def _check_coordinates(params: Any, l1: float) -> None:
    """Raise ConfigError for params that do not go with solver "sap"."""
    if l1 <= 0:
        raise ConfigError(
            "solver: 'sap' is for L1 penalties: expected regParam and elasticNetParam above 0, got "
            f"{params.getRegParam():g} and {params.getElasticNetParam():g}; 'l-bfgs' takes L2 penalties alone, and none"
        )
    if params.isSet("validationIndicatorCol"):
        raise ConfigError("validationIndicatorCol: solver 'sap' takes no steps that it could judge")


def _differs(params: Any, name: str) -> bool:
    """Return whether a param is something else than its default."""
    param = params.getParam(name)
    return bool(params.getOrDefault(param) != params._defaultParamMap.get(param))
