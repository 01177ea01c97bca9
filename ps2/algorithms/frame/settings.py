"""A parameter declared once.

The declaration defines the pyspark ``Param``, its check, default, getter, setter and typed keyword, the option of
``ps2 train``, the JSON of saved models, and the row in the docs. This module does not import pyspark, because workers
and scorers without Spark read settings, too. ``params.py`` has pyspark's side.

Example::

    class KMeansSettings(Settings):
        k: Setting[int] = param(2, "the number of clusters", at_least=1)
        initMode: Setting[str] = param("k-means||", "how to choose the first centres", one_of=("k-means||", "random"))

        getK, setK = getter(k), setter(k)

    class KMeans(KMeansSettings, FleetEstimator): ...

    KMeans(k=5).k                            # Param[int], for ParamGridBuilder
    KMeans(k=5)._values(KMeansSettings).k    # int, for the program
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

from ps2.data.spilling import Spill, SpillName
from ps2.errors import ConfigError
from ps2.name_hints import nearest

if TYPE_CHECKING:
    from pyspark.ml.param import Param, Params

if sys.version_info >= (3, 11):
    from typing import dataclass_transform
elif TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # only type checkers need it

    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        return lambda cls: cls


U = TypeVar("U")
S = TypeVar("S")
T = TypeVar("T")
N = TypeVar("N", bound="Settings")
P = TypeVar("P", bound="Plan[Any]")

# A predicate, and the values that it accepts, in words.
Check = tuple[Callable[[Any], bool], str]

# Parameters with these suffixes do not decide the model: names of columns, and where rows and a training are.
NOT_COMPARED = ("Col", "Cols", "numServers", "numWorkers", "spill", "via")
MAX_FLOAT32 = 3.4028234663852886e38
# Trainings compute in float32, in which larger numbers become infinite.
FLOAT32: Check = (lambda value: not MAX_FLOAT32 < abs(value) < math.inf, "a number of float32, at most 3.4e38 in size")


# The method of pyspark's ``TypeConverters`` for each type.
CONVERTERS: dict[Any, str] = {
    bool: "toBoolean",
    int: "toInt",
    float: "toFloat",
    str: "toString",
    list[float]: "toListFloat",
    list[int]: "toListInt",
    list[str]: "toListString",
}


@dataclass(frozen=True)
class AnyCase:
    """The converter of a param whose values are names in upper or lower case, as in pyspark.ml. It is picklable."""

    names: tuple[str, ...]

    def __call__(self, value: Any) -> str:
        from pyspark.ml.param import TypeConverters

        name = TypeConverters.toString(value)
        return next((known for known in self.names if known.lower() == name.lower()), name)


class Setting(Generic[T]):
    """A declared parameter. An estimator's attribute is a ``Param``; the attribute of settings is a value of type T.

    Attributes:
        name: the name, in camelCase as in pyspark.ml.
        default: the default; None: there is no default, and the value in settings is None unless it is set.
        kind: the type of a value (int, float, bool, str, list[int], list[float], list[str]), the name of a method of
            pyspark's ``TypeConverters``, or a function that converts a value.
        choices: the names that are valid values, in upper or lower case; empty: any value of the type is valid.
        option: the option of ``ps2 train``, without leading dashes; "": the parameter's name in lower case with dashes
            between words; None: there is no option.
        in_model: whether a trained model has the setter, too.
    """

    def __init__(  # noqa: PLR0913 - ``param`` calls it
        self,
        default: T,
        doc: str,
        kind: Any,
        choices: Sequence[str],
        checks: Sequence[Check],
        option: str | None,
        in_model: bool,
    ) -> None:
        self.default, self.doc, self.kind, self.choices, self.checks = default, doc, kind, choices, checks
        self.option, self.in_model, self.name = option, in_model, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @cached_property
    def param(self) -> Param[T]:
        """The ``Param`` of the class, which pyspark copies for each object."""
        from pyspark.ml.param import Param, Params, TypeConverters

        convert: Any = AnyCase(tuple(self.choices)) if self.choices else self.kind
        if convert in CONVERTERS:
            convert = CONVERTERS[convert]
        if isinstance(convert, str):
            convert = getattr(TypeConverters, convert)
        return Param(Params._dummy(), self.name, self.doc, typeConverter=convert)

    @overload
    def __get__(self, obj: Params | None, owner: Any) -> Param[T]: ...
    @overload
    def __get__(self, obj: Settings, owner: Any) -> T: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        if obj is None:  # a class of settings needs no pyspark
            return self.param if owner._has_params else self
        return obj.__dict__.get(self.name, self.default)

    def __set__(self, obj: Settings, value: T) -> None:
        obj._put(self.name, value)

    def check(self, value: Any) -> None:
        """Raise ConfigError unless the value is allowed. None is allowed if there is no default."""
        if value is None and self.default is None:
            return
        if value is None:
            raise ConfigError(f"{self.name}: expected {self.allowed or 'a value'}, got None")
        for is_allowed, expected in self.checks:
            if not is_allowed(value):
                raise ConfigError(f"{self.name}: expected {expected}, got {value!r}")

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        return " and ".join(expected for _, expected in self.checks)


class Flexible(Setting[T], Generic[T, S]):
    """A parameter whose keyword and setter take a value of type S, which is converted to type T."""

    if TYPE_CHECKING:

        def __set__(self, obj: Settings, value: S) -> None: ...  # type: ignore[override]


def param(  # noqa: PLR0913 - it is a declaration
    default: T,
    doc: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    one_of: Iterable[str] = (),
    check: Check | None = None,
    bits: int = 32,
    type: Any = None,
    option: str | None = "",
    in_model: bool = False,
) -> Any:
    """Declare a parameter. As in pyspark.ml, a value is checked by ``fit``, not by the setter.

    Args:
        default: the default; None: there is no default, and ``type`` is needed.
        at_least, at_most, above, below: the range of a number.
        one_of: the names that are valid values, in upper or lower case.
        check: instead of a range, a predicate and the values that it accepts, in words.
        bits: 32 or 64: the size of the integers or floats with which the training computes.
        type: see ``Setting.kind``; by default, the type of ``default``.
        option, in_model: see ``Setting``.

    Raises:
        ConfigError: the parameter has neither a default nor a type.
    """
    if default is None and type is None:
        raise ConfigError(f"param: expected a type, as the default is None, got none for the parameter of {doc!r}")
    names = tuple(one_of)
    kind = type or default.__class__
    checks = [check] if check else _range_checks(at_least, at_most, above, below)
    if kind is int:
        checks.insert(0, _integer_check(bits))
    elif kind is float and not checks:
        checks.append((math.isfinite, "a finite number"))
    if kind in (float, list[float]) and bits == 32:
        checks.append((_are_float32, FLOAT32[1]))
    if names:
        checks.append((lambda name: name in names, f"one of {', '.join(names)}"))
    return Setting(default, doc, kind, names, checks, option, in_model)


def positional(*, kw_only: bool, default: Any = None) -> Any:
    """Declare, for type checkers, a positional argument of an estimator that has an ``__init__`` of its own."""


def with_default(cls: type, name: str, default: Any) -> Any:
    """Declare a parameter of a base class again with another default; the base class's getter and setter remain."""
    setting = settings_of(cls)[name]
    unchanged = setting.kind, setting.choices, setting.checks, setting.option, setting.in_model
    return Setting(default, setting.doc, *unchanged)


