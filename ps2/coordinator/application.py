"""The Spark application whose tasks use the fleet, and the addresses by which they reach the driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from ps2.certificates import Tls
from ps2.client.fleet import Access, FleetRef, fleet_text, mutation_id_prefix, seal
from ps2.config import Binding, is_loopback, is_wildcard, new_token, read_host, split_address
from ps2.coordinator.conf import PS2Conf
from ps2.coordinator.master import Master
from ps2.coordinator.stages import StageWatch
from ps2.errors import ConfigError, StoppedError
from ps2.listening import has_ipv6, loopback_host, reachable_host
from ps2.rpc.control import ServerControl
from ps2.run.spark.backend import SparkBackend
from ps2.run.spark.backend_lookup import active_backend, backend_of, is_connect
from ps2.transport.tls import TlsValue, usable_by_clients

BIND, HOST = "spark.driver.bindAddress", "spark.driver.host"
LOOPBACK_NAME = "localhost"


def driver_binding(conf: PS2Conf, spark: SparkBackend | None, has_token: bool) -> Binding:
    """Return where the driver listens for its fleet and for tasks; without a token, on loopback only.

    On a cluster the default is the address of Spark's own driver, because executors reach it.
    """
    settings: Mapping[str, str] = {}
    if has_token and spark is not None and (conf.launcherClass.is_remote or not spark.shares_host):
        settings = spark.addresses
    spark_host = settings.get(HOST) or loopback_host()
    host = conf.bindAddress or read_host(settings.get(BIND) or spark_host, BIND)
    if is_wildcard(host) and not has_ipv6():
        host = "0.0.0.0"
    advertised = conf.advertiseAddress or (
        read_host(spark_host, HOST) if settings and conf.bindAddress is None else host
    )
    if is_wildcard(advertised):
        # Executors reach PS2's driver by the same name as Spark's driver.
        driver_host = settings.get(HOST, LOOPBACK_NAME)
        advertised = reachable_host() if is_loopback(read_host(driver_host, HOST)) else read_host(driver_host, HOST)
    return Binding(host, advertised, conf.portRange)


def out_of_reach(spark: SparkBackend, master: str, servers: tuple[str, ...]) -> str | None:
    """Return a warning if tasks on other hosts cannot reach the fleet, else None."""
    if spark.shares_host or is_loopback(read_host(spark.addresses.get(HOST, LOOPBACK_NAME), HOST)):
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


log = logging.getLogger(__name__)


def user_backend(spark: Any) -> SparkBackend | None:
    """Return the user's Spark application; for None, the active one, if any. Does not load pyspark."""
    if spark is None:
        return active_backend()
    if not is_connect(spark) and not hasattr(getattr(spark, "sparkContext", spark), "setLocalProperty"):
        raise ConfigError(f"spark: expected a SparkSession or SparkContext, got {type(spark).__name__}")
    backend = backend_of(spark)
    _check_running(backend)
    return backend


@cache
def driver_secret() -> str:
    """Return the secret of this process, from which the tokens of its fleets are derived.

    All contexts share one secret, so that their tasks have the same environment: for each environment Spark keeps a
    daemon of Python workers until the SparkContext stops.
    """
    return new_token()


def start_python(spark: SparkBackend | None, conf: PS2Conf) -> threading.Thread | None:
    """Start the Python workers of a local application while servers start; return the thread that waits for them.

    Workers of an attached fleet, or of a fleet with certificates, start with the first task instead: what their tasks
    need is not known yet.
    """
    if spark is None or conf.addresses or conf.tls is not None:
        return None
    return spark.start_python(seal(Access(driver_secret(), spark.application_id)))


class Application:
    """Gives the tasks of one Spark application access to the fleet. Another application may replace a stopped one.

    Attributes:
        stages: for each application, the watch of its finished stages.
    """

    def __init__(
        self, fleet: FleetRef, token: str | None, tls: Tls | None, master: Master, control: ServerControl
    ) -> None:
        """Begin without a Spark application.

        ``token``: the token of an attached fleet; None: tasks derive the token from the driver's secret.
        """
        self.spark: SparkBackend | None = None
        self.stages: list[StageWatch] = []
        self._fleet = fleet
        self._token = token
        self._access: Access | None = None
        self._pems = TlsValue(tls, usable_by_clients) if tls is not None else None
        self._master = master
        self._control = control

    def reach(self, spark: SparkBackend) -> None:
        """Give tasks of this application access to the fleet.

        Secrets travel through Spark's own channel: the environment of its Python workers, or a file of the Spark
        Connect session. The fleet's name, which differs by context, travels with handles, and with jobs of the calling
        thread.
        """
        self.spark = spark
        servers = tuple(self._master.registry.addresses())
        if (warning := out_of_reach(spark, self._fleet.master, servers)) is not None:
            log.warning("%s", warning)
        self._give_access(spark)
        spark.set_fleet(fleet_text(self._fleet))
        if any(watch.watches(spark) for watch in self.stages):
            return
        if (tracker := spark.status_tracker()) is not None:
            # Watches of earlier applications end by themselves.
            series = mutation_id_prefix(self._fleet.id, spark.application_id)
            self.stages.append(StageWatch(spark, tracker, series, self._master, self._control))

    def renew(self) -> None:
        """Give tasks of later jobs the new certificates, if they have changed."""
        spark = self.spark
        if spark is None or self._pems is None or self._access is None:
            return
        if self._pems.get() is not self._access.tls:
            self._give_access(spark)

    def _give_access(self, spark: SparkBackend) -> None:
        pems = self._pems.get() if self._pems is not None else None
        self._access = Access(driver_secret(), spark.application_id, self._token, pems)
        spark.set_access(seal(self._access))

    def running(self, call: str) -> SparkBackend:
        """Return the application, for ``call``. Raise ConfigError if there is none, StoppedError if it was stopped."""
        if self.spark is None:
            raise ConfigError(f"{call}: this context has no SparkContext")
        _check_running(self.spark)
        return self.spark

    def roll_back(self, epoch: int) -> None:
        """Assign the jobs that the driver submits from now on to this epoch of the fleet."""
        if self.spark is not None:
            self.spark.set_epoch(epoch)

    def join(self, spark: SparkBackend, epoch: int) -> None:
        """Let the jobs of the calling thread use the fleet in this epoch. Threads that Spark starts need this call.

        With Spark Connect, ``spark`` can be another session, such as the session of a query's batches.
        """
        if self.spark is None or self.spark.application_id != spark.application_id:
            self.reach(spark)
        else:
            self._give_access(spark)
            spark.set_fleet(fleet_text(self._fleet))
        spark.set_epoch(epoch)

    def stop(self) -> None:
        """Stop the watches."""
        for watch in self.stages:
            watch.stop()

    def leave(self) -> None:
        """Tell tasks that the fleet was stopped."""
        spark = self.spark
        if spark is None or spark.is_stopped():
            return
        with suppress(StoppedError):  # the application has just ended
            # Tasks keep this access, which is the same for all contexts. It admits them to no running fleet.
            spark.set_access(seal(Access(driver_secret(), spark.application_id)))
            spark.set_fleet(None)
            spark.mark_stopped(self._fleet.id)


def _check_running(spark: SparkBackend) -> None:
    if spark.is_stopped():
        raise StoppedError(f"{spark.end_reason()}; make a new SparkSession first")
