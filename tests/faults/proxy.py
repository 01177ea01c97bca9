"""A network that fails as told: proxies between clients and real servers, as threads of this process.

A proxy knows the framing of data connections, so it does to chosen requests what ``rules.py`` says; gRPC passes through
byte by byte. Servers listen on one loopback address and are advertised at another, where their proxies listen on the
same ports: clients, tasks and other servers find the proxies by the ordinary routes.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from unittest import mock

import pytest
from faults.rules import (
    CutAfterApply,
    CutReply,
    CutRequest,
    DelayReply,
    DelayRequest,
    Drop,
    Duplicate,
    Fault,
    Rule,
    Seen,
)

from ps2.config import read_token
from ps2.coordinator.launchers.local import LocalLauncher
from ps2.coordinator.launchers.processes.child import Child
from ps2.errors import UnavailableError
from ps2.protocol.binary import open_request
from ps2.protocol.framing import GREETING, HEAD
from ps2.protocol.pb import server_pb2 as pb
from ps2.transport.handshake import handshake
from tests.messages import header_of
from tests.ports import free_port

SERVER_HOST, PROXY_HOST = "127.0.0.2", "127.0.0.3"
PIECE_BYTES = 1 << 16
# A Python worker of a loaded machine takes its time.
CONNECT_TIMEOUT_S = 20.0
DUPLICATE_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Happened:
    """A fault that did happen.

    Attributes:
        answered: the server's whole reply has been read here, and it was no error: the request is applied.
        replayed: that reply said that the id had been applied before.
    """

    fault: Fault
    seen: Seen
    answered: bool = False
    replayed: bool = False


@dataclass
class Network:
    """All proxies of a fleet, its token, what they are to do, and what they have done. Safe for threads."""

    rules: Sequence[Rule] = ()
    token: str = ""
    proxies: list[Proxy] = field(default_factory=list)
    replays: int = 0
    _happened: list[Happened] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def fault_of(self, seen: Seen) -> Fault | None:
        """Return what is to happen to a request."""
        return next((rule.fault for rule in self.rules if rule.takes(seen)), None)

    def note(self, happened: Happened) -> None:
        with self._lock:
            self._happened.append(happened)

    def note_replay(self) -> None:
        """Note a reply that says that the request's id had been applied before."""
        with self._lock:
            self.replays += 1

    def happened(self, kind: type[Fault] | None = None) -> list[Happened]:
        """Return what has happened so far, of one kind or all."""
        with self._lock:
            return [one for one in self._happened if kind is None or isinstance(one.fault, kind)]

    def proxy(self, index: int, ports: tuple[int, int]) -> Proxy:
        created = Proxy(self, index, ports)
        self.proxies.append(created)
        return created

    def settle(self) -> None:
        """Wait until every duplicate that was sent has been answered."""
        for proxy in list(self.proxies):
            proxy.settle()

    def close(self) -> None:
        """End all proxies, and forget them."""
        while self.proxies:
            self.proxies.pop().close()

    @contextmanager
    def between(self) -> Iterator[Network]:
        """Start the servers of local fleets behind proxies, as long as this lasts."""

        class Launcher(ProxiedLauncher):
            network = self

        try:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(LocalLauncher, "of", Launcher.of)
                yield self
        finally:
            self.close()


class ProxiedLauncher(LocalLauncher):
    """Starts local servers, each behind a proxy of ``network``. One that is started again gets another proxy."""

    network: Network

    def _spawn(self, index: int, master: str) -> Child:
        # Unix sockets would lead past the proxy.
        with mock.patch.dict(os.environ, PS2_UNIX_SOCKETS="0"):
            return super()._spawn(index, master)

    def _arguments(self, index: int, master: str) -> list[str]:
        proxy = self.network.proxy(index, (free_port(), free_port()))
        self.network.token = read_token(self._token_file)
        return [
            *super()._arguments(index, master),
            *("--listen", f"{SERVER_HOST}:{proxy.port}", "--data-port", str(proxy.data_port)),
            *("--advertise", PROXY_HOST),
        ]

    def stop(self) -> None:
        super().stop()
        self.network.close()


