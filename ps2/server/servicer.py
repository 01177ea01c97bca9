"""The gRPC face of a server: decode, call one method of the engine, encode."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator

import psutil

from ps2 import __version__
from ps2.config import WireConfig
from ps2.errors import ProtocolError, PS2Error
from ps2.server.engine import Engine
from ps2.wire.codec import error_parts, reply_parts, request_of, to_frame
from ps2.wire.convert import partition_from_pb, partition_to_pb, spec_from_pb, spec_to_pb
from ps2.wire.data_server import DataServer
from ps2.wire.messages import PROTOCOL_VERSION
from ps2.wire.pb import server_pb2 as pb
from ps2.wire.status import internal_error

log = logging.getLogger(__name__)


class ServerServicer:
    """Method by method what ``service Server`` of the contract says."""

    def __init__(
        self,
        engine: Engine,
        server_id: str,
        wire: WireConfig,
        stop: Callable[[], None],
        data: DataServer | None = None,
    ) -> None:
        """``data`` takes requests without gRPC, if anything does."""
        self._engine = engine
        self._server_id = server_id
        self._wire = wire
        self._stop = stop
        self._started_s = time.monotonic()
        self._data = data

    def Hello(self, request: pb.HelloRequest) -> pb.HelloReply:
        if request.protocol != PROTOCOL_VERSION:
            raise ProtocolError(
                f"this server speaks protocol {PROTOCOL_VERSION} (ps2 {__version__}), the peer {request.protocol}"
            )
        return pb.HelloReply(
            protocol=PROTOCOL_VERSION,
            server_id=self._server_id,
            version=__version__,
            data_port=self._data.port if self._data is not None else 0,
            data_socket=self._data.unix_name if self._data is not None else "",
        )

    def Execute(self, frame: bytes) -> bytes:
        reserved = 0

        def reserve(size: int) -> None:
            nonlocal reserved
            self._engine.reserve(size)
            reserved = size

        try:
            request = request_of(frame, self._wire.request_limit_bytes, reserve)
            return to_frame(reply_parts(self._engine.execute(request), request))
        finally:
            self._engine.release(reserved)

    def Stream(self, frames: Iterator[bytes]) -> Iterator[bytes]:
        for frame in frames:
            try:
                yield self.Execute(frame)
            except PS2Error as error:
                yield to_frame(error_parts(error))
            except Exception as error:  # a bug: it ends this request, not those that follow
                log.exception("internal error")
                yield to_frame(error_parts(internal_error(error)))

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
        counts = self._engine.meter.read()
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
            requests=counts.requests,
            failed=counts.failed,
            bytes_in=counts.received_bytes,
            bytes_out=counts.sent_bytes,
            outcomes=counts.outcomes,
            in_progress=counts.in_progress,
            waiting=counts.waiting,
            lock_waits=counts.lock_waits,
            lock_wait_s=counts.lock_wait_s,
            key_cache_hits=self._engine.keys.hits,
            key_cache_misses=self._engine.keys.misses,
            key_cache_bytes=self._engine.keys.nbytes,
            connections=self._data.connections if self._data is not None else 0,
            operations=[
                pb.OperationStatus(
                    name=done.name, count=done.count, failures=done.failures, seconds=done.seconds, keys=done.keys
                )
                for done in counts.operations
            ],
        )

    def Stop(self, request: pb.StopRequest) -> pb.StopReply:
        self._stop()
        return pb.StopReply()
