"""Parses addresses and ports of ``PS2Conf``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ps2.config import ANY_PORT, is_wildcard, ports_of, split_address
from ps2.errors import ConfigError
from ps2.number_checks import is_whole


def addresses(fleet: str | Sequence[str] | Any | None) -> tuple[str, ...]:
    """Return the servers' addresses, given as "host:port,host:port" or as a list."""
    if fleet is None:
        return ()
    given = fleet.split(",") if isinstance(fleet, str) else fleet
    wrong = ConfigError(f"fleet: expected HOST:PORT,HOST:PORT..., got {fleet!r}")
    if not isinstance(given, Sequence) or not all(isinstance(address, str) for address in given):
        raise wrong
    servers = tuple(address.strip() for address in given if address.strip())
    if not servers:
        raise wrong
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


def ports(given: object) -> range:
    """Parse the ports that the driver may use: 40000 or "40000-40020"; None: any."""
    if given is None:
        return ANY_PORT
    if not isinstance(given, str) and not is_whole(given):
        raise ConfigError(f"ports: expected a text such as '40000-40020', got {given!r}")
    allowed = ports_of(str(given).strip(), "ports")
    if allowed == ANY_PORT:
        raise ConfigError("ports: expected the first and the last of some (40000-40020), got 0; leave it out for any")
    return allowed
