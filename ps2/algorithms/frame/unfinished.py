"""New models whose training fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from ps2.errors import PS2Error


class Freeable(Protocol):
    """What lies on the servers until it is freed."""

    def free(self) -> None: ...


@contextmanager
def freed_on_failure(model: Freeable) -> Iterator[None]:
    """Free a model if the block raises: it has a name on the fleet, by which it would stay, and nobody else has it."""
    try:
        yield
    except BaseException:
        with suppress(PS2Error):  # the fleet may be gone
            model.free()
        raise
