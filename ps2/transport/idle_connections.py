"""Connections on which nothing happens: they wait in one thread, and get one of their own when something comes."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable

from ps2.transport.acceptor import PAUSE_S, AuthenticatedPeer
from ps2.transport.sockets import close
from ps2.transport.tls_connection import TlsConnection

log = logging.getLogger(__name__)

# A thread stays with its connection for so long: who asks often does not wait for one.
LINGER_S = 0.1
END_TIMEOUT_S = 1.0


class IdleConnectionPoller:
    """Keeps idle connections. Safe for threads."""

    def __init__(self, attend: Callable[[AuthenticatedPeer], None]) -> None:
        """``attend`` is called in a thread of its own when something has come, or the other side has gone."""
        self._attend = attend
        self._lock = threading.Lock()
        self._parked: dict[int, AuthenticatedPeer] = {}  # by descriptor
        self._poll = select.epoll()
        self._bell, self._ring = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._bell, select.EPOLLIN)
        self._stopped = False
        self._thread = threading.Thread(target=self._watch, name="ps2-idle-connections", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, peer: AuthenticatedPeer) -> None:
        """Take one of whom all that has come was read; ``attend`` has it again when there is more."""
        with self._lock:
            if self._stopped:
                close(peer.plain)
                return
            descriptor = peer.plain.fileno()
            self._poll.register(descriptor, select.EPOLLIN | select.EPOLLRDHUP)
            self._parked[descriptor] = peer

    def stop(self) -> None:
        """Close what is parked."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            os.write(self._ring, b"!")
        self._thread.join(END_TIMEOUT_S)

    def _watch(self) -> None:
        while not self._stopped:
            for descriptor, _ in self._poll.poll():
                if not self._wake(descriptor):
                    time.sleep(PAUSE_S)
                    break
        with self._lock:
            for peer in self._parked.values():
                close(peer.plain)
            self._parked.clear()
        self._poll.close()
        os.close(self._bell)
        os.close(self._ring)

    def _wake(self, descriptor: int) -> bool:
        """Give a connection a thread; return False if there is none to be had: it stays here until there is."""
        with self._lock:
            peer = self._parked.pop(descriptor, None)
            if peer is None:
                return True
            self._poll.unregister(descriptor)
        try:
            threading.Thread(target=self._attend, args=[peer], name="ps2-data", daemon=True).start()
        except (RuntimeError, MemoryError) as error:
            log.warning("a request waits, as there is no thread for it: %s", error)
            self.park(peer)
            return False
        return True


def has_come(peer: AuthenticatedPeer, poll: select.poll) -> bool:
    """Tell whether something has come, or does within ``LINGER_S``."""
    connection = peer.connection
    return (isinstance(connection, TlsConnection) and connection.has_read_on) or bool(poll.poll(1e3 * LINGER_S))
