"""The driver's server for a run's workers: a connection for each worker, one thread for all of them."""

from __future__ import annotations

import heapq
import itertools
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from ps2.config import Binding, WireConfig, is_loopback, join_address
from ps2.errors import ConfigError, LimitError, PS2Error
from ps2.protocol.error_details import internal_error
from ps2.protocol.plain_data import LIMIT_BYTES
from ps2.rpc.run_control import NAME
from ps2.run.rank_leases import RankLease
from ps2.run.servicer import WorkerServicer, refusal
from ps2.run.state import Coroutine, RunState
from ps2.transport.acceptor import Acceptor, AuthenticatedPeer, listen_tcp
from ps2.transport.handshake import accept
from ps2.transport.proof import Tokens
from ps2.transport.sockets import close, send_some
from ps2.transport.worker_channel import LENGTH, framed

log = logging.getLogger(__name__)

# The maximum size of a message: a worker's result or the value of a point (LIMIT_BYTES), and 1 MiB for other fields.
MAX_BYTES = LIMIT_BYTES + (1 << 20)
# The size of the buffer for one read.
READ_BYTES = 1 << 16
END_TIMEOUT_S = 5.0


class WorkerConnection:
    """A connection of one attempt of a worker. An attempt has one for progress requests, and one for all others."""

    def __init__(self, peer: AuthenticatedPeer, wake: Callable[[WorkerConnection], None]) -> None:
        self.plain, self.channel = peer.plain, peer.connection
        self.lease: RankLease | None = None
        self.request: Coroutine[bytes] | None = None
        self.received = bytearray()
        self.unsent: list[memoryview] = []
        self.is_ending = False  # True if the connection must end when all data are sent
        self.is_woken = False
        self._wake = wake

    def wake(self) -> None:
        self._wake(self)


