"""Plans of trainings that differ from others in a few settings and facts."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from ps2.algorithms.frame.settings import Plan, settings_of, with_values
from ps2.algorithms.trees.forests.plan import ForestPlan
from ps2.algorithms.trees.problem import BoostingPlan
from ps2.algorithms.trees.settings import BoostingSettings, ForestSettings

P = TypeVar("P", bound=Plan[Any])


def changed(plan: P, **values: Any) -> P:
    """Return a plan with other settings and facts, by name; ``via`` is both."""
    settings = {name: value for name, value in values.items() if name in settings_of(type(plan.settings))}
    known = {field.name for field in fields(plan)}
    facts = {name: value for name, value in values.items() if name in known or name not in settings}
    return replace(plan, settings=with_values(plan.settings, **settings), **facts)


def boosting(**values: Any) -> BoostingPlan:
    """Return a plan of boosted trees with xgboost's penalties and the values."""
    return changed(BoostingPlan(settings=BoostingSettings(regLambda=1.0, minChildWeight=1.0)), **values)


def forest(impurity: Any, classes: int, rows: int, **values: Any) -> ForestPlan:
    """Return a plan of a random forest with the values."""
    return changed(ForestPlan(settings=ForestSettings(), impurity=impurity, classes=classes, rows=rows), **values)