class Proxy:
    """Between clients and one server: passes on what comes for ``port`` (gRPC) and ``data_port``."""

    def __init__(self, network: Network, index: int, ports: tuple[int, int]) -> None:
        self.port, self.data_port = ports
        self.index = index
        self._network = network
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._duplicates: list[threading.Thread] = []
        self._ended = threading.Event()
        self._listen(self.port, self._pass_bytes)
        self._listen(self.data_port, self._pass_messages)

    def settle(self) -> None:
        """Wait until every duplicate that was sent has been answered."""
        deadline_s = time.monotonic() + DUPLICATE_TIMEOUT_S
        for thread in list(self._duplicates):
            thread.join(max(0.0, deadline_s - time.monotonic()))
            assert not thread.is_alive(), f"server {self.index} does not answer a duplicate of a request"

    def close(self) -> None:
        """Cut all connections and end all threads."""
        self._ended.set()
        with self._lock:
            sockets = list(self._sockets)
        for connection in sockets:
            _cut(connection)
        for thread in self._threads:  # those that listen end first, so that no more are added
            thread.join()

    def cut(self) -> None:
        """Cut all connections that there are; new ones are passed on."""
        with self._lock:
            connections = [one for one in self._sockets if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)]
        for connection in connections:
            _cut(connection)

    def pause(self, seconds: float) -> None:
        """Wait, unless the proxy is closed."""
        self._ended.wait(seconds)

    def connected(self) -> socket.socket:
        """Return a new connection to the server's data port."""
        return self._keep(_connect(self.data_port))

    def duplicate(self, resend: Duplicate, server_id: str, message: bytes, seen: Seen) -> None:
        """Send a request once more, on a connection of its own; return without waiting."""
        thread = threading.Thread(
            target=self._send_again, args=(resend, server_id, message, seen), name="proxy-duplicate"
        )
        with self._lock:
            self._threads.append(thread)
            self._duplicates.append(thread)
        thread.start()

    def drop(self, *connections: socket.socket) -> None:
        """Cut connections, and forget them."""
        for connection in connections:
            _cut(connection)
            with self._lock:
                self._sockets.discard(connection)
            connection.close()

    def _send_again(self, resend: Duplicate, server_id: str, message: bytes, seen: Seen) -> None:
        self.pause(resend.late_s)
        with suppress(OSError, UnavailableError):  # the server has ended, or the proxy
            connection = self.connected()
            try:
                deadline_s = time.monotonic() + DUPLICATE_TIMEOUT_S
                handshake(connection, self._network.token, server_id, deadline_s)
                connection.settimeout(DUPLICATE_TIMEOUT_S)
                connection.sendall(message)
                reply = _read_message(connection)
                if reply is not None:
                    self._network.note(_with_reply(Happened(resend, seen), reply, self._network))
            finally:
                self.drop(connection)

    def _listen(self, port: int, serve: object) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((PROXY_HOST, port))
        listener.listen(128)
        self._keep(listener)
        self._spawn("proxy-listen", self._accept, listener, serve)

    def _accept(self, listener: socket.socket, serve: object) -> None:
        try:
            while not self._ended.is_set():
                client, _ = listener.accept()
                self._keep(client)
                self._spawn("proxy-serve", serve, client)
        except OSError:
            if not self._ended.is_set():
                raise
        finally:
            self.drop(listener)

    def _pass_bytes(self, client: socket.socket) -> None:
        try:
            server = self._keep(_connect(self.port))
        except OSError:
            self.drop(client)
            return
        back = self._spawn("proxy-back", self._pump, server, client)
        self._pump(client, server)
        back.join()
        self.drop(client, server)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                sink.sendall(piece)
        _cut(source)
        _cut(sink)

    def _pass_messages(self, client: socket.socket) -> None:
        try:
            server = self.connected()
        except OSError:
            self.drop(client)
            return
        connection = _Connection(self, self._network, client, server)
        back = self._spawn("proxy-back", connection.pass_replies)
        connection.pass_requests()
        back.join()
        self.drop(client, server)

    def _spawn(self, name: str, target: object, *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name=name)  # type: ignore[arg-type]
        with self._lock:
            self._threads.append(thread)
        thread.start()
        return thread

    def _keep(self, connection: socket.socket) -> socket.socket:
        with self._lock:
            self._sockets.add(connection)
        if self._ended.is_set():  # close() may not have seen this one
            _cut(connection)
        return connection


