"""The gRPC face of a server: decode, call one method of the engine, encode."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import psutil

from ps2 import __version__
from ps2.config import WireConfig
from ps2.errors import ProtocolError
from ps2.server.engine import Engine
from ps2.wire.codec import decode_request, encode_reply
from ps2.wire.convert import partition_from_pb, partition_to_pb, spec_from_pb, spec_to_pb
from ps2.wire.messages import PROTOCOL_VERSION
from ps2.wire.pb import server_pb2 as pb


class ServerServicer:
    """Method by method what ``service Server`` of the contract says."""

    def __init__(self, engine: Engine, server_id: str, wire: WireConfig, stop: Callable[[], None]) -> None:
        self._engine = engine
        self._server_id = server_id
        self._wire = wire
        self._stop = stop
        self._started_s = time.monotonic()

    def Hello(self, request: pb.HelloRequest) -> pb.HelloReply:
        if request.protocol != PROTOCOL_VERSION:
            raise ProtocolError(
                f"this server speaks protocol {PROTOCOL_VERSION} (ps2 {__version__}), the peer {request.protocol}"
            )
        return pb.HelloReply(protocol=PROTOCOL_VERSION, server_id=self._server_id, version=__version__)

    def Execute(self, frame: bytes) -> bytes:
        # A reply that was expected to be small and is not still travels whole: one frame.
        frames = list(self._execute(iter((frame,)), chunk_bytes=1 << 62))
        return frames[0]

    def Stream(self, frames: Iterator[bytes]) -> Iterator[bytes]:
        return self._execute(frames, self._wire.chunk_bytes)

    def CreateMatrix(self, request: pb.CreateMatrixRequest) -> pb.CreateMatrixReply:
        partitions = [partition_from_pb(p) for p in request.partitions]
        self._engine.create_matrix(request.matrix, spec_from_pb(request.spec), partitions)
        return pb.CreateMatrixReply()

    def UpdateRows(self, request: pb.UpdateRowsRequest) -> pb.UpdateRowsReply:
        self._engine.update_rows(request.matrix, request.rows, request.freed, request.reused)
        return pb.UpdateRowsReply()

    def FreeMatrix(self, request: pb.FreeMatrixRequest) -> pb.FreeMatrixReply:
        self._engine.free_matrix(request.matrix)
        return pb.FreeMatrixReply()

    def Status(self, request: pb.StatusRequest) -> pb.StatusReply:
        return pb.StatusReply(
            server_id=self._server_id,
            version=__version__,
            pid=os.getpid(),
            uptime_s=time.monotonic() - self._started_s,
            memory_bytes=self._engine.memory.taken_bytes,
            memory_limit_bytes=self._engine.memory.limit_bytes,
            rss_bytes=psutil.Process().memory_info().rss,
            matrices=[
                pb.MatrixStatus(
                    matrix=status.matrix,
                    spec=spec_to_pb(status.spec),
                    rows=status.rows,
                    bytes=status.bytes,
                    active_keys=status.active_keys,
                    partitions=[partition_to_pb(p) for p in status.partitions],
                )
                for status in self._engine.matrices()
            ],
            **self._engine.counts(),
        )

    def Stop(self, request: pb.StopRequest) -> pb.StopReply:
        self._stop()
        return pb.StopReply()

    def _execute(self, frames: Iterator[bytes], chunk_bytes: int) -> Iterator[bytes]:
        memory = self._engine.memory
        reserved = 0

        def reserve(size: int) -> None:
            nonlocal reserved
            memory.take(size, "a request's arrays")
            reserved = size

        try:
            reply = self._engine.execute(decode_request(frames, reserve))
        finally:
            memory.give(reserved)
        yield from encode_reply(reply, chunk_bytes)
