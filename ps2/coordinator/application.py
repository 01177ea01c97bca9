"""The Spark application whose tasks use the fleet."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from functools import cache
from typing import Any

from ps2.certificates import Tls
from ps2.client.fleet import Access, FleetRef, fleet_text, seal, series_of
from ps2.config import new_token
from ps2.coordinator.binding import out_of_reach
from ps2.coordinator.conf import PS2Conf
from ps2.coordinator.master import Master
from ps2.coordinator.stages import StageWatch
from ps2.errors import ConfigError, StoppedError
from ps2.rpc.control import ServerControl
from ps2.run.spark.backend import SparkBackend
from ps2.run.spark.backend_lookup import active_backend, backend_of, is_connect
from ps2.transport.tls import Renewed, usable

log = logging.getLogger(__name__)


def user_backend(spark: Any) -> SparkBackend | None:
    """Return the user's Spark application. Does not import pyspark unless pyspark is loaded already.

    Args:
        spark: a SparkSession, of Spark Connect or not, or a SparkContext; None: the active one, if any.
    """
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
        spark: the application, or None.
        stages: for each application, the watch of its finished stages.
    """

    def __init__(
        self, fleet: FleetRef, token: str | None, tls: Tls | None, master: Master, control: ServerControl
    ) -> None:
        """Begin without a Spark application.

        Args:
            token: the attached fleet's token; None: tasks derive the fleet's token, or the fleet has none.
            tls: the fleet's certificates; None: no TLS.
        """
        self.spark: SparkBackend | None = None
        self.stages: list[StageWatch] = []
        self._fleet = fleet
        self._token = token
        self._access: Access | None = None
        self._pems = Renewed(tls, usable) if tls is not None else None
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
        self._hand_over(spark)
        spark.set_fleet(fleet_text(self._fleet))
        if any(watch.watches(spark) for watch in self.stages):
            return
        if (tracker := spark.status_tracker()) is not None:
            # Watches of earlier applications end by themselves.
            series = series_of(self._fleet.id, spark.application_id)
            self.stages.append(StageWatch(spark, tracker, series, self._master, self._control))

    def renew(self) -> None:
        """Give tasks of later jobs the new certificates, if they have changed."""
        spark = self.spark
        if spark is None or self._pems is None or self._access is None:
            return
        if self._pems.get() is not self._access.tls:
            self._hand_over(spark)

    def _hand_over(self, spark: SparkBackend) -> None:
        pems = self._pems.get() if self._pems is not None else None
        self._access = Access(driver_secret(), spark.application_id, self._token, pems)
        spark.set_access(seal(self._access))

    def running(self, call: str) -> SparkBackend:
        """Return the application. Raise ConfigError if there is none, StoppedError if it was stopped.

        Args:
            call: name of the user's call, for messages.
        """
        if self.spark is None:
            raise ConfigError(f"{call}: this context has no SparkContext")
        _check_running(self.spark)
        return self.spark

    def roll_back(self, epoch: int) -> None:
        """Let jobs that the driver submits from now on belong to this epoch of the fleet."""
        if self.spark is not None:
            self.spark.set_epoch(epoch)

    def join(self, spark: SparkBackend, epoch: int) -> None:
        """Let the jobs of the calling thread use the fleet, as of an epoch. Spark's own threads need this call.

        Args:
            spark: the application. With Spark Connect it may be another session, such as that of a query's batches.
        """
        if self.spark is None or self.spark.application_id != spark.application_id:
            self.reach(spark)
        else:
            self._hand_over(spark)
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
            # The access that tasks keep is the same for all contexts, and is valid for no running fleet.
            spark.set_access(seal(Access(driver_secret(), spark.application_id)))
            spark.set_fleet(None)
            spark.mark_stopped(self._fleet.id)


def _check_running(spark: SparkBackend) -> None:
    if spark.is_stopped():
        raise StoppedError(f"{spark.end_reason()}; make a new SparkSession first")
