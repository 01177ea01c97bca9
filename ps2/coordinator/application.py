"""The Spark application whose tasks reach the fleet."""

from __future__ import annotations

import logging
import sys
from functools import cache
from typing import Any

from ps2.certificates import Tls
from ps2.client.fleet import Access, FleetRef, fleet_text, seal, series_of
from ps2.client.task import ACCESS_VARIABLE, EPOCH_PROPERTY, FLEET_PROPERTY, STOPPED_PROPERTY
from ps2.config import new_token
from ps2.coordinator.binding import out_of_reach
from ps2.coordinator.master import Master
from ps2.coordinator.stages import StageWatch
from ps2.errors import ConfigError, StoppedError
from ps2.rpc.control import ServerControl
from ps2.run.spark import active_context, is_stopped, refuse_connect
from ps2.transport.tls import Renewed, usable

log = logging.getLogger(__name__)

# Of stopped fleets; Spark sends them with every task.
KEPT_IDS = 50


def spark_context_of(spark: Any) -> Any:
    """Return the SparkContext. Does not import pyspark unless it is loaded.

    Args:
        spark: a SparkSession or SparkContext; None: the active one, if any.
    """
    if spark is None:
        if "pyspark" not in sys.modules:
            return None
        return active_context()
    refuse_connect("spark: a SparkSession", spark)
    context = getattr(spark, "sparkContext", spark)
    if not hasattr(context, "setLocalProperty"):
        raise ConfigError(f"spark: expected a SparkSession or SparkContext, got {type(spark).__name__}")
    _check_running(context)
    return context


@cache
def driver_secret() -> str:
    """Return the secret of this process, from which the tokens of its fleets are derived.

    One secret for all contexts, so that their tasks have one environment: Spark keeps a daemon of Python workers for
    each environment, as long as the SparkContext lives.
    """
    return new_token()


class Application:
    """Gives tasks access to the fleet: those of one SparkContext, which may replace a stopped one.

    Attributes:
        context: the SparkContext, or None.
        stages: a watch of each SparkContext's finished stages.
    """

    def __init__(
        self, fleet: FleetRef, token: str | None, tls: Tls | None, master: Master, control: ServerControl
    ) -> None:
        """Args:
        token: that an attached fleet came with; None: tasks derive the fleet's token, or it has none.
        tls: of the fleet; None: no TLS.
        """
        self.context: Any = None
        self.stages: list[StageWatch] = []
        self._fleet = fleet
        self._token = token
        self._handed: Access | None = None
        self._pems = Renewed(tls, usable) if tls is not None else None
        self._master = master
        self._control = control

    def reach(self, context: Any) -> None:
        """Give tasks of this SparkContext access to the fleet.

        What is secret goes through Spark's own channel, the environment of its Python workers. The fleet's name, which
        differs by context, goes with handles, and as a local property with jobs of the calling thread.
        """
        self.context = context
        servers = tuple(self._master.registry.addresses())
        if (warning := out_of_reach(context, self._fleet.master, servers)) is not None:
            log.warning("%s", warning)
        self._hand_over()
        context.setLocalProperty(FLEET_PROPERTY, fleet_text(self._fleet))
        if not any(watch.watches(context) for watch in self.stages):
            # Watches of earlier SparkContexts end by themselves.
            series = series_of(self._fleet.id, context.applicationId)
            self.stages.append(StageWatch(context, series, self._master, self._control))

    def renew(self) -> None:
        """Give tasks of later jobs the new certificates, if they have changed."""
        if self._pems is not None and self._handed is not None and self._pems.get() is not self._handed.tls:
            self._hand_over()

    def _hand_over(self) -> None:
        pems = self._pems.get() if self._pems is not None else None
        self._handed = Access(driver_secret(), self.context.applicationId, self._token, pems)
        self.context.environment[ACCESS_VARIABLE] = seal(self._handed)

    def running(self, what: str) -> Any:
        """Return the SparkContext, for ``what``; raise ConfigError if there is none, StoppedError if it was stopped."""
        if self.context is None:
            raise ConfigError(f"{what}: this context has no SparkContext")
        _check_running(self.context)
        return self.context

    def roll_back(self, epoch: int) -> None:
        """Jobs that the driver submits from now on belong to this epoch of the fleet."""
        if self.context is not None:
            self.context.setLocalProperty(EPOCH_PROPERTY, str(epoch))

    def join(self, context: Any, epoch: int) -> None:
        """Let the jobs of the calling thread use the fleet, as of an epoch: threads of Spark's have no properties."""
        self.reach(context)
        context.setLocalProperty(EPOCH_PROPERTY, str(epoch))

    def stop(self) -> None:
        """Stop the watches."""
        for watch in self.stages:
            watch.stop()

    def leave(self) -> None:
        """Tell tasks that the fleet was stopped."""
        context = self.context
        if context is None or is_stopped(context):
            return
        # What the environment keeps is the same for all contexts, and opens no fleet that runs.
        context.environment[ACCESS_VARIABLE] = seal(Access(driver_secret(), context.applicationId))
        context.setLocalProperty(FLEET_PROPERTY, None)
        stopped = context.getLocalProperty(STOPPED_PROPERTY)
        id = self._fleet.id
        context.setLocalProperty(STOPPED_PROPERTY, " ".join([*(stopped or "").split(), id][-KEPT_IDS:]))


def _check_running(context: Any) -> None:
    if is_stopped(context):
        raise StoppedError("the SparkContext was stopped; make a new SparkSession first")
