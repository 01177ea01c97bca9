"""Proofs that both sides know the fleet's token, which itself never travels. Pure; ``auth.proto`` is the contract."""

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
# What a server remembers of sessions is some hundred bytes each; clients that are still there come back with another.
MAX_SESSIONS = 10_000
# Calls of one session overtake each other, by as many as it has threads.
WINDOW = 1024


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def digest(message: bytes) -> bytes:
    return sha256(message).digest()


def server_proof(token: str, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """What the answer to a challenge proves itself with."""
    return _mac(token.encode(), b"ps2 server" + client_nonce + server_nonce)


def session_key(token: str, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return _mac(token.encode(), b"ps2 session" + client_nonce + server_nonce)


def call_proof(key: bytes, number: int, message_digest: bytes, method: str) -> bytes:
    return _mac(key, b"call" + number.to_bytes(8, "big") + message_digest + method.encode())


def answer_proof(key: bytes, kind: str, number: int, message_digest: bytes) -> bytes:
    """What the server proves an answer with; ``kind`` is "reply" or "error"."""
    return _mac(key, kind.encode() + number.to_bytes(8, "big") + message_digest)


def greeting_proof(token: str, side: str, client_nonce: bytes, server_nonce: bytes, server_id: str) -> bytes:
    """What a side of a data connection proves itself with; ``side`` is "server" or "client"."""
    return _mac(token.encode(), f"ps2 data {side}".encode() + client_nonce + server_nonce + server_id.encode())


def equal(given: bytes, expected: bytes) -> bool:
    """Compare proofs in a time that does not tell how much of them is right."""
    return hmac.compare_digest(given, expected)


class Tokens:
    """The fleet's token, as a process has it now; two while it is replaced: the first is what to prove with.

    Safe for threads.

    Attributes:
        generation: one number, which is another one when the tokens are.
    """

    def __init__(self, text: str) -> None:
        """``text``: a token, or two on lines of their own."""
        self.generation = np.zeros(1, np.int64)
        self.renew(text)

    @classmethod
    def of(cls, given: str | Tokens | None) -> Tokens | None:
        return cls(given) if isinstance(given, str) else given

    @property
    def all(self) -> tuple[str, ...]:
        return self._all

    def renew(self, text: str) -> None:
        """Take others from now on; who has proven to know one that is not among them is not let in any more."""
        self._all = tuple(text.split())
        self.generation += 1

    def shared(self, proofs: Iterable[bytes], make: Callable[[str], bytes]) -> str | None:
        """Return the first token by which one of the other side's proofs can have been made; None: there is none."""
        given = list(proofs)
        return next((token for token in self._all if any(equal(proof, make(token)) for proof in given)), None)


@dataclass(frozen=True)
class ClientSession:
    """A client's calls to a server that has proven itself; ``numbers`` is safe for threads."""

    client_nonce: bytes
    server_nonce: bytes
    key: bytes
    numbers: Iterator[int] = field(default_factory=itertools.count)


@dataclass(frozen=True)
class Claim:
    """What a call comes with; see ``CallProof`` of the contract."""

    client_nonce: bytes
    server_nonce: bytes
    number: int
    digest: bytes
    proof: bytes


@dataclass(frozen=True)
class Admitted:
    """A call whose sender knows the token."""

    key: bytes
    number: int
    digest: bytes

    def brings(self, message: bytes) -> bool:
        """Whether the message that came is the one that was sent."""
        return equal(digest(message), self.digest)

    def proof(self, kind: str, message: bytes = b"") -> bytes:
        return answer_proof(self.key, kind, self.number, digest(message))


class Gatekeeper:
    """The server's side of a port: proves itself to anybody, and remembers those who have proven themselves.

    Of strangers nothing is remembered. Safe for threads.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._lock = threading.Lock()
        self._begin()

    def challenge(self, client_nonce: bytes) -> tuple[bytes, list[bytes]]:
        """Return the server's nonce, and its proofs for a client's: one a token."""
        nonce = self._nonce
        return nonce, [server_proof(token, client_nonce, nonce) for token in self._tokens.all]

    def admit(self, method: str, claim: Claim) -> Admitted | None:
        """Check what a call comes with; None if it is to be refused: wrong, or seen before."""
        with self._lock:
            if claim.server_nonce != self._nonce or len(claim.client_nonce) != NONCE_BYTES:
                return None
            session = self._sessions.get(claim.client_nonce)
            if session is not None and session.token not in self._tokens.all:
                del self._sessions[claim.client_nonce]
                return None
            known = session is not None
            session = session or self._begun(method, claim)
            if session is None or not equal(claim.proof, call_proof(session.key, claim.number, claim.digest, method)):
                return None
            if not known:
                if len(self._sessions) < MAX_SESSIONS:
                    self._sessions[claim.client_nonce] = session
                else:  # with the nonce goes all that somebody may have listened to, this call too
                    self._begin()
            return Admitted(session.key, claim.number, claim.digest) if session.takes(claim.number) else None

    def _begun(self, method: str, claim: Claim) -> _Session | None:
        """Return the session of a client whose first call this is, by the token that it knows; None: by none."""

        def made(token: str) -> bytes:
            return session_key(token, claim.client_nonce, self._nonce)

        def first(token: str) -> bytes:
            return call_proof(made(token), claim.number, claim.digest, method)

        token = self._tokens.shared([claim.proof], first)
        return None if token is None else _Session(token, made(token))

    def _begin(self) -> None:
        self._nonce = new_nonce()
        self._sessions: dict[bytes, _Session] = {}


class _Session:
    """Which numbers of a client's calls have come."""

    def __init__(self, token: str, key: bytes) -> None:
        self.token = token
        self.key = key
        self._highest = -1
        self._seen = 0  # a bit for the highest one and each below it

    def takes(self, number: int) -> bool:
        """Note a number; return False if it has come before, or is so old that nobody knows."""
        ahead = number - self._highest
        if ahead > 0:
            self._seen = (self._seen << min(ahead, WINDOW) | 1) & ((1 << WINDOW) - 1)
            self._highest = number
            return True
        bit = 1 << -ahead
        if -ahead >= WINDOW or self._seen & bit:
            return False
        self._seen |= bit
        return True


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")
