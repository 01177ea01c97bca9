"""The route of a matrix: which server holds which partition."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.matrix.partition import MatrixSpec, Partition, partitions


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


def apart(spec: MatrixSpec, route: Route, other_spec: MatrixSpec, other_route: Route) -> str:
    """Return why equal columns of two matrices of a fleet do not lie at equal places; "" if they do: co-located."""
    if spec.kind != other_spec.kind:
        return f"one is {spec.kind}, the other {other_spec.kind}"
    if spec.kind == "sparse":
        return "they are of two sparse matrices, and each has slots of its own for its keys"
    if spec.dim != other_spec.dim:
        return f"{spec.dim:,} and {other_spec.dim:,} columns"
    if route.bounds != other_route.bounds:
        one, other = (f"align={s.align}, partitionsPerServer={s.partitions_per_server}" for s in (spec, other_spec))
        return f"their columns are cut differently, {one} and {other}"
    # Equal cuts are dealt out alike (``place``); addresses of two versions cannot be compared.
    if route.version == other_route.version and route.addresses != other_route.addresses:
        return "their partitions are on different servers"
    return ""
