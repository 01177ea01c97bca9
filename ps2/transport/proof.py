"""Proofs that both sides know the fleet's token, which is never sent. No I/O; ``auth.proto`` defines the protocol."""

from __future__ import annotations

import hmac
import itertools
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

NONCE_BYTES = 32
# Maximum number of sessions of a server, of a few hundred bytes each. At the limit all sessions end, and active clients
# start new sessions.
MAX_SESSIONS = 10_000
# Number of recent call numbers that a session stores, because calls of a client's threads may arrive out of order.
WINDOW = 1024


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def digest(message: bytes) -> bytes:
    return sha256(message).digest()


def server_proof(token: str, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """Return the server's proof for its reply to a client's challenge."""
    return _mac(token.encode(), b"ps2 server" + client_nonce + server_nonce)


def session_key(token: str, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return _mac(token.encode(), b"ps2 session" + client_nonce + server_nonce)


def call_proof(key: bytes, number: int, message_digest: bytes, method: str) -> bytes:
    return _mac(key, b"call" + number.to_bytes(8, "big") + message_digest + method.encode())


def answer_proof(key: bytes, kind: str, number: int, message_digest: bytes) -> bytes:
    """Return the server's proof of an answer; ``kind`` is "reply" or "error"."""
    return _mac(key, kind.encode() + number.to_bytes(8, "big") + message_digest)


def greeting_proof(token: str, side: str, client_nonce: bytes, server_nonce: bytes, server_id: str) -> bytes:
    """Return the proof of one side of a data connection; ``side`` is "server" or "client"."""
    return _mac(token.encode(), f"ps2 data {side}".encode() + client_nonce + server_nonce + server_id.encode())


def equal(proof: bytes, expected: bytes) -> bool:
    """Compare proofs in constant time."""
    return hmac.compare_digest(proof, expected)


class Tokens:
    """The fleet's token; during its replacement, the new and the old token. Thread-safe.

    Attributes:
        all: the tokens; the first is used for proofs.
        generation: a counter of the tokens' changes, int64 of shape (1,).
    """

    def __init__(self, text: str) -> None:
        """Read the tokens from ``text``: one token, or two on separate lines."""
        self.generation = np.zeros(1, np.int64)
        self.renew(text)

    @classmethod
    def from_text(cls, text: str | Tokens | None) -> Tokens | None:
        return cls(text) if isinstance(text, str) else text

    def renew(self, text: str) -> None:
        """Replace the tokens. From now on, peers that know only other tokens are refused."""
        self.all = tuple(text.split())
        self.generation += 1

    def matching(self, proofs: Iterable[bytes], expected: Callable[[str], bytes]) -> str | None:
        """Return the first token whose expected proof is one of the peer's proofs; None if there is none."""
        candidates = list(proofs)
        return next((token for token in self.all if any(equal(proof, expected(token)) for proof in candidates)), None)


@dataclass(frozen=True)
class ClientSession:
    """A client's session with a server that has proven its identity; ``numbers`` is thread-safe."""

    client_nonce: bytes
    server_nonce: bytes
    key: bytes
    numbers: Iterator[int] = field(default_factory=itertools.count)


@dataclass(frozen=True)
class Claim:
    """The proof in the metadata of a call; see ``CallProof`` in auth.proto."""

    client_nonce: bytes
    server_nonce: bytes
    number: int
    digest: bytes
    proof: bytes


@dataclass(frozen=True)
class Admitted:
    """A call whose sender has proven that it knows the token."""

    key: bytes
    number: int
    digest: bytes

    def covers(self, message: bytes) -> bool:
        """Return True if the call's proof contains the digest of this message."""
        return equal(digest(message), self.digest)

    def proof(self, kind: str, message: bytes = b"") -> bytes:
        return answer_proof(self.key, kind, self.number, digest(message))


class Gatekeeper:
    """Authenticates one port of a server: proves the server's identity to any peer, and stores authenticated sessions.

    Stores no state for unauthenticated peers. Thread-safe.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._lock = threading.Lock()
        self._restart()

    def challenge(self, client_nonce: bytes) -> tuple[bytes, list[bytes]]:
        """Return the server's nonce, and the server's proof for a client's nonce with each token."""
        nonce = self._nonce
        return nonce, [server_proof(token, client_nonce, nonce) for token in self._tokens.all]

    def admit(self, method: str, claim: Claim) -> Admitted | None:
        """Check the proof of a call; return None if the proof is wrong or the call has been seen before."""
        with self._lock:
            if claim.server_nonce != self._nonce or len(claim.client_nonce) != NONCE_BYTES:
                return None
            session = self._sessions.get(claim.client_nonce)
            if session is not None and session.token not in self._tokens.all:
                del self._sessions[claim.client_nonce]
                return None
            is_known = session is not None
            session = session or self._new_session(method, claim)
            if session is None or not equal(claim.proof, call_proof(session.key, claim.number, claim.digest, method)):
                return None
            if not is_known:
                if len(self._sessions) < MAX_SESSIONS:
                    self._sessions[claim.client_nonce] = session
                else:  # the new nonce ends all sessions, because an attacker could replay calls of a forgotten session
                    self._restart()
            return Admitted(session.key, claim.number, claim.digest) if session.accepts(claim.number) else None

    def _new_session(self, method: str, claim: Claim) -> _Session | None:
        """Return a session for a client's first call; None if the call's proof matches no token."""

        def key(token: str) -> bytes:
            return session_key(token, claim.client_nonce, self._nonce)

        def expected_proof(token: str) -> bytes:
            return call_proof(key(token), claim.number, claim.digest, method)

        token = self._tokens.matching([claim.proof], expected_proof)
        return None if token is None else _Session(token, key(token))

    def _restart(self) -> None:
        self._nonce = new_nonce()
        self._sessions: dict[bytes, _Session] = {}


class _Session:
    """A client's session on the server, with the call numbers that the server has seen."""

    def __init__(self, token: str, key: bytes) -> None:
        self.token = token
        self.key = key
        self._highest = -1
        self._seen_bits = 0  # bit i: number ``_highest - i`` has been seen

    def accepts(self, number: int) -> bool:
        """Record a call number; return False if the number has been seen before or is older than ``WINDOW``."""
        ahead = number - self._highest
        if ahead > 0:
            self._seen_bits = (self._seen_bits << min(ahead, WINDOW) | 1) & ((1 << WINDOW) - 1)
            self._highest = number
            return True
        bit = 1 << -ahead
        if -ahead >= WINDOW or self._seen_bits & bit:
            return False
        self._seen_bits |= bit
        return True


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")
