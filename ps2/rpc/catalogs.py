"""The catalog of named matrices that a coordinator publishes on its servers, for its successor and other readers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from ps2.storage.manifest import SavedMatrix, matrices_from_json, matrix_to_json


@dataclass(frozen=True)
class PublishedCatalog:
    """The named matrices of one namespace.

    Attributes:
        number: route version and count of publications; the newer catalog has the larger number.
        servers: the id of each server, in order of index.
    """

    number: tuple[int, int]
    servers: tuple[str, ...]
    matrices: tuple[SavedMatrix, ...]

    def encode(self) -> bytes:
        matrices = [matrix_to_json(matrix) for matrix in self.matrices]
        return json.dumps({"number": self.number, "servers": self.servers, "matrices": matrices}).encode()


def newest_catalog(catalogs: Iterable[bytes]) -> PublishedCatalog | None:
    """Return the newest of encoded catalogs, of which b"" are none; None if there is none.

    Raises CheckpointCorruptError if a catalog cannot be decoded.
    """
    contents = [json.loads(catalog) for catalog in catalogs if catalog]
    if not contents:
        return None
    content = max(contents, key=lambda content: content["number"])
    first, second = content["number"]
    matrices = matrices_from_json(content["matrices"], "the driver's catalog")
    return PublishedCatalog((first, second), tuple(content["servers"]), matrices)


def names_by_matrix(catalogs: Iterable[bytes]) -> dict[int, dict[str, int]]:
    """Return the rows of the named vectors in the newest catalog: matrix -> name -> row."""
    catalog = newest_catalog(catalogs)
    return {} if catalog is None else {matrix.id: dict(matrix.names) for matrix in catalog.matrices}
