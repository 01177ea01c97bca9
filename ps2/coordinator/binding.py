"""The addresses at which the driver listens, and by which Spark's tasks and the servers reach it."""

from __future__ import annotations

from collections.abc import Mapping

from ps2.config import Binding, host_of, is_loopback, is_wildcard, split_address
from ps2.coordinator.conf import PS2Conf
from ps2.listening import has_ipv6, loopback_host, reachable_host
from ps2.run.spark.backend import SparkBackend

BIND, HOST = "spark.driver.bindAddress", "spark.driver.host"
LOOPBACK_NAME = "localhost"


def binding_of(conf: PS2Conf, spark: SparkBackend | None, has_token: bool) -> Binding:
    """Return where the driver listens for its fleet and for tasks.

    On a cluster the default is the address of Spark's own driver, because executors reach it.

    Args:
        spark: the application whose tasks use the fleet, or None.
        has_token: True if connections are authenticated; otherwise the driver listens on loopback only.
    """
    settings: Mapping[str, str] = {}
    if has_token and spark is not None and (conf.launcherClass.is_remote or not spark.shares_host):
        settings = spark.addresses
    spark_host = settings.get(HOST) or loopback_host()
    host = conf.bindAddress or host_of(settings.get(BIND) or spark_host, BIND)
    if is_wildcard(host) and not has_ipv6():
        host = "0.0.0.0"
    advertised = conf.advertiseAddress or (host_of(spark_host, HOST) if settings and conf.bindAddress is None else host)
    if is_wildcard(advertised):
        # Executors reach PS2's driver by the same name as Spark's driver.
        driver_host = settings.get(HOST, LOOPBACK_NAME)
        advertised = reachable_host() if is_loopback(host_of(driver_host, HOST)) else host_of(driver_host, HOST)
    return Binding(host, advertised, conf.portRange)


def out_of_reach(spark: SparkBackend, master: str, servers: tuple[str, ...]) -> str | None:
    """Return a warning if tasks on other hosts cannot reach the fleet, else None.

    Args:
        master: ``host:port`` of the coordinator's master.
        servers: ``host:port`` of each server.
    """
    if spark.shares_host or is_loopback(host_of(spark.addresses.get(HOST, LOOPBACK_NAME), HOST)):
        return None  # other hosts cannot reach Spark's own driver either
    for subject, address in (("the driver's master and runs", master), *(("a server", server) for server in servers)):
        host, _ = split_address(address)
        if is_loopback(host):
            return (
                f"tasks of {spark.master} on other hosts cannot reach {subject} at {host}, which always means the host "
                "itself; give an address of this host that executors reach: PS2Conf(bindAddress=...) to listen at, "
                "PS2Conf(advertiseAddress=...) to tell the tasks, or ps2 launch --host and ps2 server --listen for "
                "servers that are started separately"
            )
    return None
