"""TLS over the socket of a data connection, with the methods and flags of a plain socket."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress

from ps2.interrupts import check
from ps2.transport.sockets import MIN_TIMEOUT_S, wait_until

# Bytes per system call: several TLS records of at most 16 KiB. With more, copies leave the CPU's cache; with fewer,
# system calls dominate.
RECEIVED_BYTES = 1 << 17
SENT_BYTES = 1 << 16
RECORD_BYTES = 1 << 14


class TlsConnection:
    """An encrypted data connection.

    Like a plain data socket, it is used by one thread at a time, and any thread may end it with ``shutdown``. Python's
    SSLSocket is not suitable: it accepts no flags, sends one view at a time, and makes two system calls per record.
    """

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, server_name: str | None) -> None:
        """Wrap a connected socket, closed together with this object; nothing is sent yet.

        ``server_name``: the name that the server's certificate must carry; None on the server's side.
        """
        self.plain = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._unsent = memoryview(b"")  # encrypted bytes
        self._receive_buffer = memoryview(bytearray(RECORD_BYTES))
        self._plaintext_bytes = 0  # number of plaintext bytes whose encryption ``_unsent`` began with

    @property
    def family(self) -> int:
        return self.plain.family

    @property
    def has_read_on(self) -> bool:
        """True if this object holds received input that the caller has not read yet."""
        return bool(self._incoming.pending or self._tls.pending())

    def handshake(self, deadline_s: float) -> None:
        """Run the TLS handshake: check certificates and agree on keys; ssl.SSLError: one side rejects the other."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
            except ssl.SSLError:
                with suppress(OSError):
                    self._flush()  # the alert for the other side
                raise
            else:
                self._flush()
                return
            if not self._receive_until(deadline_s):
                raise ConnectionResetError(0, "the other side closed the connection instead of answering with TLS")

    def sendmsg(self, views: Sequence[memoryview], _: Sequence[object] = (), flags: int = 0) -> int:
        """Send as much of the views as one call takes; return the number of bytes.

        After BlockingIOError the caller must pass the same views again.
        """
        if not self._unsent:
            self._plaintext_bytes = self._encrypt(views)
            self._unsent = memoryview(self._outgoing.read())
        while self._unsent:
            self._unsent = self._unsent[self.plain.send(self._unsent, flags) :]
        return self._plaintext_bytes

    def recv_into(self, view: memoryview, size: int = 0, flags: int = 0) -> int:
        """Receive like a plain socket; return 0 when the other side has finished."""
        waits_for_all = bool(flags & socket.MSG_WAITALL)
        timeout_s = self.plain.gettimeout()
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        received = 0
        while received < len(view):
            try:
                read = self._tls.read(len(view) - received, view[received:])
            except ssl.SSLWantReadError:
                if received and not waits_for_all:
                    break
                try:
                    if deadline_s is not None:
                        self.plain.settimeout(max(MIN_TIMEOUT_S, deadline_s - time.monotonic()))
                    self._receive(flags & ~socket.MSG_WAITALL)
                except (BlockingIOError, TimeoutError):
                    if received:
                        break
                    raise
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                break
            else:
                if not read:
                    break
                received += int(read)
        if deadline_s is not None:
            self.plain.settimeout(timeout_s)
        return received

    def recv(self, size: int, flags: int = 0) -> bytes:
        if flags & socket.MSG_PEEK:
            return b"?" if self.has_read_on else self.plain.recv(size, flags)
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(memoryview(buffer), 0, flags)])

    def settimeout(self, timeout_s: float | None) -> None:
        self.plain.settimeout(timeout_s)

    def setsockopt(self, level: int, name: int, value: int | bytes) -> None:
        self.plain.setsockopt(level, name, value)

    def getsockopt(self, level: int, name: int, size: int) -> bytes:
        return self.plain.getsockopt(level, name, size)

    def fileno(self) -> int:
        return self.plain.fileno()

    def shutdown(self, how: int) -> None:
        self.plain.shutdown(how)

    def close(self) -> None:
        self.plain.close()

    def _encrypt(self, views: Sequence[memoryview]) -> int:
        """Encrypt about ``SENT_BYTES``; return the number of plaintext bytes."""
        encrypted, index = 0, 0
        while index < len(views) and encrypted < SENT_BYTES:
            view = views[index]
            index += 1
            if len(view) < RECORD_BYTES:  # several small views become one record
                small = bytearray(view)
                while index < len(views) and len(small) + len(views[index]) <= RECORD_BYTES:
                    small += views[index]
                    index += 1
                view = memoryview(small)
            part = view[: SENT_BYTES - encrypted]
            written = self._tls.write(part)
            encrypted += written
            if written < len(part):
                break
        return encrypted

    def _receive_until(self, deadline_s: float) -> int:
        while True:
            wait_until(self, deadline_s)
            try:
                return self._receive(0)
            except TimeoutError:
                check()
                if time.monotonic() > deadline_s:
                    raise

    def _receive(self, flags: int) -> int:
        received = self.plain.recv_into(self._receive_buffer, 0, flags)
        if received:
            self._incoming.write(self._receive_buffer[:received])
            if received == len(self._receive_buffer) < RECEIVED_BYTES:  # grow only for peers that send much
                self._receive_buffer = memoryview(bytearray(4 * received))
        else:
            self._incoming.write_eof()
        return received

    def _flush(self) -> None:
        if self._outgoing.pending:
            self.plain.sendall(self._outgoing.read())
