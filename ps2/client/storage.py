"""Saves and loads rows of a matrix. Servers write and read the values; this process writes the manifest."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from ps2.client.batch import in_batch
from ps2.client.handle import H, Handle, create
from ps2.client.session import Session
from ps2.errors import PS2Error, UsageError
from ps2.matrix.partition import Partition
from ps2.matrix.route import Route
from ps2.protocol.messages import RequestId
from ps2.rpc.control import ServerControl
from ps2.storage import folders
from ps2.storage.files import remove, resolve_url, shared_url
from ps2.storage.manifest import (
    LoadMatrix,
    Manifest,
    SavedMatrix,
    SavedShard,
    SaveMatrix,
    array_kinds,
    file_name,
)
from ps2.transport.concurrent_calls import call_concurrently
from ps2.version import __version__

T = TypeVar("T")


def save(vector: Handle, rows: Sequence[int], url: str) -> None:
    """Let the servers write the given rows (ascending) of a vector's matrix, as rows 0, 1, ... of the saved matrix.

    A reader sees either the earlier save or the new save, never a mixture. The save is atomic per partition.
    """
    _check_no_batch("save")
    vector._check_usable()
    session, matrix = vector._session, vector._matrix
    fs, root = resolve_url(url)
    earlier_save = folders.read_manifest(url) if folders.is_complete(url) else None
    if earlier_save is not None and earlier_save.number:
        raise UsageError(f"{url}: expected a folder for saved rows, but it has checkpoint {earlier_save.number}")
    start_s, created_s = time.monotonic(), time.time()
    spec = replace(session.matrix(matrix).spec, rows=len(rows))
    save_id, attempts = uuid.uuid4().hex[:12], itertools.count()
    file_names: list[str] = []

    def attempt(route: Route, version: int, id: RequestId) -> SavedMatrix:
        # Each attempt uses new file names, because a server that was presumed dead may still be writing.
        stem = f"{save_id}-{next(attempts)}-"
        file_names.extend(file_name(stem, matrix, p, kind) for p in route.partitions for kind in array_kinds(spec))
        control, folder = _control(session, version), shared_url(url)

        def write(address: str, partitions: Sequence[Partition]) -> list[SavedShard]:
            indices = tuple(partition.index for partition in partitions)
            return control.save(address, SaveMatrix(matrix, tuple(rows), indices, folder, stem))

        shards = sorted(itertools.chain(*_call_servers(write, route)), key=lambda shard: shard.partition.index)
        generations = dict.fromkeys(range(len(rows)), 0)
        return SavedMatrix(matrix, spec, route.bounds, generations, {}, len(rows), (), tuple(shards))

    try:
        saved = session.with_stable_route(matrix, attempt)
        manifest = Manifest(0, None, created_s, 0.0, time.monotonic() - start_s, __version__, (saved,))
        folders.check_present(url, manifest)
        folders.write_manifest(url, manifest)
    except BaseException:
        _remove(fs, root, file_names)
        raise
    saved_names = {file.name for *_, file in manifest.files()}
    old_names = [file.name for *_, file in earlier_save.files()] if earlier_save is not None else []
    _remove(fs, root, [name for name in (*file_names, *old_names) if name not in saved_names])


def load(kind: type[H], url: str, rows: int) -> H:
    """Create a vector of class ``kind`` from a save of a single row, in a matrix of ``rows`` rows."""
    saved = saved_matrix(url)
    if saved.rows != (0,):
        raise UsageError(f"{url}: expected a save of one vector, but this save has {len(saved.rows)} rows")
    return _create_from_save(kind, saved, rows, url)


def load_rows(kind: type[H], url: str, name: str | None = None) -> H:
    """Create a matrix from the rows that ``save`` wrote; return its first row, named ``name``.

    After any error nothing stays allocated.
    """
    saved = saved_matrix(url)
    return _create_from_save(kind, saved, saved.spec.rows, url, name)


def _create_from_save(kind: type[H], saved: SavedMatrix, rows: int, url: str, name: str | None = None) -> H:
    # Without ``wire``, because clients must be able to read saved values exactly, even those too large for 16 bits.
    vector = create(kind, replace(saved.spec, rows=rows, wire=None), name)
    try:
        _fill(vector, saved, url)
    except BaseException:
        with suppress(PS2Error):
            vector.free()
        raise
    return vector


def saved_matrix(url: str) -> SavedMatrix:
    """Return the description of the saved matrix from the manifest; raise UsageError if it has several matrices."""
    _check_no_batch("load")
    matrices = folders.read_manifest(url).matrices
    if len(matrices) != 1:
        raise UsageError(
            f"{url}: expected a save of one matrix, but this is a checkpoint of {len(matrices)}; "
            "load it with PS2Context.getOrCreate(restore=...)"
        )
    return matrices[0]


def _fill(vector: Handle, saved: SavedMatrix, url: str) -> None:
    """Let the servers read saved rows into a new matrix. After an error, the matrix is unusable."""
    session, matrix = vector._session, vector._matrix

    def attempt(route: Route, version: int, id: RequestId) -> None:
        control, folder = _control(session, version), shared_url(url)
        spec = session.matrix(matrix).spec

        def read(address: str, partitions: Sequence[Partition]) -> None:
            load = LoadMatrix(matrix, spec, tuple(partitions), saved.spec, saved.sources(partitions), saved.rows)
            control.fill(address, folder, load, id)

        _call_servers(read, route)

    session.with_stable_route(matrix, attempt)


def _check_no_batch(name: str) -> None:
    if in_batch():
        raise UsageError(f"{name} cannot be part of a batch: call it before or after")


def _remove(fs: Any, root: str, names: Iterable[str]) -> None:
    for name in names:
        remove(fs, f"{root}/{name}")


def _control(session: Session, version: int) -> ServerControl:
    control = ServerControl(session.network)
    control.route_version = version
    return control


def _call_servers(call: Callable[[str, Sequence[Partition]], T], route: Route) -> list[T]:
    """Call ``call(address, partitions)`` for all servers in parallel."""
    by_server: dict[str, list[Partition]] = {}
    for partition, address in zip(route.partitions, route.addresses, strict=True):
        by_server.setdefault(address, []).append(partition)
    return call_concurrently(by_server, lambda address: call(address, by_server[address]))
