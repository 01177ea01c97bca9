"""Idle connections share one polling thread. When input arrives, another thread serves the connection.

These threads are reused. Starting a thread takes longer than answering a plain request, so the polling thread would be
the bottleneck when hundreds of workers begin a clock at the same time.
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

# After a request, the thread waits this long for the next request of the connection, which then needs no other thread.
LINGER_S = 0.1
# Limit of the wait for the polling thread to end.
END_TIMEOUT_S = 1.0
# Time after which a thread without a connection ends.
SPARE_THREAD_S = 2.0


class IdleConnectionPoller:
    """Watches idle connections. Thread-safe."""

    def __init__(self, serve: Callable[[AuthenticatedPeer], None]) -> None:
        """Start watching. When input arrives or the client disconnects, another thread calls ``serve``."""
        self._serve = serve
        self._lock = threading.Lock()
        self._parked: dict[int, AuthenticatedPeer] = {}  # by descriptor
        self._poll = select.epoll()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)  # a byte ends the poll
        self._poll.register(self._wake_reader, select.EPOLLIN)
        self._stopped = False
        self._ready: SimpleQueue[AuthenticatedPeer | None] = SimpleQueue()  # peers with input, for spare threads
        self._spare_threads = 0  # number of threads that wait for ``_ready``, minus the number of peers in the queue
        self._thread = threading.Thread(target=self._watch, name="ps2-idle-connections", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, peer: AuthenticatedPeer) -> None:
        """Watch a connection without unread input; when input arrives, ``serve`` is called with it."""
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
            for _ in range(self._spare_threads):
                self._ready.put(None)
            self._spare_threads = 0
            os.write(self._wake_writer, b"!")
        self._thread.join(END_TIMEOUT_S)

    def _watch(self) -> None:
        while not self._stopped:
            for descriptor, _ in self._poll.poll():
                if not self._pass_to_thread(descriptor):
                    time.sleep(PAUSE_S)
                    break
        with self._lock:
            for peer in self._parked.values():
                close(peer.plain)
            self._parked.clear()
        self._poll.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _pass_to_thread(self, descriptor: int) -> bool:
        """Pass a connection to a thread. If no thread can be started, park the connection again and return False."""
        with self._lock:
            peer = self._parked.pop(descriptor, None)
            if peer is None:
                return True
            self._poll.unregister(descriptor)
            if self._spare_threads:
                self._spare_threads -= 1
                self._ready.put(peer)
                return True
        try:
            threading.Thread(target=self._serve_many, args=[peer], name="ps2-data", daemon=True).start()
        except (RuntimeError, MemoryError) as error:
            log.warning("a request waits, because no thread can be started: %s", error)
            self.park(peer)
            return False
        return True

    def _serve_many(self, first_peer: AuthenticatedPeer) -> None:
        """Serve a connection, then further connections; end when none has input for ``SPARE_THREAD_S``."""
        peer: AuthenticatedPeer | None = first_peer
        while peer is not None:
            self._serve(peer)
            peer = self._next_peer()

    def _next_peer(self) -> AuthenticatedPeer | None:
        """Wait for a connection with input; return None if the thread must end."""
        with self._lock:
            if self._stopped:
                return None
            self._spare_threads += 1
        try:
            return self._ready.get(timeout=SPARE_THREAD_S)
        except Empty:
            with self._lock:
                if self._ready.empty():
                    self._spare_threads -= 1
                    return None
                return self._ready.get()


def has_input(peer: AuthenticatedPeer, poll: select.poll) -> bool:
    """Return True if input has arrived, or arrives within ``LINGER_S``."""
    connection = peer.connection
    return (isinstance(connection, TlsConnection) and connection.has_unread_input) or bool(poll.poll(1e3 * LINGER_S))
