"""TLS for data connections, with the methods and flags of a plain socket."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress

from ps2.interrupts import check
from ps2.transport.sockets import MIN_TIMEOUT_S, set_timeout

# Bytes per system call: several TLS records. With more bytes, copies leave the CPU's cache; with fewer, system calls
# dominate.
MAX_RECEIVED_BYTES = 1 << 17
SENT_BYTES = 1 << 16
# Maximum size of a TLS record.
RECORD_BYTES = 1 << 14


class TlsConnection:
    """An encrypted data connection.

    One thread at a time may use it, and any thread may end it with ``shutdown``, as with a plain socket. Python's
    SSLSocket is not suitable: it accepts no flags, sends one view at a time, and makes two system calls per record.
    """

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, server_name: str | None) -> None:
        """Wrap a connected socket, which ``close`` also closes; send nothing yet.

        ``server_name``: the name that the server's certificate must contain; None on the server's side.
        """
        self.plain = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._unsent = memoryview(b"")  # encrypted bytes
        self._receive_buffer = memoryview(bytearray(RECORD_BYTES))
        self._plaintext_bytes = 0  # size of the plaintext that was encrypted into ``_unsent``

    @property
    def family(self) -> int:
        return self.plain.family

    @property
    def has_unread_input(self) -> bool:
        """True if received bytes are buffered that the caller has not read yet."""
        return bool(self._incoming.pending or self._tls.pending())

    def handshake(self, deadline_s: float) -> None:
        """Run the TLS handshake; raises ssl.SSLError if one side rejects the other's certificate."""
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
        """Send the beginning of the views; return the number of plaintext bytes sent.

        After a BlockingIOError the caller must pass the same views again.
        """
        if not self._unsent:
            self._plaintext_bytes = self._encrypt(views)
            self._unsent = memoryview(self._outgoing.read())
        while self._unsent:
            self._unsent = self._unsent[self.plain.send(self._unsent, flags) :]
        return self._plaintext_bytes

    def recv_into(self, view: memoryview, size: int = 0, flags: int = 0) -> int:
        """Receive like a plain socket; return 0 when the other side has closed the connection."""
        waits_for_all = bool(flags & socket.MSG_WAITALL)
        timeout_s = self.plain.gettimeout()
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        received_bytes = 0
        while received_bytes < len(view):
            try:
                decrypted_bytes = self._tls.read(len(view) - received_bytes, view[received_bytes:])
            except ssl.SSLWantReadError:
                if received_bytes and not waits_for_all:
                    break
                try:
                    if deadline_s is not None:
                        self.plain.settimeout(max(MIN_TIMEOUT_S, deadline_s - time.monotonic()))
                    self._receive(flags & ~socket.MSG_WAITALL)
                except (BlockingIOError, TimeoutError):
                    if received_bytes:
                        break
                    raise
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                break
            else:
                if not decrypted_bytes:
                    break
                received_bytes += int(decrypted_bytes)
        if deadline_s is not None:
            self.plain.settimeout(timeout_s)
        return received_bytes

    def recv(self, size: int, flags: int = 0) -> bytes:
        if flags & socket.MSG_PEEK:
            return b"?" if self.has_unread_input else self.plain.recv(size, flags)
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
        encrypted_bytes, index = 0, 0
        while index < len(views) and encrypted_bytes < SENT_BYTES:
            view = views[index]
            index += 1
            if len(view) < RECORD_BYTES:  # several small views become one record
                record = bytearray(view)
                while index < len(views) and len(record) + len(views[index]) <= RECORD_BYTES:
                    record += views[index]
                    index += 1
                view = memoryview(record)
            part = view[: SENT_BYTES - encrypted_bytes]
            written_bytes = self._tls.write(part)
            encrypted_bytes += written_bytes
            if written_bytes < len(part):
                break
        return encrypted_bytes

    def _receive_until(self, deadline_s: float) -> int:
        while True:
            set_timeout(self, deadline_s)
            try:
                return self._receive(0)
            except TimeoutError:
                check()
                if time.monotonic() > deadline_s:
                    raise

    def _receive(self, flags: int) -> int:
        received_bytes = self.plain.recv_into(self._receive_buffer, 0, flags)
        if received_bytes:
            self._incoming.write(self._receive_buffer[:received_bytes])
            if received_bytes == len(self._receive_buffer) < MAX_RECEIVED_BYTES:  # grow only for peers that send much
                self._receive_buffer = memoryview(bytearray(4 * received_bytes))
        else:
            self._incoming.write_eof()
        return received_bytes

    def _flush(self) -> None:
        if self._outgoing.pending:
            self.plain.sendall(self._outgoing.read())
