"""Starts a context: with empty servers, from a checkpoint, or with an earlier driver's matrices on a running fleet."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from fsspec.implementations.memory import MemoryFileSystem

from ps2.coordinator.checkpoints import Checkpoints, Newest
from ps2.coordinator.conf import LATEST, PS2Conf
from ps2.coordinator.fleet_control import FleetControl
from ps2.coordinator.published_catalog import newest_catalog
from ps2.errors import CheckpointMissingError, ConfigError, UsageError
from ps2.interrupts import sleep
from ps2.rpc.control import ServerInfo
from ps2.storage import folders
from ps2.storage.files import resolve_url, shared_url

log = logging.getLogger(__name__)

POLL_S = 0.2


def with_restore(conf: PS2Conf) -> PS2Conf:
    """Replace ``restore="latest"`` by checkpointDir, or by None if that folder has no checkpoint yet."""
    if conf.restore != LATEST or conf.checkpointDir is None:
        return conf
    folders.prepare(conf.checkpointDir)
    try:
        folders.newest(conf.checkpointDir)
    except CheckpointMissingError as error:
        log.info("restore: nothing to go on from: %s", error)
        return replace(conf, restore=None)
    return replace(conf, restore=conf.checkpointDir)


def start_from(fleet: FleetControl, checkpoints: Checkpoints, conf: PS2Conf) -> None:
    """Give started servers the state with which the context starts."""
    master = fleet.master
    if conf.checkpointDir is not None:
        if isinstance(resolve_url(conf.checkpointDir, "checkpointDir")[0], MemoryFileSystem):
            raise ConfigError(
                f"checkpointDir: expected a place that the servers and this process share, got {conf.checkpointDir}, "
                "the memory of one process"
            )
        folders.prepare(conf.checkpointDir)
    restored = None
    if conf.restore is not None:  # check before taking over anything
        folder = folders.newest(shared_url(conf.restore))
        restored = Newest(folder, folders.read_manifest(folder), {})
        if not restored.manifest.number:
            raise UsageError(f"restore: expected a checkpoint of a fleet, {folder} has rows that DCV.load reads")
        checkpoints.resume_from(restored, shared_url(conf.restore))
    if conf.fleet:
        _take_over(fleet, conf, adopt=restored is None)
    else:
        fleet.activate()
    if restored is not None:
        master.adopt(restored.manifest.matrices, repartition=True)
        everyone = range(conf.count)
        fleet.load(restored, everyone, ids=False)
        fleet.take_loaded(everyone)
        master.registry.expect_recovery()
    if conf.replicas:
        master.registry.expect_recovery()


def _take_over(fleet: FleetControl, conf: PS2Conf, adopt: bool) -> None:
    """Become the coordinator of running servers, once the earlier coordinator has been silent for long enough."""
    master, servers = fleet.master, fleet.control
    servers_info = _wait_until_alone(fleet, conf)
    servers.route_version = max(info.route_version for info in servers_info)
    fleet.activate()
    fleet.discard_checkpoints()
    matrices = newest_catalog(servers_info) if adopt else ()
    named = {matrix.id for matrix in matrices}
    for address in master.registry.addresses():
        for status in servers.status(address).matrices:
            if status.matrix not in named:  # without a name, no program can reach the matrix
                servers.free_matrix(address, status.matrix)
    if matrices:
        master.adopt(matrices, repartition=False)
        log.info("took over %d matrices of the driver before", len(matrices))


def _wait_until_alone(fleet: FleetControl, conf: PS2Conf) -> list[ServerInfo]:
    began_s = time.monotonic()
    while True:
        servers_info = [fleet.control.hello(address) for address in fleet.master.registry.addresses()]
        driven = [m for m in servers_info if m.coordinator and m.silent_s < conf.lostAfterS]
        if not driven:
            return servers_info
        # A driver that gave a sign of life since this wait began is running.
        alive = [m for m in driven if m.silent_s < time.monotonic() - began_s - POLL_S]
        if alive:
            raise UsageError(
                f"this fleet has a driver (coordinator {alive[0].coordinator}), which gave a sign of life "
                f"{alive[0].silent_s:.1f} s ago; a fleet has one at a time: stop it first"
            )
        sleep(POLL_S)