class RunServer:
    """The server for a run's workers; it listens at ``address`` until ``stop``."""

    def __init__(self, run: RunState, binding: Binding, token: str | None, wire: WireConfig) -> None:
        """Start to listen; raise ConfigError if the address is not loopback and there is no token."""
        if token is None and not is_loopback(binding.host):
            raise ConfigError(f"bind: {binding.host} is not loopback, so a token is required")
        self._run = run
        self._servicer = WorkerServicer(run)
        self._wire = wire
        self._connections: dict[int, WorkerConnection] = {}  # by file descriptor
        self._accepted: deque[WorkerConnection] = deque()
        self._woken: deque[WorkerConnection] = deque()
        # A heap of (time, tie-breaker, connection to resume at that time).
        self._timers: list[tuple[float, int, WorkerConnection]] = []
        self._timer_numbers = itertools.count()
        self._stopped = False
        listener = listen_tcp(binding.host, binding.ports)
        self.address = join_address(binding.advertised, listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        # Sockets instead of a pipe: a wake-up after the end raises an error, and never writes to a reused descriptor.
        self._wakeup_reader, self._wakeup = socket.socketpair()
        self._wakeup_reader.setblocking(False)
        self._wakeup.setblocking(False)
        self._selector.register(self._wakeup_reader, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="ps2-run", daemon=True)
        self._thread.start()
        try:
            self._acceptor = Acceptor([listener], Tokens.from_text(token), NAME, wire, self._accept)
        except PS2Error:
            self._end_thread()
            raise

    def stop(self) -> None:
        """End all connections. Pending requests get no answer."""
        self._acceptor.shut()
        self._end_thread()
        self._acceptor.join()

    def _end_thread(self) -> None:
        self._stopped = True
        self._wake_thread()
        self._thread.join(END_TIMEOUT_S)

    # -- called by any thread --------------------------------------------------------------------------------------

    def _accept(self, peer: AuthenticatedPeer) -> None:
        try:
            accept(peer.connection)
        except OSError:
            close(peer.plain)
            return
        self._accepted.append(WorkerConnection(peer, self._wake))
        self._wake_thread()

    def _wake(self, connection: WorkerConnection) -> None:
        if not connection.is_woken:
            connection.is_woken = True
            self._woken.append(connection)
            if threading.current_thread() is not self._thread:
                self._wake_thread()

    def _wake_thread(self) -> None:
        with suppress(OSError):  # the buffer is full, so a wake-up is pending; or the server has ended
            self._wakeup.send(b"!")

    # -- called by the server's thread -------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._stopped:
                for key, events in self._selector.select(self._timeout_s()):
                    if key.fileobj is self._wakeup_reader:
                        with suppress(BlockingIOError):
                            self._wakeup_reader.recv(READ_BYTES)
                        continue
                    connection: WorkerConnection = key.data
                    if events & selectors.EVENT_WRITE:
                        self._send(connection)
                    if events & selectors.EVENT_READ and connection.plain.fileno() >= 0:
                        self._read(connection)
                while self._accepted:
                    self._register(self._accepted.popleft())
                now_s = time.monotonic()
                while self._timers and self._timers[0][0] <= now_s:
                    self._wake(heapq.heappop(self._timers)[2])
                while self._woken:
                    connection = self._woken.popleft()
                    connection.is_woken = False
                    self._resume(connection)
        finally:
            for connection in [*self._connections.values(), *self._accepted]:
                self._end(connection)
            self._selector.close()
            self._wakeup_reader.close()
            self._wakeup.close()

    def _timeout_s(self) -> float | None:
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _register(self, connection: WorkerConnection) -> None:
        try:
            self._selector.register(connection.plain, selectors.EVENT_READ, connection)
        except OSError as error:  # the system's limit of registered sockets
            log.warning("a worker's connection is refused: %s", error)
            close(connection.plain)
            return
        self._connections[connection.plain.fileno()] = connection
        self._read(connection)  # the TLS object may have buffered more data than the handshake

    def _read(self, connection: WorkerConnection) -> None:
        buffer = bytearray(READ_BYTES)
        try:
            while (nbytes := connection.channel.recv_into(memoryview(buffer), 0, socket.MSG_DONTWAIT)) == READ_BYTES:
                connection.received += buffer
        except BlockingIOError:
            pass
        except OSError as error:
            log.debug("a worker's connection broke: %s", error)
            self._end(connection)
            return
        else:
            if not nbytes:
                self._end(connection)
                return
            connection.received += memoryview(buffer)[:nbytes]
        if connection.request is not None and len(connection.received) > MAX_BYTES:
            log.warning("a worker sent over %d bytes while its request was unanswered: its connection ends", MAX_BYTES)
            self._end(connection)
            return
        self._take_message(connection)

    def _take_message(self, connection: WorkerConnection) -> None:
        """Handle the next message if it is complete and the previous one is answered."""
        received = connection.received
        if connection.request is not None or connection.is_ending or len(received) < LENGTH.size:
            return
        (size,) = LENGTH.unpack_from(received)
        if size > MAX_BYTES:
            self._refuse(connection, LimitError(f"expected a message of at most {MAX_BYTES:,} bytes, got {size:,}"))
            return
        if len(received) < LENGTH.size + size:
            return
        encoded = bytes(memoryview(received)[LENGTH.size : LENGTH.size + size])
        del received[: LENGTH.size + size]
        connection.request = self._servicer.handle(connection, encoded)
        self._resume(connection)

    def _resume(self, connection: WorkerConnection) -> None:
        """Resume a request; send its answer if the request is done."""
        if connection.request is None:
            return
        try:
            with self._run.lock:
                resume_s = next(connection.request)
        except StopIteration as done:
            connection.request = None
            self._answer(connection, done.value)
            self._take_message(connection)
        except PS2Error as error:
            self._refuse(connection, error)
        except Exception as error:  # a bug: the worker gets the error, and other workers continue
            log.exception("internal error")
            self._refuse(connection, internal_error(error))
        else:
            if resume_s is not None:
                heapq.heappush(self._timers, (resume_s, next(self._timer_numbers), connection))

    def _refuse(self, connection: WorkerConnection, error: PS2Error) -> None:
        connection.request = None
        connection.is_ending = True
        self._answer(connection, refusal(error))

    def _answer(self, connection: WorkerConnection, encoded: bytes) -> None:
        connection.unsent.append(framed(encoded))
        self._send(connection)

    def _send(self, connection: WorkerConnection) -> None:
        if connection.plain.fileno() < 0:
            return
        awaits_write = bool(self._selector.get_key(connection.plain).events & selectors.EVENT_WRITE)
        try:
            while connection.unsent:
                send_some(connection.channel, connection.unsent, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except OSError as error:
            log.debug("a worker's connection broke: %s", error)
            self._end(connection)
            return
        if connection.is_ending and not connection.unsent:
            self._end(connection)
        elif bool(connection.unsent) != awaits_write:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
            self._selector.modify(connection.plain, events, connection)

    def _end(self, connection: WorkerConnection) -> None:
        """Close a connection, cancel its request and release its rank."""
        if self._connections.pop(connection.plain.fileno(), None) is not None:
            self._selector.unregister(connection.plain)
        close(connection.plain)
        with self._run.lock:
            if connection.request is not None:
                connection.request.close()
                connection.request = None
            if connection.lease is not None:
                self._run.release_rank(connection.lease)
