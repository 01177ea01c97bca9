"""Workers of ``benchmarks.scale``, in their own process: connections that send requests, and do no other work."""

from __future__ import annotations

import json
import os
import pickle
import selectors
import socket
import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from select import POLLIN, POLLOUT
from typing import Any, TypeAlias

import numpy as np

from ps2.client import plans, requests
from ps2.client.network import FleetNetwork
from ps2.config import WireConfig, split_address
from ps2.errors import PS2Error
from ps2.listening import raise_file_limit
from ps2.protocol.messages import PROTOCOL_VERSION, Request, RequestId
from ps2.protocol.pb import run_pb2 as pb
from ps2.protocol.pb import server_pb2
from ps2.rpc.run_control import NAME
from ps2.transport.exchange import InFlightRequests
from ps2.transport.handshake import handshake
from ps2.transport.sockets import PlainSocket, connect, tune
from ps2.transport.worker_channel import framed

TIMEOUT_S = 60.0
WIRE = WireConfig()
# Yields after each step of a clock what the worker waits for.
Working: TypeAlias = Iterator[Sequence[InFlightRequests]]


@dataclass(frozen=True)
class Load:
    """What to do.

    Attributes:
        coordinator, token: address and token of the run.
        servers, own: addresses of the servers, and their token.
        ranks: of the workers in this process.
        clocks: number of clocks of each worker.
        keys: number of random columns that each worker reads and adds to in a clock; 0: the servers get no requests.
        vector: the vector that they belong to, pickled, as base64.
    """

    coordinator: str
    token: str
    servers: tuple[str, ...]
    own: str
    ranks: tuple[int, ...]
    clocks: int
    keys: int = 0
    vector: str = ""


class Worker:
    """A worker of the run, with a connection to the coordinator and one to each server.

    Attributes:
        control: the connection to the coordinator.
        by_server: the connections to the servers, by their addresses.
    """

    def __init__(self, rank: int, load: Load, places: Sequence[tuple[str, int, str]]) -> None:
        self.rank = rank
        self.by_server = {
            address: _connected(host, port, load.own, id)
            for address, (host, port, id) in zip(load.servers, places, strict=True)
        }
        self.control = _connected(*split_address(load.coordinator), load.token, NAME)
        self._pulls, self._adds = _requests(rank, load) if load.keys else ({}, {})
        self._numbers = count()
        self._clock = 0
        self._working: Working = iter(())
        self._flights: Sequence[InFlightRequests] = ()

    def join(self) -> None:
        join = pb.Join(rank=self.rank, attempt=self.rank, host="here", pid=os.getpid())
        self.control.sendall(framed(pb.WorkerMessage(join=join).SerializeToString()))

    def begin(self) -> None:
        """Begin the clock that the coordinator has released."""
        self._clock += 1
        self._working = self._work()
        self.go_on()

    def go_on(self) -> None:
        """Read what has come; after the last reply of a step, begin the next step or end the clock."""
        for flight in self._flights:
            if not flight.finished:
                flight.advance(POLLIN)
        while all(flight.finished for flight in self._flights):
            for outcome in (outcome for flight in self._flights for outcome in flight.outcomes):
                if isinstance(outcome, PS2Error):
                    raise outcome
            self._flights = ()
            step = next(self._working, None)
            if step is None:
                return
            self._flights = step

    def _work(self) -> Working:
        if self._pulls:
            yield self._sent(self._pulls)
            number = next(self._numbers)
            yield self._sent(
                {
                    address: replace(request, id=RequestId(f"load/{self.rank}", number, number))
                    for address, request in self._adds.items()
                }
            )
        times = pb.ClockTimes(clock=self._clock, compute=0.1)
        arrive = pb.Arrive(clock=self._clock, applied=self._clock, times=times)
        self.control.sendall(framed(pb.WorkerMessage(arrive=arrive, number=self._clock + 1).SerializeToString()))

    def _sent(self, by_server: dict[str, Request]) -> list[InFlightRequests]:
        flights = [
            InFlightRequests(address, self.by_server[address], [request], WIRE.request_limit_bytes)
            for address, request in by_server.items()
        ]
        for flight in flights:
            flight.advance(POLLOUT)
        return flights


def main() -> None:
    """Connect all workers, then let each enter its clocks as soon as it may."""
    load = Load(**json.loads(os.environ["PS2_SCALE"]))
    raise_file_limit()
    positions = _places(load)
    waiting = selectors.DefaultSelector()
    for rank in load.ranks:
        worker = Worker(rank, load, positions)
        worker.join()
        waiting.register(worker.control, selectors.EVENT_READ, (worker, True))
        for connection in worker.by_server.values():
            connection.settimeout(None)
            waiting.register(connection, selectors.EVENT_READ, (worker, False))
    left = dict.fromkeys(load.ranks, load.clocks)
    while True:
        for key, _ in waiting.select():
            worker, is_control = key.data
            if not is_control:
                worker.go_on()
            elif not worker.control.recv(4096):
                return  # the coordinator has gone
            elif left[worker.rank]:
                left[worker.rank] -= 1
                worker.begin()


def _requests(rank: int, load: Load) -> tuple[dict[str, Request], dict[str, Request]]:
    """Return what a worker asks each server in a clock: to read its columns, and to add to them."""
    target = pickle.loads(b64decode(load.vector))._target()
    columns = np.random.default_rng(rank).integers(0, target.spec.dim, load.keys)
    result = []
    for plan in (
        plans.pull_columns(target, columns),
        plans.push_columns(target, "scatter_add", np.ones(load.keys), columns),
    ):
        grouped: dict[str, Any] = requests.group(
            requests.cut([plan], {target.matrix: target.route}, WIRE.block_bytes),
            {target.matrix: target.route},
            target.route.version,
        )
        result.append({address: request for address, [(_, request)] in grouped.items()})
    return result[0], result[1]


def _places(load: Load) -> list[tuple[str, int, str]]:
    """Return host, port and id of each server's data listener."""
    transport = FleetNetwork(load.own)
    hello = server_pb2.HelloRequest(protocol=PROTOCOL_VERSION)
    try:
        result = []
        for address in load.servers:
            reply = transport.call(address, "Server/Hello", hello, server_pb2.HelloReply, TIMEOUT_S)
            result.append((split_address(address)[0], reply.data_port, reply.server_id))
        return result
    finally:
        transport.close()


def _connected(host: str, port: int, token: str, name: str) -> PlainSocket:
    connection = connect(socket.AF_UNSPEC, (host, port), TIMEOUT_S)
    tune(connection, WIRE)
    handshake(connection, token, name, time.monotonic() + TIMEOUT_S)
    connection.settimeout(None)
    return connection


if __name__ == "__main__":
    main()
