"""Access control of the live page: a link's token admits one browser, which gets a cookie for later requests."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from base64 import urlsafe_b64encode

# Length of ``secrets.token_urlsafe(16)``.
NONCE_CHARS = 22


class BrowserSessions:
    """The sessions of one page. Thread-safe.

    A cookie consists of a random nonce and its MAC. So the server needs no table of sessions.
    """

    def __init__(self, secret: str, token: str | None = None) -> None:
        """Args:
        secret: the key of the cookies' MACs; pages with the same secret accept each other's cookies.
        token: the token of all links; None: each link has another token, which is valid once.
        """
        self._key = secret.encode()
        self._fixed_token = token
        self._lock = threading.Lock()
        self._link_token = secrets.token_urlsafe(24)

    @property
    def token(self) -> str:
        """The token of the next link. A token that is not fixed changes after its use."""
        return self._fixed_token or self._link_token

    def admit(self, token: str) -> str | None:
        """Return a cookie for a valid token, else None. A token that is not fixed is invalid from then on."""
        with self._lock:
            if not hmac.compare_digest(token.encode(), self.token.encode()):
                return None
            self._link_token = secrets.token_urlsafe(24)
        nonce = secrets.token_urlsafe(16)
        return nonce + self._mac(nonce)

    def knows(self, cookie: str) -> bool:
        """Return True if ``admit`` has returned this cookie."""
        nonce, mac = cookie[:NONCE_CHARS], cookie[NONCE_CHARS:]
        return hmac.compare_digest(mac.encode(), self._mac(nonce).encode())

    def _mac(self, nonce: str) -> str:
        digest = hmac.digest(self._key, f"session of the live page {nonce}".encode(), hashlib.sha256)
        return urlsafe_b64encode(digest).decode().rstrip("=")
