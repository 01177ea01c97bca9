"""The token of a server, read again when its file changes."""

from __future__ import annotations

import logging
import os
import threading

from ps2.config import read_token
from ps2.errors import PS2Error
from ps2.transport.proof import Tokens

log = logging.getLogger(__name__)

LOOK_S = 1.0


def kept_tokens(path: str) -> Tokens:
    """Return the tokens of a file as they are at any time; those of a pipe stay what they are.

    Raises:
        AuthError, ConfigError: it cannot be used now. If it cannot be later, what it said before counts.
    """
    stamp = _stamp(path)
    tokens = Tokens(read_token(path))
    if os.path.isfile(path):
        threading.Thread(target=_keep, args=(path, stamp, tokens), name="ps2-token", daemon=True).start()
    return tokens


def _keep(path: str, stamp: tuple[int, ...] | None, tokens: Tokens) -> None:
    pause = threading.Event()
    while not pause.wait(LOOK_S):
        now = _stamp(path)
        if now in (stamp, None):  # one that is gone says nothing: somebody tidies up temporary files
            continue
        stamp = now
        try:
            text = read_token(path)
        except PS2Error as error:
            log.warning("the token before is still used: %s", error)
            continue
        if tuple(text.split()) != tokens.all:
            tokens.renew(text)
            log.info("the token has changed: %d accepted from now on", len(tokens.all))


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