def _integer_check(bits: int) -> Check:
    limit = 2 ** (bits - 1)
    reason = ", as pyspark.ml's are" if bits == 32 else ""
    return lambda value: -limit <= value < limit, f"an integer of {bits} bits{reason}"


def _are_float32(value: Any) -> bool:
    return all(map(FLOAT32[0], value if isinstance(value, (list, tuple)) else [value]))


def _range_checks(at_least: Any, at_most: Any, above: Any, below: Any) -> list[Check]:
    low, high = at_least if above is None else above, at_most if below is None else below
    if low is None and high is None:
        return []

    def is_inside(value: Any) -> bool:
        """Return whether a number is finite and in the range."""
        above_low = low is None or (value > low if at_least is None else value >= low)
        below_high = high is None or (value < high if at_most is None else value <= high)
        return above_low and below_high and math.isfinite(value)

    if high is None:
        text = {(0, None): "a finite number that is not negative", (None, 0): "a finite positive number"}.get(
            (at_least, above), f"at least {low}" if above is None else f"a finite number above {low}"
        )
    elif low is None:
        text = f"at most {high}" if below is None else f"a number below {high}"
    else:
        text = f"a number in {'[' if above is None else '('}{low}, {high}{']' if below is None else ')'}"
    return [(is_inside, text)]


