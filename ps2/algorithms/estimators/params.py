"""The params that all estimators have beside pyspark.ml's own: for the fleet, and for features in several columns.

Names, defaults, types and docs of what pyspark.ml has are its own: they come from its mixins.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasFeaturesCol

from ps2.errors import ConfigError

F = TypeVar("F", bound="HasFeaturesCols")
P = TypeVar("P", bound="FleetParams")


def are_thresholds(values: Sequence[float]) -> bool:
    """Tell whether no value is negative, and one is 0 at most."""
    return all(0 <= value < math.inf for value in values) and sum(value == 0 for value in values) <= 1


Check = tuple[Callable[[Any], bool], str]
NOT_NEGATIVE: Check = (lambda value: 0 <= value < math.inf, "a finite number that is not negative")
POSITIVE: Check = (lambda value: 0 < value < math.inf, "a finite positive number")
COUNT: Check = (lambda value: value >= 1, "1 at least")
SHARE: Check = (lambda value: 0 <= value <= 1, "a number in [0, 1]")
RANGES: dict[str, Check] = {
    "maxIter": NOT_NEGATIVE,
    "numWorkers": COUNT,
    "numServers": COUNT,
    "threshold": (lambda value: not math.isnan(value), "a number"),
    "thresholds": (are_thresholds, "positive numbers, of which one may be 0"),
}


def own_param(name: str, doc: str, converter: Callable[[Any], Any]) -> Any:
    """Return a param that pyspark.ml does not have, for the body of a class."""
    return Param(Params._dummy(), name, doc, typeConverter=converter)


def described(param: Any, doc: str) -> Any:
    """Return a param of the same name and type with another description."""
    return own_param(param.name, doc, param.typeConverter)


class HasFeaturesCols(HasFeaturesCol):
    """Features in one column, or in several columns of numbers."""

    featuresCols: Param[Any] = own_param(
        "featuresCols",
        "names of columns of numbers that are the features, instead of featuresCol; the weights are in their order",
        TypeConverters.toListString,
    )

    def getFeaturesCols(self) -> list[str]:
        """Get the names of the columns of numbers; KeyError if features are in one column."""
        return list(self.getOrDefault(self.featuresCols))

    def setFeaturesCols(self: F, value: Sequence[str]) -> F:
        """Set the names of columns of numbers that are the features."""
        return self._set(featuresCols=list(value))

    @property
    def _features(self) -> str | tuple[str, ...]:
        """Where features are."""
        return tuple(self.getFeaturesCols()) if self.isSet(self.featuresCols) else self.getFeaturesCol()


class FleetParams(HasFeaturesCols):
    """How any model is trained on a fleet."""

    # What values of params may be.
    _RANGES: Mapping[str, Check] = RANGES

    numWorkers: Param[int] = own_param(
        "numWorkers",
        "tasks that train; if it is not set, one for each partition, as far as there are task slots",
        TypeConverters.toInt,
    )
    numServers: Param[int] = own_param(
        "numServers", "servers of the fleet that fit starts where no PS2Context is active", TypeConverters.toInt
    )

    def __init__(self, *args: Any, **params: Any) -> None:
        super().__init__(*args)
        self._set_defaults()
        self.setParams(**params)

    def _set_defaults(self) -> None:
        """Set defaults of params that not all have, or that differ."""

    def setParams(self: P, **params: Any) -> P:
        """Set params by name.

        Raises:
            TypeError: there is no such param, or its value is of another type.
        """
        unknown = sorted(name for name in params if not self.hasParam(name))
        if unknown:
            known = ", ".join(param.name for param in self.params)
            raise TypeError(f"{type(self).__name__}: there is no param {unknown[0]!r}; there are: {known}")
        return self._set(**params)

    def _set(self: P, **params: Any) -> P:
        features = params.get("featuresCol")
        if isinstance(features, (list, tuple)):
            params = {**params, "featuresCols": list(features), "featuresCol": None}
        elif features is not None and params.get("featuresCols") is None:
            self.clear(self.featuresCols)
        super()._set(**params)
        return self

    def getNumWorkers(self) -> int:
        """Get the number of tasks that train; KeyError if it is not set."""
        return self.getOrDefault(self.numWorkers)

    def getNumServers(self) -> int:
        """Get the number of servers to start; KeyError if it is not set."""
        return self.getOrDefault(self.numServers)


class FleetSetters(FleetParams):
    """The setters of params that most estimators have; models have those of their columns alone."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Say in the signature, as ``help`` shows it, which params there are."""
        super().__init_subclass__(**kwargs)
        names = sorted(name for name in dir(cls) if isinstance(getattr(cls, name, None), Param))
        keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names]
        cls.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]

    def setWeightCol(self: P, value: str) -> P:
        """Set the name of the column of weights."""
        return self._set(weightCol=value)

    def setValidationIndicatorCol(self: P, value: str) -> P:
        """Set the name of the column that is true for rows to hold out."""
        return self._set(validationIndicatorCol=value)

    def setNumWorkers(self: P, value: int) -> P:
        """Set the number of tasks that train."""
        return self._set(numWorkers=value)

    def setNumServers(self: P, value: int) -> P:
        """Set the number of servers to start where no PS2Context is active."""
        return self._set(numServers=value)

    def setSeed(self: P, value: int) -> P:
        """Set the seed of minibatches, orders and beginnings."""
        return self._set(seed=value)

    def setMaxIter(self: P, value: int) -> P:
        """Set the largest number of steps."""
        return self._set(maxIter=value)


def check_ranges(params: FleetParams) -> None:
    """Raise ConfigError for a value that cannot be."""
    for name, (is_fine, expected) in params._RANGES.items():
        if params.hasParam(name) and params.isDefined(name):
            value = params.getOrDefault(name)
            if not is_fine(value):
                raise ConfigError(f"{name}: expected {expected}, got {value!r}")
