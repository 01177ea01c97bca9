"""Traffic of this host's servers: bytes in their sockets, and arrays among these."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, fields

import psutil
from click import ClickException

from ps2 import PS2Context
from ps2.rpc.control import ServerControl
from ps2.rpc.network import FleetNetwork

COUNTED = re.compile(r"\bbytes_(sent|received):(\d+)")


@dataclass(frozen=True)
class Moved:
    """Traffic in bytes.

    Attributes:
        received, sent: by the servers over TCP, everything included.
        arrays: in both directions, by the servers' counters: keys and numbers at full length, without headers.
    """

    received: int = 0
    sent: int = 0
    arrays: int = 0

    @property
    def mb(self) -> float:
        """TCP traffic in both directions, in MB."""
        return (self.received + self.sent) / 1e6

    def __add__(self, other: Moved) -> Moved:
        return Moved(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def __sub__(self, other: Moved) -> Moved:
        return Moved(*(getattr(self, one.name) - getattr(other, one.name) for one in fields(self)))


class Traffic:
    """The servers of the running context, which must not use Unix sockets (``PS2_UNIX_SOCKETS=0``)."""

    def __init__(self) -> None:
        if shutil.which("ss") is None:
            raise ClickException("there is no ss, which tells bytes of sockets: install iproute2")
        ps = PS2Context.getOrCreate()
        self._addresses = ps.servers
        self._control = ServerControl(FleetNetwork(ps._coordinator.token))
        pids = [self._control.status(address).pid for address in self._addresses]
        listening = (
            one for pid in pids for one in psutil.Process(pid).net_connections("tcp") if one.status == "LISTEN"
        )
        self._ports = {str(one.laddr.port) for one in listening}

    def so_far(self) -> Moved:
        """Return the traffic of the connections that are still open, and the arrays since the servers' start."""
        statuses = [self._control.status(address) for address in self._addresses]
        sums = {"sent": 0, "received": 0}
        told = subprocess.run(["ss", "-tinHO"], stdout=subprocess.PIPE, text=True, check=True).stdout
        for line in told.splitlines():
            if line.split()[3].rpartition(":")[2] in self._ports:
                for way, count in COUNTED.findall(line):
                    sums[way] += int(count)
        return Moved(sums["received"], sums["sent"], sum(status.bytes_in + status.bytes_out for status in statuses))
