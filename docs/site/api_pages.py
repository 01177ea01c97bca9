"""Adds to autodoc: a table of each estimator's params, and a check that all public names have an entry."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from pyspark.ml.param import Param, Params
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docstrings import prepare_docstring

from ps2.algorithms.frame.settings import Setting

log = logging.getLogger(__name__)

# Modules whose ``__all__`` are the public names.
PUBLIC = ("ps2", "ps2.algorithms", "ps2.torch", "ps2.serving", "ps2.data.hashing", "ps2.mlflow", "ps2.onnx")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("autodoc-process-docstring", keep_colon, priority=600)
    app.connect("autodoc-process-docstring", add_params)
    app.connect("env-check-consistency", check_public_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def skip_member(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what pyspark documents, and params with their getters and setters, which the table has."""
    return True if name == "fit" or is_of_pyspark(obj) or is_of_params(name, obj) else None


def is_of_pyspark(obj: Any) -> bool:
    function = obj.fget if isinstance(obj, property) else inspect.unwrap(obj) if callable(obj) else obj
    return str(getattr(function, "__module__", "")).split(".")[0] in ("pyspark", "builtins", "enum", "abc")


def is_of_params(name: str, obj: Any) -> bool:
    if type(obj).__name__ == "Param":
        return True
    doc = getattr(obj, "__doc__", None) or ""
    return callable(obj) and name[:3] in ("get", "set") and doc.startswith((f"{name[:3].capitalize()} ",))


def shorten_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None] | None:
    """Return ``(**params)`` for the params of an estimator, which the table has; other arguments stay."""
    if what != "class" or not isinstance(obj, type) or not issubclass(obj, Params):
        return None
    params, _ = params_of(obj)
    arguments = [each for each in inspect.signature(obj).parameters.values() if each.name not in params]
    if len(arguments) == len(inspect.signature(obj).parameters):
        return None
    rest = inspect.Parameter("params", inspect.Parameter.VAR_KEYWORD)
    return str(inspect.Signature([*arguments, rest])), None


def keep_colon(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Undo that napoleon, which comes before this, reads a property's "a link: ..." as "type: description"."""
    if what == "property" and any(line.startswith(":type:") for line in lines):
        lines[:] = prepare_docstring(obj.__doc__)


def add_params(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Add the table of params to the docstring of an estimator or a model."""
    if what == "class" and isinstance(obj, type) and issubclass(obj, Params):
        lines += ["", *table(obj)]


def table(cls: type[Params]) -> list[str]:
    params, defaults = params_of(cls)
    if not params:
        return []
    rows = [".. list-table:: Params", "   :header-rows: 1", "   :class: params", ""]
    rows += ["   * - param", "     - default", "     - meaning"]
    for name in sorted(params):
        default = f"``{defaults[name]}``" if name in defaults else "none"
        rows += [f"   * - ``{name}``", f"     - {default}", f"     - {' '.join(params[name].doc.split())}"]
    return [*rows, ""]


def params_of(cls: type[Params]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the params of a class by their names, and the defaults of a new object of it."""
    kinds = (Param, Setting)
    params = {name: getattr(cls, name) for name in dir(cls) if isinstance(inspect.getattr_static(cls, name), kinds)}
    try:
        made = cls()
    except TypeError:  # a model, which only a training makes
        return params, {}
    defaults = {param.name: repr(value).replace(made.uid, "<uid>") for param, value in made._defaultParamMap.items()}
    if defaults.get("seed", "0") != "0":
        defaults["seed"] = f"hash({cls.__name__!r})"  # as in pyspark.ml; Python draws it for each process
    return params, defaults


def check_public_names(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of each public name without an entry."""
    known = env.domains["py"].objects
    for module in PUBLIC:
        for name in import_module(module).__all__:
            if f"{module}.{name}" not in known and not name.startswith("__"):
                log.warning("%s.%s: public, but no page of docs/reference documents it", module, name)