class _Connection:
    """One data connection: requests go up by one thread, replies come down by another, in the same order."""

    def __init__(self, proxy: Proxy, network: Network, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._network = proxy, network
        self._client, self._server = client, server
        self._server_id = ""
        # What is to be done with each reply; None passes it on.
        self._treatments: queue.SimpleQueue[Happened | None] = queue.SimpleQueue()

    def pass_requests(self) -> None:
        try:
            if self._pass_greeting():
                while (message := _read_message(self._client)) is not None and self._pass_request(message):
                    pass
        except OSError:  # one of the ends is gone: so is the other
            pass
        finally:
            self._cut()

    def pass_replies(self) -> None:
        try:
            while (reply := _read_message(self._server)) is not None and self._pass_reply(reply):
                pass
        except OSError:
            pass
        finally:
            self._cut()

    def _pass_greeting(self) -> bool:
        for message in (pb.Greeting(), pb.GreetingProof()):
            head = _read(self._client, GREETING.size)
            body = None if head is None else _read(self._client, GREETING.unpack(head)[1])
            if head is None or body is None:
                return False
            message.ParseFromString(body)
            if isinstance(message, pb.Greeting):
                self._server_id = message.server_id
            self._treatments.put(None)
            self._server.sendall(head + body)
        return True

    def _pass_request(self, message: bytes) -> bool:
        """Do to a request what is to be done; return False if the connection is to be cut."""
        seen = _seen(self._proxy.index, message)
        fault = self._network.fault_of(seen)
        if isinstance(fault, (Drop, CutRequest)):
            at = 0 if isinstance(fault, Drop) else _place(fault.at, message)
            self._server.sendall(message[:at])
            self._network.note(Happened(fault, seen))
            return False
        if isinstance(fault, DelayRequest):
            self._proxy.pause(fault.delay_s)
            self._network.note(Happened(fault, seen))
        again = isinstance(fault, Duplicate) and fault.connection == "same"
        if isinstance(fault, Duplicate) and not again:
            self._proxy.duplicate(fault, self._server_id, message, seen)
        if again:
            self._treatments.put(Happened(fault, seen))
        self._treatments.put(
            Happened(fault, seen) if isinstance(fault, (CutAfterApply, CutReply, DelayReply)) else None
        )
        self._server.sendall(message * 2 if again else message)
        return True

    def _pass_reply(self, reply: bytes) -> bool:
        """Do to a reply what is to be done; return False if the connection is to be cut."""
        happening = self._treatments.get()
        if happening is None:
            _with_reply(None, reply, self._network)
            self._client.sendall(reply)
            return True
        happened = _with_reply(happening, reply, self._network)
        match happened.fault:
            case CutAfterApply():
                self._network.note(happened)
                return False
            case CutReply(at):
                self._client.sendall(reply[: _place(at, reply)])
                self._network.note(happened)
                return False
            case DelayReply(delay_s):
                self._proxy.pause(delay_s)
                self._client.sendall(reply)
        self._network.note(happened)
        return True

    def _cut(self) -> None:
        _cut(self._client)
        _cut(self._server)


def _seen(server: int, message: bytes) -> Seen:
    draft = open_request(_header(message), 1 << 62)
    names = tuple(operation.operation.name for operation in draft.operations)
    return Seen(server, names, draft.id, draft.forwarded, len(message))


def _with_reply(happening: Happened | None, reply: bytes, network: Network) -> Happened | None:
    message = header_of(_header(reply))
    replayed, failed = message.replayed, message.HasField("error")
    if replayed:
        network.note_replay()
    if happening is None:
        return None
    return replace(happening, answered=not failed, replayed=replayed)


def _header(message: bytes) -> bytes:
    length, _ = HEAD.unpack_from(message)
    return message[HEAD.size : HEAD.size + length]


def _place(at: int | None, message: bytes) -> int:
    return len(message) // 2 if at is None else at


def _read_message(connection: socket.socket) -> bytes | None:
    """Read a whole message; None if the connection ends before that."""
    head = _read(connection, HEAD.size)
    if head is None:
        return None
    body = _read(connection, sum(HEAD.unpack(head)))
    return None if body is None else head + body


def _read(connection: socket.socket, size: int) -> bytes | None:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        got = connection.recv_into(view)
        if not got:
            return None
        view = view[got:]
    return bytes(buffer)


def _connect(port: int) -> socket.socket:
    connection = socket.create_connection((SERVER_HOST, port), timeout=CONNECT_TIMEOUT_S)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
