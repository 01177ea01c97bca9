"""Assigns servers to containers. Makes no I/O: it receives the hosts' reports and returns their next orders."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from ps2.coordinator.launchers.processes.child import ending
from ps2.errors import ProtocolError
from ps2.rpc.launcher_control import ContainerReport, Order


@dataclass
class _Slot:
    """The order for one server of the fleet, and the state of its host (a task of the fleet's Spark application).

    Attributes:
        attempt: the attempt number of the task that executes the order; None: no task has reported yet. A later attempt
            does not execute the same order: the server has died with its container, and the coordinator must order a
            new server first.
        host: the last report of the newest attempt.
        is_released: True if the newest attempt was ordered to leave.
        ended: the reason why the server of the last order has ended, or does not start; None: it has not ended.
        address: the last known ``host:port`` of the server; "": unknown.
    """

    order: int = 0
    arguments: tuple[str, ...] = ()
    attempt: int | None = None
    host: ContainerReport | None = None
    is_released: bool = False
    ended: str | None = None
    address: str = ""


class Hosts:
    """The containers of one fleet. Thread-safe."""

    def __init__(self, servers: int, version: str, keep_addresses: bool = False) -> None:
        """Start without orders. ``keep_addresses``: a server on the same host as its predecessor gets its address."""
        self._keep_addresses = keep_addresses
        self._version = version
        self._lock = threading.Lock()
        self._slots = [_Slot() for _ in range(servers)]
        self._leaving = False

    def order(self, index: int, arguments: Sequence[str]) -> None:
        """Order a server in place of an earlier one. The present host starts it, or the next host to report."""
        with self._lock:
            slot = self._slots[index]
            slot.order += 1
            slot.arguments = tuple(arguments)
            slot.attempt = slot.ended = None

    def leave(self) -> None:
        """Let all hosts end their servers and leave their containers at their next report."""
        with self._lock:
            self._leaving = True

    def are_released(self) -> bool:
        """Return True if all hosts have been ordered to leave."""
        with self._lock:
            return all(slot.is_released or slot.host is None for slot in self._slots)

    def report(self, report: ContainerReport) -> Order:
        """Record a host's report; return its next order."""
        with self._lock:
            if report.index >= len(self._slots):
                raise ProtocolError(
                    f"server {report.index}: this fleet has {len(self._slots)} servers, with indices from 0"
                )
            slot = self._slots[report.index]
            if slot.host is not None and report.attempt < slot.host.attempt:
                return Order(leave=True)
            if self._leaving:
                slot.is_released = True
                return Order(leave=True)
            if report.version != self._version:
                slot.ended = f"{location(report)} has ps2 {report.version}; expected {self._version}, as in the driver"
                return Order(refused=slot.ended)
            previous_host, slot.host = slot.host, report
            slot.address = report.address or slot.address
            if not slot.order:
                return Order()
            if slot.attempt is None:
                slot.attempt = report.attempt
            elif slot.attempt != report.attempt:
                lost_host = "its container" if previous_host is None else location(previous_host)
                slot.ended = slot.ended or f"{lost_host} is gone"
                return Order()
            if report.order == slot.order and report.exit_code is not None:
                slot.ended = f"in {location(report)}: {ending(report.exit_code, report.said.splitlines())}"
            return Order(slot.order, slot.arguments, address=slot.address if self._keep_addresses else "")

    def ended(self) -> dict[int, str]:
        """Return the reasons why servers have ended, or do not start, by index."""
        with self._lock:
            return {index: slot.ended for index, slot in enumerate(self._slots) if slot.ended is not None}

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes of servers that have ended in a running container, by index."""
        with self._lock:
            hosts = [(index, slot.order, slot.host) for index, slot in enumerate(self._slots)]
        return {
            index: host.exit_code
            for index, order, host in hosts
            if host is not None and host.order == order and host.exit_code is not None
        }

    def addresses(self) -> dict[int, str]:
        """Return ``host:port`` of each listening server of the last orders, by index."""
        with self._lock:
            return {
                index: slot.host.address
                for index, slot in enumerate(self._slots)
                if slot.host is not None and slot.host.order == slot.order and slot.host.address
            }

    def absent(self) -> list[int]:
        """Return the indices of the servers whose last order no container has received."""
        with self._lock:
            return [index for index, slot in enumerate(self._slots) if slot.attempt is None]

    def locations(self) -> dict[int, str]:
        """Return a text with container and node of each server, by index."""
        with self._lock:
            return {index: location(slot.host) for index, slot in enumerate(self._slots) if slot.host is not None}


def location(report: ContainerReport) -> str:
    """Return a text with the container and node of a report."""
    return f"container {report.container} on {report.node}"
