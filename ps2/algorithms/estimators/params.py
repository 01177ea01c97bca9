"""Params that all estimators have beside those of pyspark.ml: the fleet's, and features in several columns.

The params of pyspark.ml keep its names, defaults, types and docs; they come from its mixins.
"""

from __future__ import annotations

import inspect
import math
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasMaxIter,
    HasSeed,
    HasValidationIndicatorCol,
    HasWeightCol,
)

from ps2.errors import ConfigError
from ps2.name_hints import nearest

F = TypeVar("F", bound="HasFeaturesCols")
P = TypeVar("P", bound="ByName")
T = TypeVar("T")
W = TypeVar("W", bound="FleetParams")
M = TypeVar("M", bound=Callable[..., Any])


def are_thresholds(values: Sequence[float]) -> bool:
    """Return True if no value is negative and at most one is 0."""
    return all(0 <= value < math.inf for value in values) and sum(value == 0 for value in values) <= 1


MAX_FLOAT32 = 3.4028234663852886e38

Check = tuple[Callable[[Any], bool], str]
NOT_NEGATIVE: Check = (lambda value: 0 <= value < math.inf, "a finite number that is not negative")
POSITIVE: Check = (lambda value: 0 < value < math.inf, "a finite positive number")
COUNT: Check = (lambda value: value >= 1, "1 at least")
SHARE: Check = (lambda value: 0 <= value <= 1, "a number in [0, 1]")
FINITE: Check = (math.isfinite, "a finite number")
INTEGER: Check = (lambda value: -(2**31) <= value < 2**31, "an integer of 32 bits, as pyspark.ml's are")
LONG: Check = (lambda value: -(2**63) <= value < 2**63, "an integer of 64 bits")
# Trainings compute in float32, where a larger number is infinite. What may be infinite, each param's own check says.
FLOAT32: Check = (lambda value: not MAX_FLOAT32 < abs(value) < math.inf, "a number of float32, at most 3.4e38 in size")
RANGES: dict[str, Check] = {
    "maxIter": NOT_NEGATIVE,
    "numWorkers": COUNT,
    "numServers": COUNT,
    "threshold": (lambda value: not math.isnan(value), "a number"),
    "thresholds": (are_thresholds, "positive numbers, of which one may be 0"),
}


def one_of(names: Sequence[str]) -> Check:
    """Return the check that a value is one of the names."""
    return lambda name: name in names, f"one of {', '.join(names)}"


@dataclass(frozen=True)
class AnyCase:
    """The converter of a param whose values are names in any case, as in pyspark.ml. Unlike a closure, it pickles."""

    names: tuple[str, ...]

    def __call__(self, value: Any) -> str:
        name = TypeConverters.toString(value)
        return next((known for known in self.names if known.lower() == name.lower()), name)


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


def getter(param: Param[T]) -> Callable[[Any], T]:
    """Return the getter of a param, for the body of a class; it raises KeyError without a value and a default."""

    def get(self: Any) -> T:
        return self.getOrDefault(param.name)

    return _named(get, "get", param)


def setter(param: Param[T]) -> Callable[[P, T], P]:
    """Return the setter of a param, for the body of a class."""

    def set_it(self: P, value: T) -> P:
        return self._set(**{param.name: value})

    return _named(set_it, "set", param)


def _named(method: M, verb: str, param: Any) -> M:
    method.__name__ = f"{verb}{param.name[0].upper()}{param.name[1:]}"
    method.__doc__ = f"{verb.capitalize()} {param.name}: {param.doc}"
    return method


class HasFeaturesCols(HasFeaturesCol):
    """Params for features in one column of vectors, or in several columns of numbers."""

    featuresCols: Param[Any] = own_param(
        "featuresCols",
        "numeric columns that are the features, instead of featuresCol; coefficients are in their order",
        TypeConverters.toListString,
    )

    def getFeaturesCols(self) -> list[str]:
        """Get the names of the feature columns; KeyError if the features are in one column."""
        return list(self.getOrDefault(self.featuresCols))

    def setFeaturesCols(self: F, value: Sequence[str]) -> F:
        """Set the names of the feature columns, each of numbers."""
        return self._set(featuresCols=list(value))

    @property
    def _features(self) -> str | tuple[str, ...]:
        """The feature column, or the tuple of feature columns."""
        return tuple(self.getFeaturesCols()) if self.isSet(self.featuresCols) else self.getFeaturesCol()


