"""The interface by which clients, coordinators and servers reach servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from ps2.protocol.messages import Request
from ps2.transport.exchange import Outcome

M = TypeVar("M", bound=Message)


class Network(Protocol):
    """Carries requests and control calls to servers. It does not retry, and does not interpret the requests."""

    def exchange(self, requests: Mapping[str, Sequence[Request]]) -> dict[str, list[Outcome]]:
        """Send requests to servers by address, and wait for the outcome of each.

        All servers work in parallel. Each runs its requests in order, whether or not earlier ones succeed.
        """
        ...

    def call(self, address: str, method: str, message: Message, reply: type[M], timeout_s: float) -> M:
        """Call a control rpc (``Service/Method``) and wait for its reply."""
        ...

    def close(self) -> None:
        """Close every connection; calls in flight fail."""
        ...
