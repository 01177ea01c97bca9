"""Where what listens in the driver listens, and what Spark's tasks and the servers reach it by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ps2.config import Place, host_of, is_loopback, is_wildcard, split_address
from ps2.coordinator.conf import PS2Conf
from ps2.transport.sockets import has_ipv6, loopback_host, reachable_host

BIND, HOST = "spark.driver.bindAddress", "spark.driver.host"
LOOPBACK_NAME = "localhost"


def place_of(conf: PS2Conf, context: Any, has_token: bool) -> Place:
    """Return where the driver listens for its fleet and for tasks.

    On a cluster, where nothing else is asked for, that is where Spark's own driver listens: executors reach it there.

    Args:
        context: the SparkContext; None: there is none.
        has_token: whether who connects has to prove anything; else it is loopback.
    """
    settings: Mapping[str, str] = {}
    if has_token and context is not None and (conf.launcher == "spark" or not is_local(context)):
        settings = dict(context.getConf().getAll())
    of_spark = settings.get(HOST) or loopback_host()
    host = conf.bindAddress or host_of(settings.get(BIND) or of_spark, BIND)
    if is_wildcard(host) and not has_ipv6():
        host = "0.0.0.0"
    advertised = conf.advertiseAddress or (host_of(of_spark, HOST) if settings and conf.bindAddress is None else host)
    if is_wildcard(advertised):
        # What executors reach Spark's driver by, they reach this by, too.
        known = settings.get(HOST, LOOPBACK_NAME)
        advertised = reachable_host() if is_loopback(host_of(known, HOST)) else host_of(known, HOST)
    return Place(host, advertised, conf.portRange)


def is_local(context: Any) -> bool:
    """Tell whether a SparkContext's tasks all run on this host."""
    return str(context.master).startswith("local")


def out_of_reach(context: Any, master: str, servers: tuple[str, ...]) -> str | None:
    """Return what is to be said of a fleet that tasks of a cluster cannot reach from other hosts; None: they can.

    Args:
        master: ``host:port`` of the coordinator's master.
        servers: ``host:port`` of each.
    """
    if is_local(context) or is_loopback(host_of(context.getConf().get(HOST, LOOPBACK_NAME), HOST)):
        return None  # then Spark's own driver is out of their reach
    for what, address in (("the driver's master and runs", master), *(("a server", server) for server in servers)):
        host, _ = split_address(address)
        if is_loopback(host):
            return (
                f"tasks of {context.master} on other hosts cannot reach {what} at {host}, which is each host itself; "
                "give an address of this host that executors reach, by bindAddress (what listens there) or "
                "advertiseAddress (what they are told), or by ps2 launch --host and ps2 server --listen of servers "
                "that run already"
            )
    return None
