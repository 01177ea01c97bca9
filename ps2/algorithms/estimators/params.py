"""Params that all estimators have beside those of pyspark.ml: the fleet's, and features in several columns.

The params of pyspark.ml keep its names, defaults, types and docs; they come from its mixins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import (
    HasMaxIter,
    HasSeed,
    HasValidationIndicatorCol,
    HasWeightCol,
)

from ps2.algorithms.frame.params import AnyCase, ByName, FeatureParams
from ps2.algorithms.frame.settings import FLOAT32, Check, getter, setter, settings_of
from ps2.algorithms.frame.shared_settings import are_thresholds
from ps2.errors import ConfigError

__all__ = ["FLOAT32", "ByName", "Check", "are_thresholds", "getter", "setter"]


NOT_NEGATIVE: Check = (lambda value: 0 <= value < math.inf, "a finite number that is not negative")
POSITIVE: Check = (lambda value: 0 < value < math.inf, "a finite positive number")
COUNT: Check = (lambda value: value >= 1, "at least 1")
SHARE: Check = (lambda value: 0 <= value <= 1, "a number in [0, 1]")
FINITE: Check = (math.isfinite, "a finite number")
INTEGER: Check = (lambda value: -(2**31) <= value < 2**31, "an integer of 32 bits, as pyspark.ml's are")
LONG: Check = (lambda value: -(2**63) <= value < 2**63, "an integer of 64 bits")
RANGES: dict[str, Check] = {
    "maxIter": NOT_NEGATIVE,
    "threshold": (lambda value: not math.isnan(value), "a number"),
    "thresholds": (are_thresholds, "positive numbers, of which one may be 0"),
}


def one_of(names: Sequence[str]) -> Check:
    """Return the check that a value is one of the names."""
    return lambda name: name in names, f"one of {', '.join(names)}"


def any_case(names: Iterable[str]) -> AnyCase:
    """Return the converter of a param whose values are names in any case, as in pyspark.ml.

    The converter returns the name as listed here; ``check_ranges`` rejects unknown names.
    """
    return AnyCase(tuple(names))


def own_param(name: str, doc: str, converter: Callable[[Any], Any]) -> Any:
    """Return a param that pyspark.ml does not have, for the body of a class."""
    return Param(Params._dummy(), name, doc, typeConverter=converter)


def described(param: Any, doc: str) -> Any:
    """Return a param of the same name and type with another description."""
    return own_param(param.name, doc, param.typeConverter)


def choice(param: Any, names: Iterable[str], doc: str = "") -> Any:
    """Return a param of the same name whose values are names in any case, perhaps with another description."""
    return own_param(param.name, doc or param.doc, any_case(names))


class FleetParams(FeatureParams):
    """Params of every training on a fleet."""


class SaysParams:
    """A class whose signature, as ``help`` shows it, lists its params."""


class FleetSetters(FleetParams):
    """Setters of the params that most estimators have; a model has those of its columns only."""

    setWeightCol = setter(HasWeightCol.weightCol)
    setValidationIndicatorCol = setter(HasValidationIndicatorCol.validationIndicatorCol)
    setSeed = setter(HasSeed.seed)
    setMaxIter = setter(HasMaxIter.maxIter)


def check_ranges(params: ByName) -> None:
    """Raise ConfigError for a value of a wrong type, or outside the range that the class declares."""
    params._check_values()
    for param in params.params:
        if not params.isDefined(param) or param.name in settings_of(type(params)):
            continue
        value = params.getOrDefault(param)
        for is_fine, expected in _checks(param, params._RANGES):
            if not is_fine(value):
                raise ConfigError(f"{param.name}: expected {expected}, got {value!r}")
        is_fine, expected = FLOAT32
        for number in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(number, float) and not is_fine(number):
                raise ConfigError(f"{param.name}: expected {expected}, got {number!r}")


def _checks(param: Any, ranges: Mapping[str, Check]) -> Sequence[Check]:
    """Describe a valid value: integers fit Java's int, as in pyspark.ml; floats are finite by default."""
    own = [ranges[param.name]] if param.name in ranges else []
    if param.typeConverter is TypeConverters.toInt:
        return [LONG if param.name == HasSeed.seed.name else INTEGER, *own]
    if param.typeConverter is TypeConverters.toFloat:
        return own or [FINITE]
    return own
