"""The Spark application whose tasks reach the fleet."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import Any

from ps2.certificates import Tls
from ps2.client.fleet import Access, seal
from ps2.client.task import EPOCH_PROPERTY, FLEET_VARIABLE, STOPPED_PROPERTY
from ps2.coordinator.binding import out_of_reach
from ps2.coordinator.master import Master
from ps2.coordinator.stages import StageWatch
from ps2.errors import ConfigError, StoppedError
from ps2.rpc.control import ServerControl
from ps2.run.spark import active_context, is_stopped, refuse_connect
from ps2.transport.tls import Renewed, usable

log = logging.getLogger(__name__)


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


class Application:
    """Gives tasks access to the fleet: those of one SparkContext, which may replace a stopped one.

    Attributes:
        context: the SparkContext, or None.
        stages: a watch of each SparkContext's finished stages.
    """

    def __init__(self, access: Access, tls: Tls | None, master: Master, control: ServerControl) -> None:
        """Args:
        access: what tasks need, without application id and certificates.
        tls: of the fleet; None: no TLS.
        """
        self.context: Any = None
        self.stages: list[StageWatch] = []
        self._access = access
        self._pems = Renewed(tls, usable) if tls is not None else None
        self._master = master
        self._control = control

    def reach(self, context: Any) -> None:
        """Give the Python workers of this SparkContext the fleet's token, through Spark's own channel."""
        self.context = context
        servers = tuple(self._master.registry.addresses())
        if (warning := out_of_reach(context, self._access.fleet.master, servers)) is not None:
            log.warning("%s", warning)
        self._access = replace(self._access, application=context.applicationId)
        self._hand_over()
        if not any(watch.watches(context) for watch in self.stages):
            # Watches of earlier SparkContexts end by themselves.
            self.stages.append(StageWatch(context, self._access.series, self._master, self._control))

    def renew(self) -> None:
        """Give tasks of later jobs the new certificates, if they have changed."""
        if self._pems is not None and self.context is not None and self._pems.get() is not self._access.tls:
            self._hand_over()

    def _hand_over(self) -> None:
        pems = self._pems.get() if self._pems is not None else None
        self._access = replace(self._access, tls=pems)
        self.context.environment[FLEET_VARIABLE] = seal(self._access)

    def running(self, what: str) -> Any:
        """Return the SparkContext, for ``what``; raise ConfigError if there is none, StoppedError if it was stopped."""
        if self.context is None:
            raise ConfigError(f"{what}: this context has no SparkContext")
        _check_running(self.context)
        return self.context

    def go_back(self, epoch: int) -> None:
        """Jobs that the driver submits from now on belong to this epoch of the fleet."""
        if self.context is not None:
            self.context.setLocalProperty(EPOCH_PROPERTY, str(epoch))

    def stop(self) -> None:
        """Stop the watches."""
        for watch in self.stages:
            watch.stop()

    def leave(self) -> None:
        """Tell tasks that the fleet was stopped."""
        context = self.context
        if context is None or is_stopped(context):
            return
        context.environment.pop(FLEET_VARIABLE, None)
        stopped = context.getLocalProperty(STOPPED_PROPERTY)
        id = self._access.fleet.id
        context.setLocalProperty(STOPPED_PROPERTY, f"{stopped} {id}" if stopped else id)


def _check_running(context: Any) -> None:
    if is_stopped(context):
        raise StoppedError("the SparkContext was stopped; make a new SparkSession first")
