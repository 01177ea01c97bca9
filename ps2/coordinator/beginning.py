"""How a context begins: with empty servers, with a checkpoint, or with what the driver before has left on a fleet."""

from __future__ import annotations

import json
import logging
import time

from ps2.client.dcv import DCV
from ps2.client.session import Session
from ps2.coordinator.checkpoints import Checkpoints, Newest
from ps2.coordinator.conf import PS2Conf
from ps2.coordinator.master import Master
from ps2.coordinator.supervisor import Supervisor
from ps2.errors import CheckpointCorruptError, NotFoundError, UsageError
from ps2.interrupts import sleep
from ps2.rpc.control import Meeting, ServerControl
from ps2.storage import folders
from ps2.storage.manifest import SavedMatrix, matrices_from_json

log = logging.getLogger(__name__)

POLL_S = 0.2


def start_from(
    master: Master, supervisor: Supervisor, checkpoints: Checkpoints, servers: ServerControl, conf: PS2Conf
) -> None:
    """Bring started servers to where the context begins."""
    if conf.checkpointDir is not None:
        folders.prepare(conf.checkpointDir)
    restored = None
    if conf.restore is not None:  # looked at before anything is taken over
        folder = folders.newest(conf.restore)
        restored = Newest(folder, folders.read_manifest(folder), {})
        if not restored.manifest.number:
            raise UsageError(f"restore: expected a checkpoint of a fleet, {folder} has rows that DCV.load reads")
        checkpoints.go_on_from(restored, conf.restore)
    if conf.fleet:
        master.publish = supervisor.publish
        _take_over(master, supervisor, servers, conf, adopt=restored is None)
    else:
        supervisor.activate()
    if restored is not None:
        master.adopt(restored.manifest.matrices, cut_anew=True)
        everyone = range(conf.count)
        supervisor.load(restored, everyone, ids=False)
        supervisor.take_loaded(everyone)
        master.roster.hope()
    if conf.replicas:
        master.roster.hope()


def named_vector(session: Session, master: Master, name: str) -> DCV:
    """Return the vector of that name; raises NotFoundError if there is none."""
    names = master.names()
    if name not in names:
        raise NotFoundError(f"there is no vector {name!r}; expected one of {', '.join(sorted(names)) or '(none)'}")
    matrix, row = names[name]
    info = session.matrix(matrix)
    vector = DCV(session.fleet, matrix, row, info.spec, info.route)
    vector._is_named = True
    return vector


def _take_over(master: Master, supervisor: Supervisor, servers: ServerControl, conf: PS2Conf, adopt: bool) -> None:
    """Become the coordinator of running servers, once the one before has been silent for long enough."""
    meetings = _wait_until_alone(master, servers, conf)
    servers.route_version = max(meeting.route_version for meeting in meetings)
    left = [meeting.catalog for meeting in meetings if meeting.catalog]
    supervisor.activate()
    supervisor.discard_checkpoints()
    held = _catalog(max(left, key=_number_of), meetings) if adopt and left else ()
    kept = {matrix.id for matrix in held}
    for address in master.roster.addresses():
        for status in servers.status(address).matrices:
            if status.matrix not in kept:  # it has no name, so nobody can reach it any more
                servers.free_matrix(address, status.matrix)
    if held:
        master.adopt(held, cut_anew=False)
        log.info("took over %d matrices of the driver before", len(held))


def _wait_until_alone(master: Master, servers: ServerControl, conf: PS2Conf) -> list[Meeting]:
    began_s = time.monotonic()
    while True:
        meetings = [servers.hello(address) for address in master.roster.addresses()]
        driven = [m for m in meetings if m.coordinator and m.heard_s < conf.lostAfterS]
        if not driven:
            return meetings
        # A sign of life that was given since: that driver is there.
        alive = [m for m in driven if m.heard_s < time.monotonic() - began_s - POLL_S]
        if alive:
            raise UsageError(
                f"this fleet has a driver (coordinator {alive[0].coordinator}), which gave a sign of life "
                f"{alive[0].heard_s:.1f} s ago; a fleet has one at a time: stop it first"
            )
        sleep(POLL_S)


def _number_of(catalog: bytes) -> list[int]:
    number: list[int] = json.loads(catalog)["number"]
    return number


def _catalog(text: bytes, meetings: list[Meeting]) -> tuple[SavedMatrix, ...]:
    """Return what the driver before has named, unless servers were restarted since: then it is gone."""
    content = json.loads(text)
    if content["servers"] != [meeting.server_id for meeting in meetings]:
        log.warning("servers were restarted, or are in another order, since the driver before: what it had is dropped")
        return ()
    try:
        return matrices_from_json(content["matrices"], "the catalog of the driver before")
    except CheckpointCorruptError as error:
        log.warning("%s", error)
        return ()
