"""Reads settings from YAML files and environment variables."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import yaml

from ps2.certificates import TlsFiles
from ps2.config import ANY_PORT, is_wildcard, read_ports, split_address
from ps2.errors import ConfigError
from ps2.launched_fleets import find
from ps2.name_hints import did_you_mean
from ps2.number_checks import is_whole

PREFIX = "PS2_"
# Kubernetes sets variables with these prefixes in every pod if a service is named "ps2". They are not settings.
KUBERNETES_PREFIXES = ("PS2_PORT", "PS2_SERVICE")

log = logging.getLogger(__name__)


class _Loader(yaml.SafeLoader):
    """Reads numbers as decimals, as YAML 1.2 does. The base class reads YAML 1.1, in which 010 is 8 and 1:30 is 90."""


_INTEGER, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_Loader.yaml_implicit_resolvers = {
    character: [(tag, regex) for tag, regex in resolvers if tag not in (_INTEGER, _FLOAT)]
    for character, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INTEGER, re.compile(r"[-+]?\d+(_\d+)*$", re.ASCII), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(r"[-+]?(\d+(_\d+)*(\.\d*)?|\.\d+)(e[-+]?\d+)?$|[-+]?\.inf$|\.nan$", re.ASCII | re.IGNORECASE),
    list("-+.0123456789"),
)
_Loader.add_constructor(_INTEGER, lambda loader, node: int(node.value))


def variable_name(name: str) -> str:
    """Return the name of a setting's environment variable, such as ``PS2_HEARTBEAT_S`` for ``heartbeatS``."""
    return PREFIX + "".join(f"_{letter}" if letter.isupper() else letter for letter in name).upper()


def from_variables(environment: Mapping[str, str], names: Collection[str], parsed: Collection[str]) -> dict[str, Any]:
    """Return the settings that environment variables contain, stripped of white space. Ignore empty variables.

    ``names``: all settings. ``parsed``: the settings whose values are parsed as YAML; all other values are strings.
    """
    variables = {variable_name(name): name for name in names}
    for variable in environment:
        is_known = variable in variables or not variable.startswith(PREFIX) or variable.startswith(KUBERNETES_PREFIXES)
        if not is_known and (similar := difflib.get_close_matches(variable, variables, n=1, cutoff=0.9)):
            log.warning("environment variable %s is not a setting of PS2Conf; %s is", variable, similar[0])
    values = {}
    for variable, name in variables.items():
        if text := environment.get(
            variable, ""
        ).strip():  # a value that was read from a file often ends with a line break
            values[name] = _value(f"environment variable {variable}", text) if name in parsed else text
    return values


def from_file(path: str, names: Collection[str]) -> dict[str, Any]:
    """Return the settings in a YAML file, by name; {} if the file is empty."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings {path}: {error}") from error
    values = _value(f"settings {path}", text)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"settings {path}: expected a mapping of names to values, got {text.strip()[:80]!r}")
    check_known(values, names, f"settings {path}")
    return values


def check_known(settings: Collection[Any], names: Collection[str], source: str) -> None:
    """Raise ConfigError if one of ``settings`` is not in ``names``; ``source``: the origin, for the message."""
    for name in settings:
        if name not in names:
            raise ConfigError(f"{source}: no setting is named {name!r}; {did_you_mean(str(name), names)}")


def _value(source: str, text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: expected YAML, got {text.strip()[:80]!r}: {error}") from error


def addresses(fleet: str | Sequence[str] | Any | None) -> tuple[str, ...]:
    """Return the addresses in the setting ``fleet``: "host:port,host:port" or a list; () for None."""
    if fleet is None:
        return ()
    texts = fleet.split(",") if isinstance(fleet, str) else fleet
    error = ConfigError(f"fleet: expected HOST:PORT,HOST:PORT... or the name of a fleet, got {fleet!r}")
    if not isinstance(texts, Sequence) or not all(isinstance(address, str) for address in texts):
        raise error
    servers = tuple(address.strip() for address in texts if address.strip())
    if not servers:
        raise error
    for address in servers:
        if ":" not in address:
            raise error
        host, port = split_address(address, "fleet")
        if is_wildcard(host) or not port:
            raise ConfigError(
                f"fleet: {address} is a wildcard or has no port; expected an address that reaches the server"
            )
    return servers


def of_launched_fleet(name: str) -> dict[str, Any]:
    """Return the settings for a fleet that ``ps2 launch`` has started on this host: addresses, token and certificates.

    Raises UnavailableError if there is none of this name.
    """
    fleet = find(name)
    files = fleet.tls or TlsFiles()
    result = {"fleet": [server.address for server in fleet.servers], "tokenFile": str(fleet.token_file)}
    return {**result, "tlsCert": files.cert, "tlsKey": files.key, "tlsCa": files.ca, "tlsName": files.name}


def ports(value: object) -> range:
    """Parse the setting ``ports``, the ports on which the driver may listen: 40000 or "40000-40020"; None: any."""
    if value is None:
        return ANY_PORT
    if not isinstance(value, str) and not is_whole(value):
        raise ConfigError(f"ports: expected a text such as '40000-40020', got {value!r}")
    port_range = read_ports(str(value).strip(), "ports")
    if port_range == ANY_PORT:
        raise ConfigError("ports: expected a range such as 40000-40020, got 0; leave ports out to use any free port")
    return port_range
