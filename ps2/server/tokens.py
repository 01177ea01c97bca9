"""The tokens of a server, reloaded when their file changes."""

from __future__ import annotations

import logging
import os
import threading

from ps2.certificates import file_stamp
from ps2.config import read_token
from ps2.errors import PS2Error
from ps2.transport.proof import Tokens

log = logging.getLogger(__name__)

# Interval between two checks of the file.
POLL_S = 1.0


def watch_token_file(path: str) -> Tokens:
    """Return a file's tokens, updated in the background when it changes and is usable; a pipe is read once."""
    stamp = file_stamp(path)
    tokens = Tokens(read_token(path))
    if os.path.isfile(path):
        threading.Thread(target=_reload_on_change, args=(path, stamp, tokens), name="ps2-token", daemon=True).start()
    return tokens


def _reload_on_change(path: str, stamp: tuple[int, ...] | None, tokens: Tokens) -> None:
    pause = threading.Event()
    while not pause.wait(POLL_S):
        new_stamp = file_stamp(path)
        if new_stamp in (stamp, None):  # a missing file changes nothing: the system may have deleted a temporary file
            continue
        stamp = new_stamp
        try:
            text = read_token(path)
        except PS2Error as error:
            log.warning("the previous tokens stay valid: %s", error)
            continue
        if tuple(text.split()) != tokens.all:
            tokens.renew(text)
            log.info("the token file has changed; accepted tokens: %d", len(tokens.all))
