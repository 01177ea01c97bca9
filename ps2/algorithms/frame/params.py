"""Turn the settings that a class declares (``settings.py``) into pyspark's ``Param``s of estimators and models."""

from __future__ import annotations

import inspect
from abc import ABCMeta
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pyspark.ml.param import Param, Params, shared

from ps2.algorithms.frame.settings import Settings, settings_of, unknown_param
from ps2.algorithms.frame.shared_settings import FeatureSettings, FleetSettings

P = TypeVar("P", bound="ByName")
F = TypeVar("F", bound="FeatureParams")
N = TypeVar("N", bound=Settings)

_params_by_class: dict[type, list[tuple[str, Param[Any]]]] = {}


def _params_of(cls: type) -> list[tuple[str, Param[Any]]]:
    """Return the names and ``Param``s of a class, ordered by name. (Pyspark would collect them for each object.)"""
    if cls not in _params_by_class:
        members = [(name, getattr(cls, name)) for name in dir(cls)]
        _params_by_class[cls] = [(name, param) for name, param in members if isinstance(param, Param)]
    return _params_by_class[cls]


class _ShowsParams(ABCMeta):
    """Metaclass that gives classes a signature with their params and defaults, for ``help``, computed on request."""

    @property
    def __signature__(cls) -> inspect.Signature:
        if not cls.takes_keywords():
            raise AttributeError("__signature__")
        kind, defaults = inspect.Parameter.KEYWORD_ONLY, cls.keyword_defaults()
        return inspect.Signature([inspect.Parameter(name, kind, default=defaults[name]) for name in sorted(defaults)])

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if hasattr(cls, name)]  # models lack most setters

    def takes_keywords(cls) -> bool:
        """Return whether params as keywords are the only arguments of the constructor."""
        instantiable: Any = cls
        _, *arguments = inspect.signature(instantiable.__init__).parameters.values()
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        are_variable = all(argument.kind in variable for argument in arguments)
        return issubclass(cls, ByName) and not inspect.isabstract(cls) and are_variable

    def keyword_defaults(cls: Any) -> dict[str, Any]:
        """Return the keywords of a class that takes keywords, with their defaults; None: there is no default."""
        instance = cls()
        defaults = {
            param.name: instance.getOrDefault(param) if instance.isDefined(param) else None for param in instance.params
        }
        defaults |= dict.fromkeys(cls._OBJECTS)
        # A default such as "uid__output" differs from object to object.
        return {name: None if instance.uid in str(value) else value for name, value in defaults.items()}


# Type checkers derive a constructor's keywords from its base classes' settings. This hides two bases from them.
if TYPE_CHECKING:

    class _FleetSettings: ...

    class _FeatureSettings: ...
else:
    _FleetSettings, _FeatureSettings = FleetSettings, FeatureSettings


