"""What a call says in a process that is forked off."""

from __future__ import annotations

import os

from ps2.errors import PS2Error


def in_child(call):
    """Return the name and text of the error of a call in a forked process; "" for none."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            call()
        except PS2Error as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as messages:
        text = messages.read()
    os.waitpid(child, 0)
    return text
