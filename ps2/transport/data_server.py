"""Serves data requests without gRPC, on a TCP port and, for clients on the same host, on a Unix socket.

Each active connection has a thread, which reads a request, runs it, writes its reply, then reads the next request. So a
client that reads slowly delays only itself, and unread replies stay in the kernel's buffers. Idle connections share one
thread.
"""

from __future__ import annotations

import enum
import logging
import select
import socket
import threading
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ps2.config import WireConfig
from ps2.errors import PS2Error
from ps2.listening import raise_file_limit
from ps2.logs import RateLimitedWarning
from ps2.protocol.binary import ReplyParts, error_parts, reply_parts
from ps2.protocol.drafts import RequestDraft
from ps2.protocol.error_details import internal_error
from ps2.protocol.framing import read, read_request, reply_views
from ps2.protocol.messages import Reply, Request, may_be_plain
from ps2.transport.acceptor import BACKLOG, Acceptor, AuthenticatedPeer, listen_tcp, send_final
from ps2.transport.connection import ByteCounts, byte_counts
from ps2.transport.handshake import accept
from ps2.transport.idle_connections import IdleConnectionPoller, has_input
from ps2.transport.proof import Tokens
from ps2.transport.sockets import abstract_address, close, hang_up, receive, send_all

log = logging.getLogger(__name__)

# Maximum number of client connections. They may also take at most half of the process's file descriptors.
MAX_CONNECTIONS = 16_384

# A counter, shape (1,). The server increases it when connections must authenticate again or end.
Generation = npt.NDArray[np.int64]


class ServeResult(enum.IntEnum):
    """Why ``FastPath.serve`` returned."""

    CLOSED, IDLE, OTHER, RECEIVED = range(4)


class FastPath(Protocol):
    """Answers plain requests of one connection in compiled code."""

    def serve(self, descriptor: int, generation: Generation, expected: int) -> ServeResult:
        """Answer plain requests while the generation is ``expected`` and requests keep coming.

        CLOSED: the connection has ended. IDLE: no request arrived for a moment. OTHER: Python must read and answer the
        next request. RECEIVED: Python must answer a request that the fast path has read (``received``).
        """
        ...

    def received(self) -> Iterable[memoryview]:
        """Return the request that ``serve`` read before it returned RECEIVED, as consecutive parts."""
        ...

    def bind(self, request: Request, nbytes: int) -> int:
        """Return a handle for requests of the same shape, which the fast path answers; 0 if it cannot answer them.

        ``nbytes``: total size of the request's and the reply's arrays.
        """
        ...

    def close(self) -> None:
        """Release the resources of the fast path."""
        ...


class Service(Protocol):
    """The engine that runs the requests."""

    def execute(self, request: Request) -> Reply:
        """Run a request; raise a PS2Error if it fails."""
        ...

    def reserve(self, draft: RequestDraft) -> int:
        """Reserve memory for a request and its reply, which may wait for free memory; return the reserved bytes.

        Raises LimitError if the request can never fit, BusyError if it does not fit in time.
        """
        ...

    def release(self, nbytes: int) -> None:
        """Release reserved bytes."""
        ...

    def open_fast_path(self, request: Request) -> FastPath | None:
        """Return a fast path for a connection that sends requests like this one; None if none is available."""
        ...