class ByName(_FleetSettings, Params, metaclass=_ShowsParams):
    """Base class of estimators, models and transformers: their settings are ``Param``s, set by keyword."""

    if TYPE_CHECKING:
        numWorkers: Any
        numServers: Any
        getNumWorkers: Any
        getNumServers: Any
        setNumWorkers: Any
        setNumServers: Any

        def __init__(self, *args: Any, **params: Any) -> None: ...

    else:

        def __init__(self, *args: Any, **params: Any) -> None:
            super(Settings, self).__init__(*args)
            self._set_defaults()
            self.setParams(**params)

    _has_params = True
    # The keywords for models and functions, which are not params: they are not saved.
    _OBJECTS: ClassVar[tuple[str, ...]] = ()
    # The name of a param whose value decides the defaults of other params, and for each value these defaults by name.
    _DEFAULTS_BY: ClassVar[tuple[str, Mapping[str, Mapping[str, Any]]] | None] = None

    __eq__, __hash__, __repr__ = Params.__eq__, Params.__hash__, Params.__repr__

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name in settings_of(cls):  # pyspark checks isinstance(estimator, HasWeightCol), and so on
            mixin = getattr(shared, f"Has{name[0].upper()}{name[1:]}", None)
            if mixin is not None and not issubclass(cls, mixin):
                mixin.register(cls)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name in self.__dict__ or hasattr(type(self), name)]

    def _copy_params(self) -> None:
        self.__dict__.update((name, param._copy_new_parent(self)) for name, param in _params_of(type(self)))

    @property
    def params(self) -> list[Param[Any]]:
        """All params, in the order of their names."""
        return [self.__dict__[name] for name, _ in _params_of(type(self))]

    @property
    def _requested_workers(self) -> int | None:
        """The number of workers that the user has set; None: not set."""
        return self._if_set("numWorkers")

    def _if_set(self, name: str) -> Any:
        """Return the value of a param that is set; None: there is no such param, it is not set, or it is ""."""
        value = self.getOrDefault(name) if self.hasParam(name) and self.isSet(name) else None
        return None if value == "" else value

    def _set_defaults(self) -> None:
        """Set the defaults of the declarations; a subclass can add others."""
        settings = settings_of(type(self)).items()
        self._setDefault(**{name: setting.default for name, setting in settings if setting.default is not None})

    def _put(self, name: str, value: Any) -> None:
        self._set(**{name: value})

    def _values(self, settings: type[N]) -> N:
        """Return ``settings`` with the values of this object's params; raise ConfigError for a wrong value."""
        params = {name: self.getParam(name) for name in settings_of(settings) if self.hasParam(name)}
        return settings(**{name: self.getOrDefault(param) for name, param in params.items() if self.isDefined(param)})

    def _check_values(self) -> None:
        """Raise ConfigError for a value that its declaration does not allow."""
        for name, setting in settings_of(type(self)).items():
            if self.isDefined(name):
                setting.check(self.getOrDefault(name))

    @property
    def _seed(self) -> int:
        """The seed as a non-negative integer: pyspark.ml's default is a hash, which can be negative."""
        return int(self.getOrDefault("seed")) % 2**63

    def setParams(self: P, **params: Any) -> P:
        """Set params by name.

        Raises:
            TypeError: there is no such param, or its value has another type.
        """
        for name in params:
            if not self.hasParam(name):
                raise unknown_param(type(self), name, [param.name for param in self.params])
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
        # Pyspark copies params and defaults one by one, so a default can be copied after the param that decides it.
        copied = super()._copyValues(to, extra)
        if isinstance(copied, ByName):
            copied._choose_defaults()
        return copied

    def _choose_defaults(self) -> None:
        if self._DEFAULTS_BY is None:
            return
        name, defaults = self._DEFAULTS_BY
        if self.isDefined(name) and self.getOrDefault(name) in defaults:
            self._setDefault(**{k: v for k, v in defaults[self.getOrDefault(name)].items() if self.hasParam(k)})


class FeatureParams(ByName, _FeatureSettings):
    """The params of estimators and models of features. ``featuresCol`` also takes the names of several columns."""

    if TYPE_CHECKING:
        featuresCol: Any
        featuresCols: Any
        getFeaturesCol: Any
        getFeaturesCols: Any
        setFeaturesCol: Any
        setFeaturesCols: Any

    def _set(self: F, **params: Any) -> F:
        features = params.get("featuresCol")
        if isinstance(features, (list, tuple)):
            params["featuresCols"] = list(params.pop("featuresCol"))
            self.clear(self.featuresCol)
        elif features is not None and params.get("featuresCols") is None:
            self.clear(self.featuresCols)
        super()._set(**params)
        return self

    @property
    def _weight_column(self) -> str | None:
        """The name of the column of weights; None: all weights are 1."""
        name: str | None = self._if_set("weightCol")
        return name

    @property
    def _features(self) -> str | tuple[str, ...]:
        """The feature column, or the tuple of feature columns."""
        return tuple(self.getFeaturesCols()) if self.isSet(self.featuresCols) else self.getFeaturesCol()
