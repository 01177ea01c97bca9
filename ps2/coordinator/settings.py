"""Reads settings by name from files and environment variables."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import yaml

from ps2.config import ANY_PORT, is_wildcard, read_ports, split_address
from ps2.errors import ConfigError
from ps2.name_hints import did_you_mean
from ps2.number_checks import is_whole

PREFIX = "PS2_"
# Prefixes of variables that Kubernetes sets in every pod if a service is called "ps2". They are not settings.
KUBERNETES_PREFIXES = ("PS2_PORT", "PS2_SERVICE")

log = logging.getLogger(__name__)


class _Loader(yaml.SafeLoader):
    """Reads only decimal numbers, as YAML 1.2 and options of commands do. In YAML 1.1, 010 is 8 and 1:30 is 90."""


_INTEGER, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag not in (_INTEGER, _FLOAT)]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INTEGER, re.compile(r"[-+]?\d+(_\d+)*$", re.ASCII), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(r"[-+]?(\d+(_\d+)*(\.\d*)?|\.\d+)(e[-+]?\d+)?$|[-+]?\.inf$|\.nan$", re.ASCII | re.IGNORECASE),
    list("-+.0123456789"),
)
_Loader.add_constructor(_INTEGER, lambda loader, node: int(node.value))


def variable_of(name: str) -> str:
    """Return the name of a setting's variable, such as ``PS2_HEARTBEAT_S`` for ``heartbeatS``."""
    return PREFIX + "".join(f"_{letter}" if letter.isupper() else letter for letter in name).upper()


def from_variables(environment: Mapping[str, str], names: Collection[str], parsed: Collection[str]) -> dict[str, Any]:
    """Return the settings given by environment variables, without white space around them. Empty ones are ignored.

    The values of ``parsed`` are YAML, others plain text.
    """
    variables = {variable_of(name): name for name in names}
    for variable in environment:
        is_known = variable in variables or not variable.startswith(PREFIX) or variable.startswith(KUBERNETES_PREFIXES)
        if not is_known and (near := difflib.get_close_matches(variable, variables, n=1, cutoff=0.9)):
            log.warning("environment variable %s is not a setting of PS2Conf; %s is", variable, near[0])
    values = {}
    for variable, name in variables.items():
        if text := environment.get(variable, "").strip():  # files of secrets end with a line break
            values[name] = _value(f"environment variable {variable}", text) if name in parsed else text
    return values


def from_file(path: str, names: Collection[str]) -> dict[str, Any]:
    """Return the settings of a YAML file; none if the file is empty."""
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
    """Raise ConfigError if a given name is not the name of a setting."""
    for name in given:
        if name not in names:
            raise ConfigError(f"{where}: no setting is called {name!r}; {did_you_mean(str(name), names)}")


def _value(where: str, text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: expected YAML, got {text.strip()[:80]!r}: {error}") from error


def addresses(fleet: str | Sequence[str] | Any | None) -> tuple[str, ...]:
    """Return the servers' addresses, given as "host:port,host:port" or as a list."""
    if fleet is None:
        return ()
    texts = fleet.split(",") if isinstance(fleet, str) else fleet
    error = ConfigError(f"fleet: expected HOST:PORT,HOST:PORT..., got {fleet!r}")
    if not isinstance(texts, Sequence) or not all(isinstance(address, str) for address in texts):
        raise error
    servers = tuple(address.strip() for address in texts if address.strip())
    if not servers:
        raise error
    for address in servers:
        if ":" not in address:
            raise ConfigError(
                f"fleet: expected HOST:PORT, got {address!r}; for a fleet of that name, ps2 status --name {address} "
                "prints the addresses"
            )
        host, port = split_address(address, "fleet")
        if is_wildcard(host) or not port:
            raise ConfigError(
                f"fleet: {address} is a wildcard or has no port; expected an address that reaches the server"
            )
    return servers


def ports(value: object) -> range:
    """Parse the ports that the driver may use: 40000 or "40000-40020"; None: any."""
    if value is None:
        return ANY_PORT
    if not isinstance(value, str) and not is_whole(value):
        raise ConfigError(f"ports: expected a text such as '40000-40020', got {value!r}")
    allowed = read_ports(str(value).strip(), "ports")
    if allowed == ANY_PORT:
        raise ConfigError("ports: expected a range such as 40000-40020, got 0; leave ports out to use any free port")
    return allowed
