"""Gives the tasks of a Spark application access to the fleet, and chooses the driver's addresses."""

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
    """Return the addresses on which the driver listens for servers and tasks; without a token, only loopback."""
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
        # Executors connect to PS2 by the host name of Spark's driver.
        driver_host = settings.get(HOST, LOOPBACK_NAME)
        advertised = reachable_host() if is_loopback(read_host(driver_host, HOST)) else read_host(driver_host, HOST)
    return Binding(host, advertised, conf.portRange)


def out_of_reach(spark: SparkBackend, master: str, servers: tuple[str, ...]) -> str | None:
    """Return a warning if tasks on other hosts cannot reach the fleet, else None."""
    if spark.shares_host or is_loopback(read_host(spark.addresses.get(HOST, LOOPBACK_NAME), HOST)):
        return None  # no task runs on another host: it could not connect to Spark's driver either
    for subject, address in (("the driver's master and runs", master), *(("a server", server) for server in servers)):
        host, _ = split_address(address)
        if is_loopback(host):
            return (
                f"tasks of {spark.master} on other hosts cannot reach {subject} at {host}, an address that always "
                "means the own host; give an address of this host that executors reach: PS2Conf(bindAddress=...) to "
                "listen on, PS2Conf(advertiseAddress=...) to send to the tasks, or ps2 launch --host and ps2 server "
                "--listen for servers that are started separately"
            )
    return None


log = logging.getLogger(__name__)


def user_backend(spark: Any) -> SparkBackend | None:
    """Return the user's Spark application; for None, the active one or None. Does not import pyspark."""
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

    All contexts share one secret, and their tasks the same environment variables: Spark starts a daemon of Python
    workers for each different environment, and stops it only with the SparkContext.
    """
    return new_token()


def start_python(spark: SparkBackend | None, conf: PS2Conf) -> threading.Thread | None:
    """Start Spark's Python workers while servers start; return the thread that waits for them, or None.

    With an attached fleet or certificates, Python workers start with the first task: the secrets that they need are not
    known yet.
    """
    if spark is None or conf.addresses or conf.tls is not None:
        return None
    return spark.start_python(seal(Access(driver_secret(), spark.application_id)))


class Application:
    """Gives the tasks of a Spark application access to the fleet. Another application may replace a stopped one.

    ``spark``: the present application, or None. ``stages``: each application's thread that finds finished stages.
    """

    def __init__(
        self, fleet: FleetRef, token: str | None, tls: Tls | None, master: Master, control: ServerControl
    ) -> None:
        """``token``: the token of an attached fleet; None: tasks derive the token from the driver's secret."""
        self.spark: SparkBackend | None = None
        self.stages: list[StageWatch] = []
        self._fleet = fleet
        self._token = token
        self._access: Access | None = None
        self._pems = TlsValue(tls, usable_by_clients) if tls is not None else None
        self._master = master
        self._control = control

    def give_access(self, spark: SparkBackend) -> None:
        """Give tasks of this application access to the fleet.

        Spark sends the secrets to tasks, in the environment of its Python workers or in a file of the Spark Connect
        session. The fleet's id, which differs between contexts, is sent with handles, and with the jobs of the calling
        thread.
        """
        self.spark = spark
        servers = tuple(self._master.registry.addresses())
        if (warning := out_of_reach(spark, self._fleet.master, servers)) is not None:
            log.warning("%s", warning)
        self._send_secrets(spark)
        spark.set_fleet(fleet_text(self._fleet))
        if any(watch.watches(spark) for watch in self.stages):
            return
        if (tracker := spark.status_tracker()) is not None:
            # The threads of earlier applications end when these applications have stopped.
            series = mutation_id_prefix(self._fleet.id, spark.application_id)
            self.stages.append(StageWatch(spark, tracker, series, self._master, self._control))

    def renew(self) -> None:
        """Send changed certificates to the tasks of later jobs."""
        spark = self.spark
        if spark is None or self._pems is None or self._access is None:
            return
        if self._pems.get() is not self._access.tls:
            self._send_secrets(spark)

    def _send_secrets(self, spark: SparkBackend) -> None:
        pems = self._pems.get() if self._pems is not None else None
        self._access = Access(driver_secret(), spark.application_id, self._token, pems)
        spark.set_access(seal(self._access))

    def running(self, call: str) -> SparkBackend:
        """Return the application for the method ``call``; raise ConfigError if none, StoppedError if stopped."""
        if self.spark is None:
            raise ConfigError(f"{call}: this context has no SparkContext")
        _check_running(self.spark)
        return self.spark

    def roll_back(self, epoch: int) -> None:
        """Let the driver's later jobs use the fleet in this epoch."""
        if self.spark is not None:
            self.spark.set_epoch(epoch)

    def join(self, spark: SparkBackend, epoch: int) -> None:
        """Let the jobs of the calling thread use the fleet in this epoch. Call this in threads that Spark starts.

        With Spark Connect, ``spark`` can be another session, such as the session of a query's batches.
        """
        if self.spark is None or self.spark.application_id != spark.application_id:
            self.give_access(spark)
        else:
            self._send_secrets(spark)
            spark.set_fleet(fleet_text(self._fleet))
        spark.set_epoch(epoch)

    def stop(self) -> None:
        """Stop looking for finished stages."""
        for watch in self.stages:
            watch.stop()

    def leave(self) -> None:
        """Inform tasks that the fleet was stopped."""
        spark = self.spark
        if spark is None or spark.is_stopped():
            return
        with suppress(StoppedError):  # the application has just ended
            # Leave the driver's secret in the environment, for later contexts. It gives no access to an attached fleet.
            spark.set_access(seal(Access(driver_secret(), spark.application_id)))
            spark.set_fleet(None)
            spark.mark_stopped(self._fleet.id)


def _check_running(spark: SparkBackend) -> None:
    if spark.is_stopped():
        raise StoppedError(f"{spark.end_reason()}; create a new SparkSession first")
