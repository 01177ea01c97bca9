"""Idle connections share one polling thread. A connection gets a thread for itself when input arrives.

Threads are reused. Starting a thread takes longer than answering a plain request, and the polling thread would fall
behind when hundreds of workers begin a clock at once.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from ps2.transport.acceptor import PAUSE_S, AuthenticatedPeer
from ps2.transport.sockets import close
from ps2.transport.tls_connection import TlsConnection

log = logging.getLogger(__name__)

# After a request, a thread waits this long for the next one, so that frequent requests need not wait for a thread.
LINGER_S = 0.1
END_TIMEOUT_S = 1.0
# How long a thread without a connection waits for another one.
SPARE_S = 2.0


class IdleConnectionPoller:
    """Watches idle connections. Thread-safe."""

    def __init__(self, attend: Callable[[AuthenticatedPeer], None]) -> None:
        """Start watching. When input arrives or the client disconnects, another thread calls ``attend``."""
        self._attend = attend
        self._lock = threading.Lock()
        self._parked: dict[int, AuthenticatedPeer] = {}  # by descriptor
        self._poll = select.epoll()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)  # ends the poll at ``stop``
        self._poll.register(self._wake_reader, select.EPOLLIN)
        self._stopped = False
        self._ready: SimpleQueue[AuthenticatedPeer | None] = SimpleQueue()  # peers with input, for spare threads
        self._spare = 0  # number of threads that wait for ``_ready``, minus the number of peers in it
        self._thread = threading.Thread(target=self._watch, name="ps2-idle-connections", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, peer: AuthenticatedPeer) -> None:
        """Watch a connection without unread input; ``attend`` gets it when input arrives."""
        with self._lock:
            if self._stopped:
                close(peer.plain)
                return
            descriptor = peer.plain.fileno()
            self._poll.register(descriptor, select.EPOLLIN | select.EPOLLRDHUP)
            self._parked[descriptor] = peer

    def stop(self) -> None:
        """Close all idle connections."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            for _ in range(self._spare):
                self._ready.put(None)
            self._spare = 0
            os.write(self._wake_writer, b"!")
        self._thread.join(END_TIMEOUT_S)

    def _watch(self) -> None:
        while not self._stopped:
            for descriptor, _ in self._poll.poll():
                if not self._hand_over(descriptor):
                    time.sleep(PAUSE_S)
                    break
        with self._lock:
            for peer in self._parked.values():
                close(peer.plain)
            self._parked.clear()
        self._poll.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _hand_over(self, descriptor: int) -> bool:
        """Hand a connection to a thread. If no thread can be started, park the connection again and return False."""
        with self._lock:
            peer = self._parked.pop(descriptor, None)
            if peer is None:
                return True
            self._poll.unregister(descriptor)
            if self._spare:
                self._spare -= 1
                self._ready.put(peer)
                return True
        try:
            threading.Thread(target=self._attend_many, args=[peer], name="ps2-data", daemon=True).start()
        except (RuntimeError, MemoryError) as error:
            log.warning("a request waits, because no thread can be started: %s", error)
            self.park(peer)
            return False
        return True

    def _attend_many(self, first: AuthenticatedPeer) -> None:
        """Attend to a connection, then to others; end when none gets input within ``SPARE_S``."""
        peer: AuthenticatedPeer | None = first
        while peer is not None:
            self._attend(peer)
            peer = self._next()

    def _next(self) -> AuthenticatedPeer | None:
        """Wait for a connection with input; return None if the thread is to end."""
        with self._lock:
            if self._stopped:
                return None
            self._spare += 1
        try:
            return self._ready.get(timeout=SPARE_S)
        except Empty:
            with self._lock:
                if self._ready.empty():
                    self._spare -= 1
                    return None
                return self._ready.get()


def has_input(peer: AuthenticatedPeer, poll: select.poll) -> bool:
    """Return True if input has arrived, or arrives within ``LINGER_S``."""
    connection = peer.connection
    return (isinstance(connection, TlsConnection) and connection.has_read_on) or bool(poll.poll(1e3 * LINGER_S))
