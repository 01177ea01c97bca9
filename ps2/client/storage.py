"""``save`` and ``load``: the servers write and read the values of a vector, this process only what they consist of."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from fsspec.implementations.local import LocalFileSystem

from ps2.client.batch import in_batch
from ps2.errors import PS2Error, RecoveryError, TransientError, UsageError
from ps2.files import place, remove, reported
from ps2.ops.table import Array
from ps2.partition import Int64Array, MatrixSpec
from ps2.route import Route
from ps2.saved_vectors import SavedPart, SavedVector, as_parts, existing, find, kinds, read_part, write_manifest
from ps2.wire.control import ServerControl, StoredRow
from ps2.wire.messages import RequestId

if TYPE_CHECKING:
    from ps2.client.dcv import DCV

# Servers that are asked at once; further ones wait.
MAX_CALLS = 32

T = TypeVar("T")


def save(vector: DCV, url: str) -> None:
    """Let the servers write a vector; a reader sees the save that was there before, or this one, never a mixture."""
    _check_no_batch("save")
    vector._check_usable()
    fs, root = place(url)
    with reported(root, "making the folder"):
        fs.makedirs(root, exist_ok=True)
    before = find(fs, root)
    unique, attempts = uuid.uuid4().hex[:12], itertools.count()
    tried: list[str] = []

    def attempt(route: Route, version: int, id: RequestId) -> list[SavedPart]:
        # Never the names of an earlier attempt: a server that was taken for dead may still be writing.
        stem = f"{unique}-{next(attempts)}"
        tried.extend(f"{kind}-{stem}-{p.index}.npy" for kind in kinds(vector._spec) for p in route.partitions)
        control = _control(vector, version)
        found = _on_all(lambda row: control.save_row(row, stem), _rows(vector, route, _reachable(fs, root, url)))
        return [part for parts in found for part in parts]

    try:
        parts = vector._session.at_one_version(vector._matrix, attempt)
        _check_present(fs, root, parts)
        write_manifest(fs, root, replace(vector._spec, rows=1), parts)
    except BaseException:
        _remove(fs, root, tried)
        raise
    now = {file.name for part in parts for file in part.files.values()}
    _remove(fs, root, [name for name in (*tried, *(before.names if before else ())) if name not in now])


def load(url: str, rows: int) -> DCV:
    """Make a vector of what ``save`` wrote."""
    _check_no_batch("load")
    fs, root = place(url)
    saved = as_parts(fs, root, existing(fs, root))
    vector = _vector_like(saved.spec, rows)
    try:

        def attempt(route: Route, version: int, id: RequestId) -> None:
            control = _control(vector, version)

            def read(row: StoredRow) -> None:
                mine = [route.partitions[index] for index in row.partitions]
                parts = [part for part in saved.parts if any(part.begin < p.end and p.begin < part.end for p in mine)]
                control.load_row(row, parts, id)

            _on_all(read, _rows(vector, route, _reachable(fs, root, url)))

        vector._session.at_one_version(vector._matrix, attempt)
    except BaseException:
        with contextlib.suppress(PS2Error):
            vector.free()
        raise
    return vector


def describe(url: str) -> SavedVector:
    """Return what a saved vector is, without its values; needs no fleet.

    Raises:
        CheckpointMissingError: there is no complete save at this place.
        CheckpointCorruptError: its manifest is not one of ours.
    """
    return existing(*place(url))


def read_values(url: str) -> Array:
    """Read the values of a saved dense vector into this process, in shape (dim,); needs no fleet.

    Raises:
        UsageError: it is a sparse one.
        CheckpointMissingError, CheckpointCorruptError: as ``DCV.load`` does.
    """
    fs, root, saved = _whole(url, "dense", "read_sparse")
    values = np.empty(saved.spec.dim, saved.spec.np_dtype)
    for part in saved.parts:
        with closing(read_part(fs, root, saved.spec, part)) as windows:
            for window in windows:
                values[window.start : window.start + window.values.size] = window.values
    return values


def read_sparse(url: str) -> tuple[Int64Array, Array]:
    """Read a saved sparse vector into this process as ``(keys, values)``, sorted by key; raises as ``read_values``."""
    fs, root, saved = _whole(url, "sparse", "read_values")
    keys, values = np.empty(saved.count, np.int64), np.empty(saved.count, saved.spec.np_dtype)
    at = 0
    for part in saved.parts:
        with closing(read_part(fs, root, saved.spec, part)) as windows:
            for window in windows:
                end = at + window.values.size
                assert window.keys is not None
                keys[at:end], values[at:end] = window.keys, window.values
                at = end
    order = np.argsort(keys)
    return keys[order], values[order]


def _whole(url: str, kind: str, other: str) -> tuple[Any, str, SavedVector]:
    fs, root = place(url)
    saved = existing(fs, root)
    if saved.spec.kind != kind:
        raise UsageError(f"{url}: expected a {kind} vector, this one is {saved.spec.kind}: see {other}")
    return fs, root, as_parts(fs, root, saved)


def _check_no_batch(name: str) -> None:
    if in_batch():
        raise UsageError(f"{name} cannot be part of a batch: call it before or after")


def _remove(fs: Any, root: str, names: Sequence[str]) -> None:
    for name in names:
        remove(fs, f"{root}/{name}")


def _vector_like(spec: MatrixSpec, rows: int) -> DCV:
    from ps2.client.dcv import DCV

    if spec.kind == "sparse":
        return DCV.sparse(spec.dim, rows, spec.dtype)
    return DCV.dense(spec.dim, rows, spec.dtype, align=spec.align)


def _control(vector: DCV, version: int) -> ServerControl:
    control = ServerControl(vector._session.transport)
    control.route_version = version
    return control


def _reachable(fs: Any, root: str, url: str) -> str:
    """Return the URL for a server: a path that is relative to this process's folder would be another one there."""
    return root if isinstance(fs, LocalFileSystem) else str(url)


def _rows(vector: DCV, route: Route, url: str) -> list[StoredRow]:
    """Return what each server holds of a vector."""
    by_server: dict[str, list[int]] = {}
    for index, address in enumerate(route.addresses):
        by_server.setdefault(address, []).append(index)
    return [StoredRow(address, vector._matrix, vector._row, mine, url) for address, mine in by_server.items()]


def _on_all(call: Callable[[StoredRow], T], rows: Sequence[StoredRow]) -> list[T]:
    """Ask all servers at once, and wait for all; raise what cannot pass by itself first."""
    with ThreadPoolExecutor(min(len(rows), MAX_CALLS), thread_name_prefix="ps2-files") as pool:
        calls = [pool.submit(call, row) for row in rows]
    errors = [error for error in (done.exception() for done in calls) if error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, TransientError)):
        raise error
    return [done.result() for done in calls]


def _check_present(fs: Any, root: str, parts: Sequence[SavedPart]) -> None:
    """Raise RecoveryError unless this process sees what the servers have written."""
    fs.invalidate_cache()
    for file in (file for part in parts for file in part.files.values()):
        path = f"{root}/{file.name}"
        try:
            with reported(path, "looking for it"):
                size = fs.info(path)["size"]
        except RecoveryError as error:
            raise RecoveryError(
                f"{error}; a server has written it: the url must be a place that the servers and this process share"
            ) from error
        if size is not None and size != file.nbytes:
            raise RecoveryError(f"{path}: a server has written {file.nbytes:,} bytes, and {size:,} are here")
