"""Where workers reach their run: a connection each, one thread for all of them."""

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

from ps2.config import Place, WireConfig, is_loopback, join_address
from ps2.errors import ConfigError, LimitError, PS2Error
from ps2.protocol.error_details import internal_error
from ps2.protocol.plain_data import LIMIT_BYTES
from ps2.rpc.run_control import NAME
from ps2.run.servicer import Answers, refusal
from ps2.run.state import Question, Run, Seat
from ps2.transport.acceptor import Acceptor, AuthenticatedPeer, listen_tcp
from ps2.transport.handshake import accept
from ps2.transport.proof import Tokens
from ps2.transport.sockets import close, send_some
from ps2.transport.talk import LENGTH, framed

log = logging.getLogger(__name__)

# Of a message: what a worker returns, or made for all, and what it says besides.
MOST_BYTES = LIMIT_BYTES + (1 << 20)
READ_BYTES = 1 << 16
END_TIMEOUT_S = 5.0


class Asker:
    """Who is connected: one attempt of a worker, by its questions or by its looking ahead.

    Attributes:
        seat: that it has, or waits for.
        question: under way.
    """

    def __init__(self, peer: AuthenticatedPeer, wake: Callable[[Asker], None]) -> None:
        self.plain, self.connection = peer.plain, peer.connection
        self.seat: Seat | None = None
        self.question: Question[bytes] | None = None
        self.received = bytearray()
        self.unsent: list[memoryview] = []
        self.is_ending = False  # when all is sent
        self.is_woken = False
        self._wake = wake

    def wake(self) -> None:
        self._wake(self)


