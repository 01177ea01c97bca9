"""Stores the catalog of named vectors on the servers of an attached fleet, for a later coordinator."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ps2.coordinator.recovery import backups
from ps2.coordinator.server_registry import ServerRegistry
from ps2.errors import CheckpointCorruptError, PS2Error
from ps2.rpc.catalogs import PublishedCatalog, newest_catalog
from ps2.rpc.control import Activation, ServerControl, ServerInfo
from ps2.storage.manifest import SavedMatrix

log = logging.getLogger(__name__)


class CatalogPublisher:
    """Stores the named matrices of one coordinator on all servers."""

    def __init__(self, servers: ServerControl, registry: ServerRegistry, coordinator: str, replicas: int) -> None:
        self._servers = servers
        self._registry = registry
        self._coordinator = coordinator
        self._replicas = replicas
        self._count = 0  # number of published versions

    def publish(self, matrices: Sequence[SavedMatrix]) -> None:
        self._count += 1
        servers = tuple(server_id for server_id, _ in self._registry.members())
        named = tuple(matrix for matrix in matrices if matrix.names)
        catalog = PublishedCatalog((self._servers.route_version, self._count), servers, named).encode()
        addresses = self._registry.addresses()
        for address, backup in zip(addresses, backups(addresses, (), self._replicas), strict=True):
            try:
                self._servers.activate(address, Activation(self._coordinator, backup=backup, catalog=catalog))
            except PS2Error as error:  # other servers have stored the catalog
                log.warning("storing the catalog on server %s: %s", address, error)


def matrices_to_adopt(servers: Sequence[ServerInfo]) -> tuple[SavedMatrix, ...]:
    """Return the previous coordinator's named matrices; () if a server was restarted after it published them."""
    try:
        catalog = newest_catalog(server.catalog for server in servers)
    except CheckpointCorruptError as error:
        log.warning("%s", error)
        return ()
    if catalog is None:
        return ()
    if list(catalog.servers) != [server.server_id for server in servers]:
        log.warning("servers were restarted, or are in another order: the previous driver's matrices are dropped")
        return ()
    return catalog.matrices
