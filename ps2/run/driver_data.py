"""What a run needs of data in the driver's memory, whatever holds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any


class LocalData(ABC):
    """Rows in the driver's memory, in order."""

    @abstractmethod
    def __init__(self, data: Any) -> None: ...

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def serialized(self, begin: int, end: int) -> bytes:
        """Return rows in an interval as ``read`` takes them."""

    @staticmethod
    @abstractmethod
    def read(part: bytes) -> Iterable[Any]:
        """Return what a worker gets of a part."""

    def parts(self, count: int) -> list[bytes]:
        """Return equal parts, in order."""
        bounds = [len(self) * part // count for part in range(count + 1)]
        return [self.serialized(bounds[part], bounds[part + 1]) for part in range(count)]
