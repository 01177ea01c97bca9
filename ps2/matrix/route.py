"""The route of a matrix: which server holds which partition."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.matrix.partition import Partition, partitions


@dataclass(frozen=True)
class Route:
    """Where a matrix's partitions are.

    Attributes:
        version: grows on every change.
        bounds: the ``n + 1`` ascending column bounds of ``n`` partitions.
        addresses: ``host:port`` of each partition's server.
    """

    version: int
    bounds: tuple[int, ...]
    addresses: tuple[str, ...]

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return partitions(self.bounds)

    @property
    def servers(self) -> tuple[str, ...]:
        """Each server's address once, in the order of its first partition."""
        return tuple(dict.fromkeys(self.addresses))
