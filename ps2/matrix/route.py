"""The route of a matrix: which server holds which partition."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.matrix.partition import MatrixSpec, Partition, partitions


@dataclass(frozen=True)
class Route:
    """The servers of a matrix's partitions.

    Attributes:
        version: the route's version, which grows with every change.
        bounds: the ``n + 1`` ascending column bounds of the ``n`` partitions; bounds of hash buckets if sparse.
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
        """The distinct server addresses, in the order of their first partition."""
        return tuple(dict.fromkeys(self.addresses))


def why_not_colocated(spec: MatrixSpec, route: Route, other_spec: MatrixSpec, other_route: Route) -> str:
    """Return why two matrices of a fleet are not co-located (equal columns on the same servers); "" if they are."""
    if spec.kind != other_spec.kind:
        return f"the first is {spec.kind}, the second {other_spec.kind}"
    if spec.kind == "sparse":
        return "the rows belong to two sparse matrices, and each assigns its own slots to keys"
    if spec.dim != other_spec.dim:
        return f"{spec.dim:,} and {other_spec.dim:,} columns"
    if route.bounds != other_route.bounds:
        left, right = (f"align={s.align}, partitionsPerServer={s.partitions_per_server}" for s in (spec, other_spec))
        return f"their columns are partitioned differently, {left} and {right}"
    # ``assign_owners`` assigns equal partitions to the same servers, so the addresses can differ only after a partition
    # was moved. Addresses of different route versions cannot be compared.
    if route.version == other_route.version and route.addresses != other_route.addresses:
        return "their partitions are on different servers"
    return ""
