"""Servers within this process: the same engines, partitions and kernels as in a fleet, but no network.

One worker with all rows trains on these servers. The results equal those of a fleet with as many servers, bit for bit.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ps2.client.fleet import FleetRef
from ps2.client.session import Session
from ps2.client.sessions import install, uninstall
from ps2.client.task import RunIds
from ps2.config import FleetConfig, WireConfig
from ps2.coordinator.master import Master
from ps2.coordinator.servicer import MasterServicer
from ps2.errors import PS2Error
from ps2.matrix.partition import Wire
from ps2.protocol.arrays import decode_array, deliver, plain_spec, receive_array, to_send
from ps2.protocol.messages import Array, Operation, Reply, Request, Result
from ps2.rpc.control import ServerControl
from ps2.server.engine import Engine
from ps2.server.namespaces import Namespaces
from ps2.server.servicer import ServerServicer
from ps2.transport.exchange import Outcome

MASTER = "in-process:0"


class InProcessServers:
    """A network of servers and their master within this process. Each has an address."""

    def __init__(self, servers: int, memory_limit_bytes: int, allow_udf: bool = False) -> None:
        """Create the servers' engines, each with this memory limit, and their master."""
        self.memory_limit_bytes = memory_limit_bytes
        self.engines = {f"in-process:{index + 1}": Engine(memory_limit_bytes, allow_udf) for index in range(servers)}
        self.control = ServerControl(self)
        self.master = Master(self.control, FleetConfig(), id="inprocess")
        self._servicers: dict[str, Any] = {
            # There is no process to end.
            address: ServerServicer(Namespaces(engine), f"id-{address}", WireConfig(), lambda: None)
            for address, engine in self.engines.items()
        }
        self._servicers[MASTER] = MasterServicer(self.master)
        for index, address in enumerate(self.engines):
            self.master.registry.register(index, f"id-{address}", address)

    def exchange(self, requests: Mapping[str, Sequence[Request]]) -> dict[str, list[Outcome]]:
        return {
            address: [self._outcome(address, request) for request in server_requests]
            for address, server_requests in requests.items()
        }

    def call(self, address: str, method: str, message: Any, reply: Any, timeout_s: float) -> Any:
        return getattr(self._servicers[address], method.partition("/")[2])(message)

    def take(self, address: str) -> None:
        """Return no connection: all requests go through ``exchange``."""

    def close(self) -> None:
        """Drop the engines with their shards."""
        self.engines.clear()

    def _outcome(self, address: str, request: Request) -> Outcome:
        operations = tuple(map(_received_operation, request.operations))
        try:
            reply = self.engines[address].execute(replace(request, operations=operations))
        except PS2Error as error:
            return error
        results = tuple(map(_received_result, request.operations, reply.results))
        return Reply(results, reply.replayed)


@contextmanager
def in_process_session(network: InProcessServers) -> Iterator[Session]:
    """Let the code of the with-block create vectors on these servers. Mutations get ids as in a run (``RunIds``)."""
    session = Session(FleetRef(f"in-process-{uuid.uuid4().hex[:12]}", MASTER), network)
    with session.in_run(RunIds(f"{session.fleet.id}/runs", 0, 0)):
        install(session)
        try:
            yield session
        finally:
            uninstall(session.fleet.id)


def _received_operation(operation: Operation) -> Operation:
    """Return an operation with copied arrays, as a server receives it. Client and server must not share arrays."""
    wire, keys = operation.wire, operation.keys
    arrays = tuple(
        np.array(array if wire is None else decode_array(*to_send(array, wire)), order="C")
        for array in operation.arrays
    )
    if keys is not None and keys.columns is not None:
        keys = replace(keys, columns=keys.columns.copy())
    return replace(operation, arrays=arrays, keys=keys, into=None)


def _received_result(operation: Operation, result: Result) -> Result:
    """Return a result with copied arrays. The first array is copied into ``operation.into``, unless that is None."""
    arrays = result.arrays if result.streamed is None else (result.streamed.to_array(),)
    targets = (operation.into, *(None for _ in arrays[1:]))
    return Result(
        result.scalar,
        tuple(_received_array(array, operation.wire, target) for array, target in zip(arrays, targets, strict=False)),
    )


def _received_array(array: Array, wire: Wire | None, into: Array | None) -> Array:
    values, spec = (array, plain_spec(array)) if wire is None else to_send(array, wire)
    target = receive_array(spec, into)
    target.reshape(-1)[:] = values.reshape(-1)
    return deliver(target, spec, into)
