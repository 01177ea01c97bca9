"""The return values of ``onClock``: a ``Message`` to all workers, or ``STOP`` to end the run."""

from __future__ import annotations

from typing import Any

from ps2.errors import UsageError
from ps2.protocol.plain_data import encode


class Message:
    """Plain data that ``onClock`` returns for all workers: ``return ps2.Message(rate=0.1, done=[3, 5])``.

    Workers receive the message when they enter a later clock; see ``Worker.message``. The run keeps all messages, and
    checkpoints contain them.

    Attributes:
        encoded: the data in binary form.
    """

    __slots__ = ("encoded",)

    def __init__(self, *data: Any, **fields: Any) -> None:
        """Encode the data. Later changes of the data do not change the message.

        Args:
            data: one value: None, a bool, a 64-bit integer, a float, a string, a NumPy array of booleans or numbers, or
                a list or dict (with strings as keys) of such values.
            fields: instead of ``data``, the items of a dict.

        Raises:
            UsageError: the data contain a value of another type, which the message names.
            LimitError: the data take more than 64 MB.
        """
        if len(data) + bool(fields) != 1:
            raise UsageError(
                f"Message: expected one value, or values by name, got {len(data)} values and {len(fields)} names"
            )
        self.encoded = encode("Message", fields or data[0])

    def __repr__(self) -> str:
        return f"Message({len(self.encoded)} bytes)"


class Stop:
    """The type of ``STOP``. A copied or unpickled ``STOP`` is the same object."""

    def __reduce__(self) -> str:
        return "STOP"

    def __repr__(self) -> str:
        return "ps2.STOP"


# The return value of ``onClock`` that ends the run: all workers' loops end before the same clock.
STOP = Stop()
