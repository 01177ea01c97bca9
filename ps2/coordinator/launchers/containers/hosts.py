"""Which container hosts which server, and what it is told to do: pure, told by reports and orders."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from ps2.coordinator.launchers.processes.child import ending
from ps2.errors import ProtocolError
from ps2.rpc.launcher_control import Order, Report


@dataclass
class _Seat:
    """One server of the fleet.

    Attributes:
        order: number of the last one; ``arguments`` are its.
        taken_by: attempt of the host that carries it out; no other one does, as the server that it started has died
            with its container, and nobody has noticed yet.
        host: what its newest host has said last; ``left`` if it was told to go since.
        ended: why the server of this order has ended, or does not start.
        address: where its server has listened last.
    """

    order: int = 0
    arguments: tuple[str, ...] = ()
    taken_by: int | None = None
    host: Report | None = None
    left: bool = False
    ended: str | None = None
    address: str = ""


class Hosts:
    """The containers of one fleet. Safe for threads."""

    def __init__(self, servers: int, version: str, keep_addresses: bool = False) -> None:
        """Args:
        version: of the package that hosts are to have.
        keep_addresses: a server that takes another's place on the same machine is to listen where that one did.
        """
        self._keep_addresses = keep_addresses
        self._version = version
        self._lock = threading.Lock()
        self._seats = [_Seat() for _ in range(servers)]
        self._leaving = False

    def order(self, index: int, arguments: Sequence[str]) -> None:
        """Have a server started, in place of any before: by the host that is there, or by the next one."""
        with self._lock:
            seat = self._seats[index]
            seat.order += 1
            seat.arguments = tuple(arguments)
            seat.taken_by = seat.ended = None

    def leave(self) -> None:
        """Let all hosts end their servers, and go."""
        with self._lock:
            self._leaving = True

    def have_left(self) -> bool:
        """Tell whether all hosts have been told to go."""
        with self._lock:
            return all(seat.left or seat.host is None for seat in self._seats)

    def report(self, report: Report) -> Order:
        """Take in what a host says; return what it is to do.

        Raises:
            ProtocolError: the fleet has no such server.
        """
        with self._lock:
            if report.index >= len(self._seats):
                raise ProtocolError(f"this fleet has {len(self._seats)} servers, and no server {report.index}")
            seat = self._seats[report.index]
            if seat.host is not None and report.attempt < seat.host.attempt:
                return Order(leave=True)
            if self._leaving:
                seat.left = True
                return Order(leave=True)
            if report.version != self._version:
                seat.ended = f"{where(report)} has ps2 {report.version}, and this process {self._version}"
                return Order(refused=seat.ended)
            before, seat.host = seat.host, report
            seat.address = report.address or seat.address
            if not seat.order:
                return Order()
            if seat.taken_by is None:
                seat.taken_by = report.attempt
            elif seat.taken_by != report.attempt:
                gone = "its container" if before is None else where(before)
                seat.ended = seat.ended or f"{gone} is gone"
                return Order()
            if report.order == seat.order and report.exit_code is not None:
                seat.ended = f"in {where(report)}: {ending(report.exit_code, report.said.splitlines())}"
            return Order(seat.order, seat.arguments, address=seat.address if self._keep_addresses else "")

    def ended(self) -> dict[int, str]:
        """Return by index why servers have ended, or do not start."""
        with self._lock:
            return {index: seat.ended for index, seat in enumerate(self._seats) if seat.ended is not None}

    def exit_codes(self) -> dict[int, int]:
        """Return by index how the servers of the last orders have ended that did so in their container."""
        with self._lock:
            hosts = [(index, seat.order, seat.host) for index, seat in enumerate(self._seats)]
        return {
            index: host.exit_code
            for index, order, host in hosts
            if host is not None and host.order == order and host.exit_code is not None
        }

    def addresses(self) -> dict[int, str]:
        """Return by index where the servers of the last orders listen."""
        with self._lock:
            return {
                index: seat.host.address
                for index, seat in enumerate(self._seats)
                if seat.host is not None and seat.host.order == seat.order and seat.host.address
            }

    def absent(self) -> list[int]:
        """Return which servers have no container that takes their order."""
        with self._lock:
            return [index for index, seat in enumerate(self._seats) if seat.taken_by is None]

    def places(self) -> dict[int, str]:
        """Return by index where servers are: container and node."""
        with self._lock:
            return {index: where(seat.host) for index, seat in enumerate(self._seats) if seat.host is not None}


def where(report: Report) -> str:
    """Name the container of a report, and its node."""
    return f"container {report.container} on {report.node}"
