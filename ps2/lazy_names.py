"""Names of a package that load on first use (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

from ps2.errors import ConfigError


def lazy_names(
    package: str,
    modules: Mapping[str, str],
    project: str = "",
    missing: Callable[[str], Exception] = ConfigError,
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module whose names load on first use.

    Args:
        package: ``__name__`` of the module.
        modules: for each lazy name, the module that defines it.
        project: the optional project that the names need, such as "MLflow". Its module and PS2's extra have the last
            component of ``package`` as their name. "": the names need no optional project.
        missing: the class of the error that is raised if the project is not installed.
    """

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(modules[name]), name)
        except ModuleNotFoundError as error:
            extra = package.rpartition(".")[2]
            if not project or error.name != extra:
                raise
            raise missing(f"{package}.{name} needs {project}: pip install 'ps2-spark[{extra}]'") from error

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, names