class Face:
    """Listens until it is stopped; ``address`` says where."""

    def __init__(self, run: Run, place: Place, token: str | None, wire: WireConfig) -> None:
        """Begin.

        Args:
            place: to listen at, and to be reached by.

        Raises:
            ConfigError: no token, and not on loopback.
            LaunchError: the ports are taken.
            ConfigError, AuthError: certificates cannot be used.
        """
        if token is None and not is_loopback(place.host):
            raise ConfigError(f"bind: {place.host} is not loopback, so a token is required")
        self._run = run
        self._answers = Answers(run)
        self._wire = wire
        self._askers: dict[int, Asker] = {}  # by descriptor
        self._come: deque[Asker] = deque()
        self._woken: deque[Asker] = deque()
        self._due: list[tuple[float, int, Asker]] = []  # a heap
        self._numbers = itertools.count()
        self._stopped = False
        listener = listen_tcp(place.host, place.ports)
        self.address = join_address(place.advertised, listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        # Sockets: who rings after the end gets an error, and never writes to a file that has taken a pipe's number.
        self._bell, self._ring = socket.socketpair()
        self._bell.setblocking(False)
        self._ring.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="ps2-run", daemon=True)
        self._thread.start()
        try:
            self._acceptor = Acceptor([listener], Tokens.of(token), NAME, wire, self._welcome)
        except PS2Error:
            self._end_thread()
            raise

    def stop(self) -> None:
        """End all connections: who has asked is not answered any more."""
        self._acceptor.shut()
        self._end_thread()
        self._acceptor.join()

    def _end_thread(self) -> None:
        self._stopped = True
        self._call()
        self._thread.join(END_TIMEOUT_S)

    # -- called by any thread --------------------------------------------------------------------------------------

    def _welcome(self, peer: AuthenticatedPeer) -> None:
        try:
            accept(peer.connection)
        except OSError:
            close(peer.plain)
            return
        self._come.append(Asker(peer, self._wake))
        self._call()

    def _wake(self, asker: Asker) -> None:
        if not asker.is_woken:
            asker.is_woken = True
            self._woken.append(asker)
            if threading.current_thread() is not self._thread:
                self._call()

    def _call(self) -> None:
        with suppress(OSError):  # it is full, and the bell rings anyway; or nobody is there any more
            self._ring.send(b"!")

    # -- the thread ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._stopped:
                for key, events in self._selector.select(self._patience_s()):
                    if key.fileobj is self._bell:
                        with suppress(BlockingIOError):
                            self._bell.recv(READ_BYTES)
                        continue
                    asker: Asker = key.data
                    if events & selectors.EVENT_WRITE:
                        self._send(asker)
                    if events & selectors.EVENT_READ and asker.plain.fileno() >= 0:
                        self._read(asker)
                while self._come:
                    self._let_in(self._come.popleft())
                now_s = time.monotonic()
                while self._due and self._due[0][0] <= now_s:
                    self._wake(heapq.heappop(self._due)[2])
                while self._woken:
                    asker = self._woken.popleft()
                    asker.is_woken = False
                    self._go_on(asker)
        finally:
            for asker in [*self._askers.values(), *self._come]:
                self._end(asker)
            self._selector.close()
            self._bell.close()
            self._ring.close()

    def _patience_s(self) -> float | None:
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else None

    def _let_in(self, asker: Asker) -> None:
        try:
            self._selector.register(asker.plain, selectors.EVENT_READ, asker)
        except OSError as error:  # the system has no room for one more
            log.warning("a worker's connection is refused: %s", error)
            close(asker.plain)
            return
        self._askers[asker.plain.fileno()] = asker
        self._read(asker)  # TLS may have read on

    def _read(self, asker: Asker) -> None:
        buffer = bytearray(READ_BYTES)
        try:
            while (got := asker.connection.recv_into(memoryview(buffer), 0, socket.MSG_DONTWAIT)) == READ_BYTES:
                asker.received += buffer
        except BlockingIOError:
            pass
        except OSError as error:
            log.debug("a worker's connection broke: %s", error)
            self._end(asker)
            return
        else:
            if not got:
                self._end(asker)
                return
            asker.received += memoryview(buffer)[:got]
        if asker.question is not None and len(asker.received) > MOST_BYTES:
            log.warning("a worker sends on while its question is not answered: its connection ends")
            self._end(asker)
            return
        self._hear(asker)

    def _hear(self, asker: Asker) -> None:
        """Take the next message, if it has come and the one before is answered."""
        received = asker.received
        if asker.question is not None or asker.is_ending or len(received) < LENGTH.size:
            return
        (size,) = LENGTH.unpack_from(received)
        if size > MOST_BYTES:
            self._refuse(asker, LimitError(f"a message of {size:,} bytes: at most {MOST_BYTES:,} are read"))
            return
        if len(received) < LENGTH.size + size:
            return
        encoded = bytes(memoryview(received)[LENGTH.size : LENGTH.size + size])
        del received[: LENGTH.size + size]
        asker.question = self._answers.to(asker, encoded)
        self._go_on(asker)

    def _go_on(self, asker: Asker) -> None:
        """Go on with a question; answer it if it need not wait."""
        if asker.question is None:
            return
        try:
            with self._run.lock:
                look_s = next(asker.question)
        except StopIteration as done:
            asker.question = None
            self._answer(asker, done.value)
            self._hear(asker)
        except PS2Error as error:
            self._refuse(asker, error)
        except Exception as error:  # a bug: told to the worker, logged whole, and the others go on
            log.exception("internal error")
            self._refuse(asker, internal_error(error))
        else:
            if look_s is not None:
                heapq.heappush(self._due, (look_s, next(self._numbers), asker))

    def _refuse(self, asker: Asker, error: PS2Error) -> None:
        asker.question = None
        asker.is_ending = True
        self._answer(asker, refusal(error))

    def _answer(self, asker: Asker, encoded: bytes) -> None:
        asker.unsent.append(framed(encoded))
        self._send(asker)

    def _send(self, asker: Asker) -> None:
        if asker.plain.fileno() < 0:
            return
        waited = bool(self._selector.get_key(asker.plain).events & selectors.EVENT_WRITE)
        try:
            while asker.unsent:
                send_some(asker.connection, asker.unsent, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except OSError as error:
            log.debug("a worker's connection broke: %s", error)
            self._end(asker)
            return
        if asker.is_ending and not asker.unsent:
            self._end(asker)
        elif bool(asker.unsent) != waited:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if asker.unsent else 0)
            self._selector.modify(asker.plain, events, asker)

    def _end(self, asker: Asker) -> None:
        """Its connection is over: it has no seat any more, and asks nothing."""
        if self._askers.pop(asker.plain.fileno(), None) is not None:
            self._selector.unregister(asker.plain)
        close(asker.plain)
        with self._run.lock:
            if asker.question is not None:
                asker.question.close()
                asker.question = None
            if asker.seat is not None:
                self._run.leave_seat(asker.seat)
