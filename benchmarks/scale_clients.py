"""Workers of ``benchmarks.scale``, in their own process: many connections that only send requests."""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from dataclasses import dataclass

from ps2.config import split_address
from ps2.protocol.messages import PROTOCOL_VERSION
from ps2.protocol.pb import run_pb2 as pb
from ps2.protocol.pb import server_pb2
from ps2.rpc.network import FleetNetwork
from ps2.rpc.run_control import NAME
from ps2.transport.handshake import handshake
from ps2.transport.sockets import open_files
from ps2.transport.worker_channel import framed

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Asked:
    """What to do.

    Attributes:
        coordinator, token: address and token of the run.
        servers, own: addresses of the servers, and their token.
        ranks: of the workers in this process.
        clocks: number of clocks of each worker.
    """

    coordinator: str
    token: str
    servers: tuple[str, ...]
    own: str
    ranks: tuple[int, ...]
    clocks: int


def main() -> None:
    """Connect all workers, then let each enter its clocks as soon as it may, without work in between."""
    asked = Asked(**json.loads(os.environ["PS2_SCALE"]))
    open_files()
    places = _places(asked)
    held: list[socket.socket] = []
    clocks: dict[socket.socket, int] = {}
    waiting = selectors.DefaultSelector()
    for rank in asked.ranks:
        held += [_connected(host, port, asked.own, id) for host, port, id in places]
        host, port = split_address(asked.coordinator)
        connection = _connected(host, port, asked.token, NAME)
        join = pb.Join(rank=rank, attempt=rank, host="here", pid=os.getpid())
        connection.sendall(framed(pb.WorkerMessage(join=join).SerializeToString()))
        clocks[connection] = 0
        waiting.register(connection, selectors.EVENT_READ, connection)
    while True:
        for key, _ in waiting.select():
            connection = key.data
            if not connection.recv(4096):
                return  # the coordinator has gone
            clock = clocks[connection] = clocks[connection] + 1
            if clock <= asked.clocks:
                times = pb.ClockTimes(clock=clock, compute=0.1)
                arrive = pb.WorkerMessage(arrive=pb.Arrive(clock=clock, applied=clock, times=times), number=clock + 1)
                connection.sendall(framed(arrive.SerializeToString()))


def _places(asked: Asked) -> list[tuple[str, int, str]]:
    """Return host, port and id of each server's data listener."""
    transport = FleetNetwork(asked.own)
    hello = server_pb2.HelloRequest(protocol=PROTOCOL_VERSION)
    try:
        found = []
        for address in asked.servers:
            reply = transport.call(address, "Server/Hello", hello, server_pb2.HelloReply, TIMEOUT_S)
            found.append((split_address(address)[0], reply.data_port, reply.server_id))
        return found
    finally:
        transport.close()


def _connected(host: str, port: int, token: str, name: str) -> socket.socket:
    connection = socket.create_connection((host, port), TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    handshake(connection, token, name, time.monotonic() + TIMEOUT_S)
    connection.settimeout(None)
    return connection


if __name__ == "__main__":
    main()
