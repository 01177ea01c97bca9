"""Where a server takes data requests without gRPC: a TCP port, and a Unix socket for clients on this host.

One thread a connection reads a request, runs it and writes its reply, then reads the next: a client that reads slowly
holds back only itself, and what it has not read stays with the kernel. Connections on which nothing happens share one.
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
from ps2.protocol.binary import ReplyParts, error_parts, reply_parts
from ps2.protocol.drafts import RequestDraft
from ps2.protocol.error_details import internal_error
from ps2.protocol.framing import read, read_request, written_by_pieces
from ps2.protocol.messages import Reply, Request, may_be_plain
from ps2.transport.acceptor import BACKLOG, Acceptor, AuthenticatedPeer, listen_tcp, part
from ps2.transport.connection import Connection
from ps2.transport.handshake import accept
from ps2.transport.idle_connections import IdleConnectionPoller, has_come
from ps2.transport.liveness import Carried, carried
from ps2.transport.proof import Tokens
from ps2.transport.sockets import abstract, close, hang_up, open_files, receive, send_all

log = logging.getLogger(__name__)

# Of clients; no more than half of what the process may open, which leaves the other half for all else.
MAX_CONNECTIONS = 16_384

# One number, which is another one when it has to be looked again who is there: a token was replaced, or all is to end.
Generation = npt.NDArray[np.int64]


class Ended(enum.IntEnum):
    """Why a fast path has returned: see ``serve``."""

    CLOSED, IDLE, OTHER, TAKEN = range(4)


class FastPath(Protocol):
    """Answers the plain requests of one connection without Python."""

    def serve(self, descriptor: int, generation: Generation, expected: int) -> Ended:
        """Answer requests as long as they are plain, it is that generation, and one comes every moment.

        Returns:
            CLOSED: the connection has ended. IDLE: nothing came. OTHER: something else has, and is not received.
            TAKEN: it is.
        """
        ...

    def taken(self) -> Iterable[memoryview]:
        """Return what was received, one part after the other."""
        ...

    def bind(self, request: Request, size: int) -> int:
        """Return the handle by which requests like this one, which was done, are plain; 0 if they never are.

        Args:
            size: what its arrays and those of its reply take.
        """
        ...

    def close(self) -> None:
        """Give up what it holds."""
        ...


class Service(Protocol):
    """What runs the requests."""

    def execute(self, request: Request) -> Reply:
        """Run a request, or raise the PS2Error that it comes to."""
        ...

    def reserve(self, draft: RequestDraft) -> int:
        """Count what a request and its reply will take, once there is room; return the bytes.

        Raises:
            LimitError: there never is.
            BusyError: others take too long.
        """
        ...

    def release(self, size: int) -> None:
        """Give counted bytes back."""
        ...

    def open_fast_path(self, request: Request) -> FastPath | None:
        """Return a fast path for a connection with such requests; None if there is none for them, or for now."""
        ...


class DataServer:
    """Listens until it is stopped. ``port`` and ``unix_name`` say where ("" if there is no Unix socket)."""

    def __init__(
        self,
        service: Service,
        host: str,
        ports: Sequence[int],
        token: str | Tokens | None,
        server_id: str,
        wire: WireConfig,
    ) -> None:
        """Bind and start.

        Args:
            ports: of which the first that is free is taken; 0 is any.

        Raises:
            LaunchError: the ports are taken.
            ConfigError, AuthError: the certificates cannot be used.
        """
        self._service = service
        self._tokens = Tokens.of(token)
        self._wire = wire
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._named: dict[bytes, socket.socket] = {}
        self._fast_paths: dict[socket.socket, FastPath] = {}
        self._generation: Generation = self._tokens.generation if self._tokens is not None else np.zeros(1, np.int64)
        self._most = min(MAX_CONNECTIONS, open_files() // 2)
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
        """How many clients are connected that have proven themselves."""
        return len(self._connections)

    def carried(self, name: bytes) -> Carried | None:
        """Return what the connection that a client calls so has carried; None if there is none."""
        with self._lock:
            connection = self._named.get(name)
        try:
            return None if connection is None else carried(connection, connected=False)
        except OSError:  # it has ended just now
            return None

    def stop(self, grace_s: float) -> None:
        """Take no new requests, wait for those under way at most ``grace_s``, and close every connection."""
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
        if not self._take(peer):
            close(peer.plain)
            return
        try:
            accept(peer.connection)
        except OSError as error:
            self._end(peer, error)
        else:
            self._attend(peer)

    def _attend(self, peer: AuthenticatedPeer) -> None:
        """Answer what comes, as long as something does."""
        poll = select.poll()
        poll.register(peer.plain, select.POLLIN)
        error: Exception | None = None
        try:
            while (ended := self._wait(peer, poll)) in (Ended.OTHER, Ended.TAKEN):
                if not self._answer(peer, taken=ended == Ended.TAKEN):
                    break
            if ended == Ended.IDLE:
                self._idle_connections.park(peer)
                return
        except (EOFError, OSError) as gone:
            error = gone
        except Exception:  # a bug, or no memory: logged whole, and its place is given back
            log.exception("a data connection ends by an internal error")
        self._end(peer, error)

    def _wait(self, peer: AuthenticatedPeer, poll: select.poll) -> Ended:
        """Wait for a request that is to be answered here; a fast path answers others meanwhile."""
        fast_path = self._fast_paths.get(peer.plain)
        if fast_path is None:
            return Ended.OTHER if has_come(peer, poll) else Ended.IDLE
        expected = int(self._generation[0])
        if not self._knows(peer):
            return Ended.OTHER
        return fast_path.serve(peer.plain.fileno(), self._generation, expected)

    def _knows(self, peer: AuthenticatedPeer) -> bool:
        """Tell whether a client may still be here."""
        return not self._stopped and (self._tokens is None or peer.token in self._tokens.all)

    def _end(self, peer: AuthenticatedPeer, error: Exception | None) -> None:
        log.debug("a data connection has ended: %s", error)  # the client went away, whatever it was doing
        with self._lock:
            self._connections.discard(peer.plain)
            if self._named.get(peer.name) is peer.plain:
                del self._named[peer.name]
            fast_path = self._fast_paths.pop(peer.plain, None)
        if fast_path is not None:
            fast_path.close()
        close(peer.plain)

    def _take(self, peer: AuthenticatedPeer) -> bool:
        """Give a client a place; return False if there is none."""
        with self._lock:
            if self._stopped:
                return False
            if len(self._connections) >= self._most:
                log.warning("a connection is refused: there are %d", self._most)
                return False
            self._connections.add(peer.plain)
            if peer.name:
                self._named[peer.name] = peer.plain
            return True

    def _answer(self, peer: AuthenticatedPeer, taken: bool) -> bool:
        """Read, run and answer one request; return False if no other can follow.

        Args:
            taken: it has been read by the connection's fast_path.
        """
        connection = peer.connection
        fast_path = self._fast_paths.get(peer.plain)
        reserved = 0

        def reserve(draft: RequestDraft) -> None:
            nonlocal reserved
            reserved = self._service.reserve(draft)

        try:
            reading = read_request(self._wire.request_limit_bytes, reserve)
            request = (
                read(reading, fast_path.taken()) if fast_path is not None and taken else receive(connection, reading)
            )
            with self._lock:
                if not self._knows(peer):
                    return False  # a client whose token was replaced begins anew, with what it knows by now
                self._busy += 1
            try:
                _send(connection, self._run(request, peer))
            finally:
                del request  # gone before its memory is said to be free
                with self._idle:
                    self._busy -= 1
                    self._idle.notify_all()
            return True
        except PS2Error as error:  # what follows cannot be told from garbage
            part(connection, b"".join(next(written_by_pieces(error_parts(error)))))
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
        except Exception as error:  # a bug: told to the caller, logged whole, and this server goes on
            log.exception("internal error")
            return error_parts(internal_error(error))

    def _bind(self, request: Request, reply: Reply, peer: AuthenticatedPeer) -> int:
        """Return a handle for requests like this one, as far as there is a fast path for them."""
        if not self._wire.fast_path or peer.connection is not peer.plain or not may_be_plain(request):
            return 0
        fast_path = self._fast_paths.get(peer.plain) or self._service.open_fast_path(request)
        if fast_path is None:
            return 0
        self._fast_paths[peer.plain] = fast_path
        sizes = (*(op.nbytes for op in request.operations), *(result.nbytes for result in reply.results))
        return fast_path.bind(request, sum(sizes))


def _listen_unix(name: str) -> socket.socket | None:
    """Return a listening Unix socket; None where the system has no abstract ones."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(abstract(name))
        listener.listen(BACKLOG)
    except OSError as error:
        log.info("no Unix socket for clients on this host: %s", error)
        listener.close()
        return None
    return listener


def _send(connection: Connection, parts: ReplyParts) -> None:
    for views in written_by_pieces(parts):
        send_all(connection, views)
