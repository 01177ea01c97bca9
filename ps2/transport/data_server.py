"""Serves data requests without gRPC, on a TCP port and on a Unix socket for clients on this host.

Each active connection has a thread, which reads a request, runs it, writes its reply, then reads the next request. So a
client that reads slowly holds back only itself, and unread replies stay in the kernel's buffers. Idle connections share
one thread.
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
from ps2.protocol.framing import read, read_request, written_by_pieces
from ps2.protocol.messages import Reply, Request, may_be_plain
from ps2.transport.acceptor import BACKLOG, Acceptor, AuthenticatedPeer, listen_tcp, send_final
from ps2.transport.connection import Carried, carried
from ps2.transport.handshake import accept
from ps2.transport.idle_connections import IdleConnectionPoller, has_input
from ps2.transport.proof import Tokens
from ps2.transport.sockets import abstract, close, hang_up, receive, send_all

log = logging.getLogger(__name__)

# Maximum number of client connections. They may also take at most half of the process's file descriptors.
MAX_CONNECTIONS = 16_384

# A counter that is increased when connections must authenticate again or end.
Generation = npt.NDArray[np.int64]


class Ended(enum.IntEnum):
    """Why ``FastPath.serve`` returned."""

    CLOSED, IDLE, OTHER, RECEIVED = range(4)


class FastPath(Protocol):
    """Answers the plain requests of one connection without Python."""

    def serve(self, descriptor: int, generation: Generation, expected: int) -> Ended:
        """Answer plain requests while the generation is ``expected`` and requests keep coming.

        CLOSED: the connection has ended. IDLE: no request came for a moment. OTHER: Python must read and answer the
        next request. RECEIVED: Python must answer a request that the fast path has read; see ``received``.
        """
        ...

    def received(self) -> Iterable[memoryview]:
        """Return the request that ``serve`` read before it returned RECEIVED, as consecutive parts."""
        ...

    def bind(self, request: Request, size: int) -> int:
        """Return a handle for requests like this one, so that the fast path can answer them; 0 if there is none.

        ``size``: bytes of the request's arrays and of its reply's arrays.
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
        """Reserve memory for a request and its reply, and wait until it is free; return the reserved bytes.

        Raises LimitError if the request can never fit, BusyError if it does not fit in time.
        """
        ...

    def release(self, size: int) -> None:
        """Release reserved bytes."""
        ...

    def open_fast_path(self, request: Request) -> FastPath | None:
        """Return a fast path for a connection that sends such requests; None if none is available."""
        ...


class DataServer:
    """Listens until it is stopped, on ``port`` and on the Unix socket ``unix_name`` ("" if there is none)."""

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
        self._named: dict[bytes, socket.socket] = {}
        self._fast_paths: dict[socket.socket, FastPath] = {}
        self._generation: Generation = self._tokens.generation if self._tokens is not None else np.zeros(1, np.int64)
        self._max_connections = min(MAX_CONNECTIONS, raise_file_limit() // 2)
        self._too_many = RateLimitedWarning(log, "a connection is refused: the limit of %d connections is reached")
        self._idle = threading.Condition(self._lock)
        self._busy = 0
        self._stopped = False
        listeners = [listen_tcp(host, ports)]
        self.port: int = listeners[0].getsockname()[1]
        self.unix_name = ""
        if wire.unix_sockets and (listener := _listen_unix(server_id)) is not None:
            listeners.append(listener)
            self.unix_name = server_id
        self._idle_connections = IdleConnectionPoller(self._attend)
        try:
            self._acceptor = Acceptor(listeners, self._tokens, server_id, wire, self._serve)
        except PS2Error:
            self._idle_connections.stop()
            raise

    @property
    def connections(self) -> int:
        """Number of authenticated connections."""
        return len(self._connections)

    def carried(self, name: bytes) -> Carried | None:
        """Return the byte counts of the connection with this client-given name; None if there is none."""
        with self._lock:
            connection = self._named.get(name)
        try:
            return None if connection is None else carried(connection, connected=False)
        except OSError:  # it has just ended
            return None

    def stop(self, grace_s: float) -> None:
        """Accept no new requests, wait up to ``grace_s`` for running ones, and close every connection."""
        self._acceptor.shut()
        with self._idle:
            self._stopped = True
            self._generation += 1
            self._idle.wait_for(lambda: self._busy == 0, grace_s)
            for connection in self._connections:
                hang_up(connection)
        self._idle_connections.stop()
        with self._lock:
            self._connections.clear()
            self._named.clear()
        self._acceptor.join()

    def _serve(self, peer: AuthenticatedPeer) -> None:
        if not self._register(peer):
            close(peer.plain)
            return
        try:
            accept(peer.connection)
        except OSError as error:
            self._end(peer, error)
        else:
            self._attend(peer)

    def _attend(self, peer: AuthenticatedPeer) -> None:
        """Answer requests until the connection is idle or has ended."""
        poll = select.poll()
        poll.register(peer.plain, select.POLLIN)
        error: Exception | None = None
        try:
            while (ended := self._wait(peer, poll)) in (Ended.OTHER, Ended.RECEIVED):
                if not self._answer(peer, is_received=ended == Ended.RECEIVED):
                    break
            if ended == Ended.IDLE:
                self._idle_connections.park(peer)
                return
        except (EOFError, OSError) as gone:
            error = gone
        except Exception:  # a bug, or out of memory: log the traceback, and free the slot below
            log.exception("a data connection ended with an internal error")
        self._end(peer, error)

    def _wait(self, peer: AuthenticatedPeer, poll: select.poll) -> Ended:
        """Wait for a request that Python must answer. Until then, a fast path answers plain requests."""
        fast_path = self._fast_paths.get(peer.plain)
        if fast_path is None:
            return Ended.OTHER if has_input(peer, poll) else Ended.IDLE
        expected = int(self._generation[0])
        if not self._is_admitted(peer):
            return Ended.OTHER
        return fast_path.serve(peer.plain.fileno(), self._generation, expected)

    def _is_admitted(self, peer: AuthenticatedPeer) -> bool:
        """Return True if the client may stay: the server is running, and the client's token is still valid."""
        return not self._stopped and (self._tokens is None or peer.token in self._tokens.all)

    def _end(self, peer: AuthenticatedPeer, error: Exception | None) -> None:
        log.debug("a data connection has ended: %s", error)  # the client disconnected, at any point
        with self._lock:
            self._connections.discard(peer.plain)
            if self._named.get(peer.name) is peer.plain:
                del self._named[peer.name]
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
                self._named[peer.name] = peer.plain
            return True

    def _answer(self, peer: AuthenticatedPeer, is_received: bool) -> bool:
        """Read, run and answer one request, unless it ``is_received``; return False if the connection must end."""
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
                self._busy += 1
            try:
                for views in written_by_pieces(self._run(request, peer)):
                    send_all(connection, views)
            finally:
                del request  # free the arrays before ``release`` counts their memory as free
                with self._idle:
                    self._busy -= 1
                    self._idle.notify_all()
            return True
        except PS2Error as error:  # the stream is out of sync, so no further request can be read
            send_final(connection, b"".join(next(written_by_pieces(error_parts(error)))))
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
        """Return a handle for requests like this one; 0 if no fast path serves them."""
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
        listener.bind(abstract(name))
        listener.listen(BACKLOG)
    except OSError as error:
        log.info("no Unix socket for clients on this host: %s", error)
        listener.close()
        return None
    return listener