class DataServer:
    """Listens on ``port`` and on the Unix socket ``unix_name`` ("" if there is none) until ``stop`` is called."""

    def __init__(
        self,
        service: Service,
        host: str,
        ports: Sequence[int],
        token: str | Tokens | None,
        server_id: str,
        wire: WireConfig,
    ) -> None:
        """Bind to the first free port (0: any), and start."""
        self._service = service
        self._tokens = Tokens.from_text(token)
        self._wire = wire
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._sockets_by_name: dict[bytes, socket.socket] = {}  # only of clients that named their connection
        self._fast_paths: dict[socket.socket, FastPath] = {}
        self._generation: Generation = self._tokens.generation if self._tokens is not None else np.zeros(1, np.int64)
        self._max_connections = min(MAX_CONNECTIONS, raise_file_limit() // 2)
        self._too_many = RateLimitedWarning(log, "a connection is refused: the limit of %d connections is reached")
        self._request_done = threading.Condition(self._lock)
        self._running_requests = 0
        self._stopped = False
        listeners = [listen_tcp(host, ports)]
        self.port: int = listeners[0].getsockname()[1]
        self.unix_name = ""
        if wire.unix_sockets and (listener := _listen_unix(server_id)) is not None:
            listeners.append(listener)
            self.unix_name = server_id
        self._idle_connections = IdleConnectionPoller(self._serve_until_idle)
        try:
            self._acceptor = Acceptor(listeners, self._tokens, server_id, wire, self._welcome)
        except PS2Error:
            self._idle_connections.stop()
            raise

    @property
    def connections(self) -> int:
        """Number of authenticated connections."""
        return len(self._connections)

    def byte_counts(self, name: bytes) -> ByteCounts | None:
        """Return the byte counts of the connection with this name, given by its client; None if there is none."""
        with self._lock:
            connection = self._sockets_by_name.get(name)
        try:
            return None if connection is None else byte_counts(connection, is_client=False)
        except OSError:  # the connection has just ended
            return None

    def stop(self, grace_s: float) -> None:
        """Accept no new requests, wait up to ``grace_s`` for running requests, and close every connection."""
        self._acceptor.shut()
        with self._request_done:
            self._stopped = True
            self._generation += 1
            self._request_done.wait_for(lambda: self._running_requests == 0, grace_s)
            for connection in self._connections:
                hang_up(connection)
        self._idle_connections.stop()
        with self._lock:
            self._connections.clear()
            self._sockets_by_name.clear()
        self._acceptor.join()

    def _welcome(self, peer: AuthenticatedPeer) -> None:
        if not self._register(peer):
            close(peer.plain)
            return
        try:
            accept(peer.connection)
        except OSError as error:
            self._disconnect(peer, error)
        else:
            self._serve_until_idle(peer)

    def _serve_until_idle(self, peer: AuthenticatedPeer) -> None:
        """Answer requests until the connection is idle or has ended; park an idle connection."""
        poll = select.poll()
        poll.register(peer.plain, select.POLLIN)
        error: Exception | None = None
        try:
            while (result := self._wait(peer, poll)) in (ServeResult.OTHER, ServeResult.RECEIVED):
                if not self._answer(peer, is_received=result == ServeResult.RECEIVED):
                    break
            if result == ServeResult.IDLE:
                self._idle_connections.park(peer)
                return
        except (EOFError, OSError) as disconnect:
            error = disconnect
        except Exception:  # a bug, or out of memory: log the traceback, and free the slot below
            log.exception("a data connection ended with an internal error")
        self._disconnect(peer, error)

    def _wait(self, peer: AuthenticatedPeer, poll: select.poll) -> ServeResult:
        """Wait for a request that Python must answer. Until then, a fast path answers plain requests."""
        fast_path = self._fast_paths.get(peer.plain)
        if fast_path is None:
            return ServeResult.OTHER if has_input(peer, poll) else ServeResult.IDLE
        expected = int(self._generation[0])
        if not self._is_admitted(peer):
            return ServeResult.OTHER
        return fast_path.serve(peer.plain.fileno(), self._generation, expected)

    def _is_admitted(self, peer: AuthenticatedPeer) -> bool:
        """Return True if the client may stay: the server is running, and the client's token is still valid."""
        return not self._stopped and (self._tokens is None or peer.token in self._tokens.all)

    def _disconnect(self, peer: AuthenticatedPeer, error: Exception | None) -> None:
        log.debug("a data connection has ended: %s", error)  # not a warning: clients may disconnect at any time
        with self._lock:
            self._connections.discard(peer.plain)
            if self._sockets_by_name.get(peer.name) is peer.plain:
                del self._sockets_by_name[peer.name]
            fast_path = self._fast_paths.pop(peer.plain, None)
        if fast_path is not None:
            fast_path.close()
        close(peer.plain)

    def _register(self, peer: AuthenticatedPeer) -> bool:
        """Register a client; return False if the server is full or stopped."""
        with self._lock:
            if self._stopped:
                return False
            if len(self._connections) >= self._max_connections:
                self._too_many.log(self._max_connections)
                return False
            self._connections.add(peer.plain)
            if peer.name:
                self._sockets_by_name[peer.name] = peer.plain
            return True

    def _answer(self, peer: AuthenticatedPeer, is_received: bool) -> bool:
        """Answer a request, which the fast path has read if ``is_received``; return False to end the connection."""
        connection = peer.connection
        fast_path = self._fast_paths.get(peer.plain)
        reserved = 0

        def reserve(draft: RequestDraft) -> None:
            nonlocal reserved
            reserved = self._service.reserve(draft)

        try:
            reader = read_request(self._wire.request_limit_bytes, reserve)
            request = (
                read(reader, fast_path.received())
                if fast_path is not None and is_received
                else receive(connection, reader)
            )
            with self._lock:
                if not self._is_admitted(peer):
                    return False  # the token was replaced: the client reconnects with the current token
                self._running_requests += 1
            try:
                for views in reply_views(self._run(request, peer)):
                    send_all(connection, views)
            finally:
                del request  # free the arrays before ``release`` counts their memory as free
                with self._request_done:
                    self._running_requests -= 1
                    self._request_done.notify_all()
            return True
        except PS2Error as error:  # the stream is out of sync, so no further request can be read
            send_final(connection, b"".join(next(reply_views(error_parts(error)))))
            return False
        finally:
            self._service.release(reserved)

    def _run(self, request: Request | PS2Error, peer: AuthenticatedPeer) -> ReplyParts:
        if isinstance(request, PS2Error):
            return error_parts(request)
        try:
            reply = self._service.execute(request)
            return reply_parts(reply, request, self._bind(request, reply, peer))
        except PS2Error as error:
            return error_parts(error)
        except Exception as error:  # a bug: report it to the caller, log the traceback, and keep serving
            log.exception("internal error")
            return error_parts(internal_error(error))

    def _bind(self, request: Request, reply: Reply, peer: AuthenticatedPeer) -> int:
        """Return a handle for requests of the same shape; 0 if no fast path answers them."""
        if not self._wire.fast_path or peer.connection is not peer.plain or not may_be_plain(request):
            return 0
        fast_path = self._fast_paths.get(peer.plain) or self._service.open_fast_path(request)
        if fast_path is None:
            return 0
        self._fast_paths[peer.plain] = fast_path
        sizes = (*(op.nbytes for op in request.operations), *(result.nbytes for result in reply.results))
        return fast_path.bind(request, sum(sizes))


def _listen_unix(name: str) -> socket.socket | None:
    """Return a listening Unix socket; None if the system has no abstract namespace."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(abstract_address(name))
        listener.listen(BACKLOG)
    except OSError as error:
        log.info("no Unix socket for clients on this host: %s", error)
        listener.close()
        return None
    return listener