@dataclass_transform(kw_only_default=True, field_specifiers=(positional,))
class Settings:
    """Parameters as immutable values: ``KMeansSettings(k=5).k == 5``. ``with_values`` returns changed settings.

    Estimators and models also derive from it; there the attributes are pyspark's ``Param``s (``params.py``).
    """

    # Whether the attributes of the class are ``Param``s.
    _has_params: ClassVar[bool] = False
    # Whether the class is a trained model, which has only the setters of parameters that are declared ``in_model``.
    _is_model: ClassVar[bool] = False

    if not TYPE_CHECKING:  # type checkers derive it from the fields

        def __init__(self, **values: Any) -> None:
            """Raises:
            TypeError: there is no such parameter.
            ConfigError: a value is not allowed.
            """
            settings = settings_of(type(self))
            for name, value in values.items():
                if name not in settings:
                    raise unknown_param(type(self), name, settings)
                settings[name].check(value)
                self.__dict__[name] = value

    def _put(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set: with_values() returns other settings")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and values_of(other) == values_of(self)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def with_values(settings: N, **values: Any) -> N:
    """Return settings with some values replaced; raises like the constructor of ``Settings``."""
    return type(settings)(**{**vars(settings), **values})


def values_of(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings_of(type(settings))}


def unknown_param(cls: type, name: str, names: Iterable[str]) -> TypeError:
    """Return the error about a parameter that a class does not have."""
    similar = nearest(name, names)
    hint = f"did you mean {similar!r}?" if similar else f"{cls.__name__}().explainParams() describes all params"
    return TypeError(f"{cls.__name__}: there is no param {name!r}; {hint}")


_settings_by_class: dict[Any, dict[str, Setting[Any]]] = {}


def settings_of(cls: type) -> Mapping[str, Setting[Any]]:
    """Return the parameters of a class by name; those of base classes come first."""
    if cls not in _settings_by_class:
        attributes = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
        _settings_by_class[cls] = {name: value for name, value in attributes.items() if isinstance(value, Setting)}
    return _settings_by_class[cls]


class Accessor:
    """The getter or setter of a parameter, as a method."""

    def __init__(self, setting: Any, verb: str) -> None:
        self._setting, self._verb = setting, verb

    def __set_name__(self, owner: type, name: str) -> None:
        setting, self._name = self._setting, name

        def get(self: Any) -> Any:
            return self.getOrDefault(setting.name)

        def set(self: Any, value: Any) -> Any:
            return self._set(**{setting.name: value})

        self._function = get if self._verb == "get" else set
        self._function.__name__, self._function.__qualname__ = name, f"{owner.__qualname__}.{name}"
        self._function.__doc__ = f"{self._verb.capitalize()} {setting.name}: {setting.doc}"

    def __get__(self, obj: Any, owner: Any) -> Any:
        setting = settings_of(owner).get(self._setting.name)
        if self._verb == "set" and owner._is_model and setting is not None and not setting.in_model:
            raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}")
        return self._function if obj is None else MethodType(self._function, obj)


@overload
def getter(setting: Setting[T]) -> Callable[[Any], T]: ...
@overload
def getter(setting: Param[T]) -> Callable[[Any], T]: ...
def getter(setting: Any) -> Any:
    """Return the getter of a parameter, for the body of a class. It raises KeyError if there is no value or default."""
    return Accessor(setting, "get")


@overload
def setter(setting: Flexible[T, S]) -> Callable[[U, S], U]: ...
@overload
def setter(setting: Setting[T]) -> Callable[[U, T], U]: ...
@overload
def setter(setting: Param[T]) -> Callable[[U, T], U]: ...
def setter(setting: Any) -> Any:
    """Return the setter of a parameter, for the body of a class."""
    return Accessor(setting, "set")


@dataclass(frozen=True, kw_only=True)
class Plan(Generic[N]):
    """The plan of a training: its settings and, in the subclasses of families, facts about the rows.

    Attributes:
        name: the name under which another driver resumes the training; "": no driver does.
    """

    settings: N
    name: str = ""

    @property
    def seed(self) -> int:
        """The seed as a non-negative integer (pyspark.ml's default can be negative); 0: the family has no seed."""
        return int(getattr(self.settings, "seed", 0)) % 2**63

    @property
    def spilling(self) -> Spill | None:
        """The rule by which workers write rows to files; None: rows are always in memory."""
        spill: SpillName = getattr(self.settings, "spill", "never")
        return None if spill == "never" else Spill(spill)

    def with_settings(self: P, **values: Any) -> P:
        """Return the plan with some settings replaced."""
        return replace(self, settings=with_values(self.settings, **values))

    def plain(self) -> dict[str, Any]:
        """Return the settings and facts that decide the model, by name.

        Names of columns, and where rows and the training are, do not decide the model: a driver that resumes the
        training can change them. The presence of an optional column, such as weights, decides the model.
        """
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        settings = facts.pop("settings")
        declared, values = settings_of(type(settings)), values_of(settings)
        compared = {name: value for name, value in values.items() if not name.endswith(NOT_COMPARED)}
        optional = {name for name in declared if name.endswith("Col") and declared[name].default is None}
        has_column = {name: values[name] is not None for name in optional if not declared[name].in_model}
        return compared | has_column | facts
