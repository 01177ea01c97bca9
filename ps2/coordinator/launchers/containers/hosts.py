"""Which container hosts which server, and its next order. No I/O: reports of hosts in, orders out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from ps2.coordinator.launchers.processes.child import ending
from ps2.errors import ProtocolError
from ps2.rpc.launcher_control import ContainerReport, Order


@dataclass
class _Slot:
    """One server of the fleet.

    Attributes:
        order: the number of the last order.
        arguments: the arguments of ``ps2`` in that order.
        attempt: the attempt of the host that carries the order out; None: no host yet. A later host does not carry it
            out: the order's server has died with its container, and the coordinator has not noticed yet.
        host: the last report of the newest host.
        left: True if that host was told to leave.
        ended: the reason why the server of this order has ended, or does not start.
        address: the last known ``host:port`` of the server.
    """

    order: int = 0
    arguments: tuple[str, ...] = ()
    attempt: int | None = None
    host: ContainerReport | None = None
    left: bool = False
    ended: str | None = None
    address: str = ""


class Hosts:
    """The containers of one fleet. Thread-safe."""

    def __init__(self, servers: int, version: str, keep_addresses: bool = False) -> None:
        """``keep_addresses``: a replacement on the same machine listens at the address of the lost server."""
        self._keep_addresses = keep_addresses
        self._version = version
        self._lock = threading.Lock()
        self._slots = [_Slot() for _ in range(servers)]
        self._leaving = False

    def order(self, index: int, arguments: Sequence[str]) -> None:
        """Order a server that replaces any earlier one. The present host starts it, or the next one."""
        with self._lock:
            slot = self._slots[index]
            slot.order += 1
            slot.arguments = tuple(arguments)
            slot.attempt = slot.ended = None

    def leave(self) -> None:
        """Let all hosts end their servers and leave."""
        with self._lock:
            self._leaving = True

    def have_left(self) -> bool:
        """Return whether all hosts have been told to leave."""
        with self._lock:
            return all(slot.left or slot.host is None for slot in self._slots)

    def report(self, report: ContainerReport) -> Order:
        """Record a host's report; return its next order."""
        with self._lock:
            if report.index >= len(self._slots):
                raise ProtocolError(f"this fleet has {len(self._slots)} servers, and no server {report.index}")
            slot = self._slots[report.index]
            if slot.host is not None and report.attempt < slot.host.attempt:
                return Order(leave=True)
            if self._leaving:
                slot.left = True
                return Order(leave=True)
            if report.version != self._version:
                slot.ended = f"{where(report)} has ps2 {report.version}, and this process {self._version}"
                return Order(refused=slot.ended)
            previous_host, slot.host = slot.host, report
            slot.address = report.address or slot.address
            if not slot.order:
                return Order()
            if slot.attempt is None:
                slot.attempt = report.attempt
            elif slot.attempt != report.attempt:
                lost_host = "its container" if previous_host is None else where(previous_host)
                slot.ended = slot.ended or f"{lost_host} is gone"
                return Order()
            if report.order == slot.order and report.exit_code is not None:
                slot.ended = f"in {where(report)}: {ending(report.exit_code, report.said.splitlines())}"
            return Order(slot.order, slot.arguments, address=slot.address if self._keep_addresses else "")

    def ended(self) -> dict[int, str]:
        """Return by index why servers have ended, or do not start."""
        with self._lock:
            return {index: slot.ended for index, slot in enumerate(self._slots) if slot.ended is not None}

    def exit_codes(self) -> dict[int, int]:
        """Return by index the exit codes of servers that have ended while their container runs."""
        with self._lock:
            hosts = [(index, slot.order, slot.host) for index, slot in enumerate(self._slots)]
        return {
            index: host.exit_code
            for index, order, host in hosts
            if host is not None and host.order == order and host.exit_code is not None
        }

    def addresses(self) -> dict[int, str]:
        """Return by index where the servers of the last orders listen."""
        with self._lock:
            return {
                index: slot.host.address
                for index, slot in enumerate(self._slots)
                if slot.host is not None and slot.host.order == slot.order and slot.host.address
            }

    def absent(self) -> list[int]:
        """Return the servers whose order no container has taken."""
        with self._lock:
            return [index for index, slot in enumerate(self._slots) if slot.attempt is None]

    def locations(self) -> dict[int, str]:
        """Return by index container and node of each server."""
        with self._lock:
            return {index: where(slot.host) for index, slot in enumerate(self._slots) if slot.host is not None}


def where(report: ContainerReport) -> str:
    """Name the container of a report, and its node."""
    return f"container {report.container} on {report.node}"