class ByName(Params):
    """Params set by keyword, and the number of workers and servers."""

    # The checks of params' values.
    _RANGES: Mapping[str, Check] = RANGES
    # A param whose value decides the defaults of others, with these defaults.
    _DEFAULTS_BY: tuple[str, Mapping[str, Mapping[str, Any]]] | None = None

    numWorkers: Param[int] = own_param(
        "numWorkers",
        "number of tasks that train; not set: one per partition, but no more than there are task slots; one where via "
        "chooses that",
        TypeConverters.toInt,
    )
    numServers: Param[int] = own_param(
        "numServers", "servers of the fleet that fit starts if no PS2Context is active", TypeConverters.toInt
    )

    def __init__(self, *args: Any, **params: Any) -> None:
        super().__init__(*args)
        self._set_defaults()
        self.setParams(**params)

    def _set_defaults(self) -> None:
        """Set defaults that differ from pyspark.ml's, or that pyspark.ml lacks."""

    @property
    def _seed(self) -> int:
        """The seed as a number that is not negative: pyspark.ml's default is a hash, of either sign."""
        return int(self.getOrDefault("seed")) % 2**63

    def setParams(self: P, **params: Any) -> P:
        """Set params by name.

        Raises:
            TypeError: there is no such param, or its value has another type.
        """
        unknown = sorted(name for name in params if not self.hasParam(name))
        if unknown:
            names = [param.name for param in self.params]
            near = nearest(unknown[0], names)
            hint = f"did you mean {near!r}?" if near else f"there are: {', '.join(names)}"
            raise TypeError(f"{type(self).__name__}: there is no param {unknown[0]!r}; {hint}")
        return self._set(**params)

    def _set(self: P, **params: Any) -> P:
        super()._set(**params)
        self._choose_defaults()
        return self

    def set(self, param: Param[Any], value: Any) -> None:
        """Set a param."""
        super().set(param, value)
        self._choose_defaults()

    def _copyValues(self, to: Any, extra: Any = None) -> Any:
        # pyspark copies defaults one by one; some come after the param that decides them.
        copied = super()._copyValues(to, extra)
        if isinstance(copied, ByName):
            copied._choose_defaults()
        return copied

    def _choose_defaults(self) -> None:
        if self._DEFAULTS_BY is None:
            return
        name, defaults = self._DEFAULTS_BY
        if self.isSet(name) and self.getOrDefault(name) in defaults:
            self._setDefault(**{k: v for k, v in defaults[self.getOrDefault(name)].items() if self.hasParam(k)})

    getNumWorkers = getter(numWorkers)
    getNumServers = getter(numServers)


class FleetParams(ByName, HasFeaturesCols):
    """Params of every training on a fleet."""

    def _set(self: W, **params: Any) -> W:
        features = params.get("featuresCol")
        if isinstance(features, (list, tuple)):
            params = {**params, "featuresCols": list(features), "featuresCol": None}
        elif features is not None and params.get("featuresCols") is None:
            self.clear(self.featuresCols)
        super()._set(**params)
        return self


class _ShowsParams(ABCMeta):
    """Metaclass whose classes have the params as keywords in their signature, with defaults, as ``help`` shows it.

    A signature is made when somebody asks. As an attribute of the metaclass, it is not in ``dir`` of the class, all of
    which pyspark reads as it makes an object.
    """

    @property
    def __signature__(cls) -> inspect.Signature:
        if not cls.takes_keywords():
            raise AttributeError("__signature__")
        kind, known = inspect.Parameter.KEYWORD_ONLY, cls.keyword_defaults()
        return inspect.Signature([inspect.Parameter(name, kind, default=known[name]) for name in sorted(known)])

    def takes_keywords(cls) -> bool:
        """Return whether objects of the class are made with params as keywords, and with nothing else."""
        made: Any = cls
        _, *others = inspect.signature(made.__init__).parameters.values()
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return issubclass(cls, ByName) and not inspect.isabstract(cls) and all(one.kind in variable for one in others)

    def keyword_defaults(cls) -> dict[str, Any]:
        """Return the keywords of a class that takes keywords, with their defaults; None: not set."""
        made = cls()
        known = {param.name: made.getOrDefault(param) if made.isDefined(param) else None for param in made.params}
        if hasattr(cls, "setInitialModel"):
            known["initialModel"] = None
        # A default such as "uid__output" is another one for each object.
        return {name: None if made.uid in str(value) else value for name, value in known.items()}


class SaysParams(metaclass=_ShowsParams):
    """A class whose signature, as ``help`` shows it, lists its params."""


class FleetSetters(SaysParams, FleetParams):
    """Setters of the params that most estimators have; a model has those of its columns only."""

    setWeightCol = setter(HasWeightCol.weightCol)
    setValidationIndicatorCol = setter(HasValidationIndicatorCol.validationIndicatorCol)
    setNumWorkers = setter(FleetParams.numWorkers)
    setNumServers = setter(FleetParams.numServers)
    setSeed = setter(HasSeed.seed)
    setMaxIter = setter(HasMaxIter.maxIter)


def check_ranges(params: ByName) -> None:
    """Raise ConfigError for a value of a wrong type, or outside the range that the class declares."""
    for param in params.params:
        if not params.isDefined(param):
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
