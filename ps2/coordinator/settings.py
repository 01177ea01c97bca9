"""Settings by name, as files and variables of the environment have them."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Mapping
from typing import Any

import yaml

from ps2.errors import ConfigError

PREFIX = "PS2_"
# Kubernetes tells each pod where a service called "ps2" is.
OF_KUBERNETES = ("PS2_PORT", "PS2_SERVICE")

log = logging.getLogger(__name__)


def variable_of(name: str) -> str:
    """Return the variable of a setting: ``PS2_HEARTBEAT_S`` of ``heartbeatS``."""
    return PREFIX + "".join(f"_{letter}" if letter.isupper() else letter for letter in name).upper()


def of_variables(environment: Mapping[str, str], names: Collection[str], parsed: Collection[str]) -> dict[str, Any]:
    """Return the settings that variables have; an empty variable has none.

    Args:
        environment: the variables.
        names: of all settings.
        parsed: of those whose value is YAML; others' is the text as it stands.

    Raises:
        ConfigError: a value is no YAML.
    """
    variables = {variable_of(name): name for name in names}
    for variable in environment:
        known = variable in variables or not variable.startswith(PREFIX) or variable.startswith(OF_KUBERNETES)
        if not known and (near := difflib.get_close_matches(variable, variables, n=1, cutoff=0.9)):
            log.warning("environment variable %s is no setting of PS2Conf; %s is", variable, near[0])
    values = {}
    for variable, name in variables.items():
        if text := environment.get(variable):
            values[name] = _value(f"environment variable {variable}", text) if name in parsed else text
    return values


def of_file(path: str, names: Collection[str]) -> dict[str, Any]:
    """Return the settings of a YAML file; an empty file has none.

    Raises:
        ConfigError: it cannot be read, or names what is no setting.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings {path}: {error}") from error
    values = _value(f"settings {path}", text)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"settings {path}: expected names with their values, got {text.strip()[:80]!r}")
    check_known(values, names, f"settings {path}")
    return values


def check_known(given: Collection[Any], names: Collection[str], where: str) -> None:
    """Raise ConfigError if one of the names that are given is no setting's."""
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise ConfigError(f"{where}: no setting is called {name!r}; {hint}")


def _value(where: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: expected YAML, got {text.strip()[:80]!r}: {error}") from error
