"""Access to the page: the token in a link admits one browser, which gets a cookie for later requests. Pure."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from base64 import urlsafe_b64encode

NONCE_CHARS = 22


class BrowserSessions:
    """The sessions of one page. Thread-safe.

    A cookie is a random number and its MAC, so there is no table of sessions that could grow.
    """

    def __init__(self, secret: str, token: str | None = None) -> None:
        """Args:
        secret: the key of the cookies' MACs; pages with the same secret accept each other's cookies.
        token: the token of all links; None: each link has its own token, which admits one browser.
        """
        self._key = secret.encode()
        self._fixed = token
        self._lock = threading.Lock()
        self._current = secrets.token_urlsafe(24)

    @property
    def token(self) -> str:
        """The token of the next link. It changes when it has been used."""
        return self._fixed or self._current

    def admit(self, token: str) -> str | None:
        """Return a cookie for a valid token, or None. The token of a link is then invalid, unless it is fixed."""
        with self._lock:
            if not hmac.compare_digest(token.encode(), self.token.encode()):
                return None
            self._current = secrets.token_urlsafe(24)
        nonce = secrets.token_urlsafe(16)
        return nonce + self._mac(nonce)

    def knows(self, cookie: str) -> bool:
        """Return True for a cookie that ``admit`` has returned."""
        nonce, mac = cookie[:NONCE_CHARS], cookie[NONCE_CHARS:]
        return hmac.compare_digest(mac.encode(), self._mac(nonce).encode())

    def _mac(self, nonce: str) -> str:
        digest = hmac.digest(self._key, f"session of the live page {nonce}".encode(), hashlib.sha256)
        return urlsafe_b64encode(digest).decode().rstrip("=")
