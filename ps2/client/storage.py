"""A vector in a folder: NumPy files and, renamed into place last, the manifest that names them."""

from __future__ import annotations

import contextlib
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ps2.client import plans
from ps2.client.batch import in_batch
from ps2.errors import CheckpointCorruptError, CheckpointMissingError, UsageError
from ps2.files import npy_header, place, read_json, read_npy_header, remove, write_json
from ps2.ops.table import Array
from ps2.partition import MatrixSpec

if TYPE_CHECKING:
    from ps2.client.dcv import DCV

MANIFEST = "manifest.json"
FORMAT = "ps2.vector.v1"
WINDOW_BYTES = 64 << 20
KEYS_PER_PUSH = 8 << 20


@dataclass(frozen=True)
class _File:
    """One array of a saved vector: a .npy file, the number of its values, and the checksum of their bytes."""

    name: str
    count: int
    crc32: int


@dataclass(frozen=True)
class _Manifest:
    """What a saved vector consists of; a dense one of "values", a sparse one of "keys" and "values"."""

    dim: int
    dtype: str
    kind: str
    files: dict[str, _File]


def save(vector: DCV, url: str) -> None:
    """Write a vector; a reader sees the save that was there before, or this one, never a mixture."""
    if in_batch():
        raise UsageError("save cannot be part of a batch: call it before or after")
    vector = vector._as_stored()
    fs, root = place(url)
    fs.makedirs(root, exist_ok=True)
    before = _read_manifest(fs, root)
    unique = uuid.uuid4().hex[:12]
    with contextlib.ExitStack() as undo:

        def write(name: str, dtype: np.dtype[Any], count: int, windows: Any) -> _File:
            undo.callback(remove, fs, f"{root}/{name}-{unique}.npy")
            return _write(fs, root, f"{name}-{unique}.npy", dtype, count, windows)

        if vector.isSparse:
            keys, values = vector.pull()
            files = {
                "keys": write("keys", keys.dtype, keys.size, [keys]),
                "values": write("values", values.dtype, values.size, [values]),
            }
        else:
            files = {"values": write("values", vector.dtype, vector.dim, _windows(vector))}
        manifest = _Manifest(vector.dim, vector.dtype.name, "sparse" if vector.isSparse else "dense", files)
        write_json(fs, f"{root}/{MANIFEST}", {"format": FORMAT, **asdict(manifest)})
        undo.pop_all()
    for entry in before.files.values() if before else ():
        remove(fs, f"{root}/{entry.name}")


def load(url: str, rows: int) -> DCV:
    """Make a vector of what ``save`` wrote."""
    from ps2.client.dcv import DCV

    if in_batch():
        raise UsageError("load cannot be part of a batch: call it before or after")
    fs, root = place(url)
    manifest = _existing(fs, root)
    if manifest.kind == "sparse":
        keys = _read_whole(fs, root, manifest.files["keys"], np.dtype(np.int64))
        values = _read_whole(fs, root, manifest.files["values"], np.dtype(manifest.dtype))
        if keys.size != values.size or (keys.size and not 0 <= keys.min() <= keys.max() < manifest.dim):
            raise CheckpointCorruptError(f"{url}: expected one value for each of its keys, and keys below its dim")
        vector = DCV.sparse(manifest.dim, rows, manifest.dtype)
        for start in range(0, keys.size, KEYS_PER_PUSH):
            some = slice(start, start + KEYS_PER_PUSH)
            vector.push(values[some], keys[some])
        return vector
    entry = manifest.files["values"]
    if entry.count != manifest.dim:
        raise CheckpointCorruptError(f"{url}: expected {manifest.dim} values, got a file of {entry.count}")
    vector = DCV.dense(manifest.dim, rows, manifest.dtype)
    for start, window in _read(fs, root, entry, vector.dtype):
        vector._session.run([plans.push(vector._target(), "push", window, start, start + window.size)])
    return vector


def read_values(url: str) -> Array:
    """Read the values of a saved vector into this process; needs no fleet."""
    fs, root = place(url)
    manifest = _existing(fs, root)
    return _read_whole(fs, root, manifest.files["values"], np.dtype(manifest.dtype))


def _windows(vector: DCV) -> Any:
    step = WINDOW_BYTES // vector.dtype.itemsize
    for start in range(0, vector.dim, step):
        yield vector._session.run([plans.pull(vector._target(), start, min(start + step, vector.dim))])[0]


def _write(fs: Any, root: str, name: str, dtype: np.dtype[Any], count: int, windows: Any) -> _File:
    checksum = 0
    with fs.open(f"{root}/{name}", "wb") as file:
        file.write(npy_header(dtype, (count,)))
        for window in windows:
            data = window.tobytes()
            checksum = zlib.crc32(data, checksum)
            file.write(data)
    return _File(name, count, checksum)


def _read_whole(fs: Any, root: str, entry: _File, dtype: np.dtype[Any]) -> Array:
    return np.concatenate([np.empty(0, dtype), *(window for _, window in _read(fs, root, entry, dtype))])


def _read(fs: Any, root: str, entry: _File, dtype: np.dtype[Any]) -> Iterator[tuple[int, Array]]:
    """Yield (start, values) window by window, never more than announced; check count and checksum at the end."""
    path = f"{root}/{entry.name}"
    start = checksum = 0
    try:
        with fs.open(path, "rb") as file:
            if (found := read_npy_header(path, file).dtype) != dtype:
                raise CheckpointCorruptError(f"{path}: expected values of {dtype}, got {found}")
            while data := file.read(WINDOW_BYTES):
                window = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)
                if window.nbytes != len(data) or start + window.size > entry.count:
                    raise CheckpointCorruptError(
                        f"{path}: expected {entry.count} values of {dtype}, got another length"
                    )
                checksum = zlib.crc32(data, checksum)
                yield start, window
                start += window.size
    except FileNotFoundError as error:
        raise CheckpointCorruptError(f"{path}: named by the manifest, but not there") from error
    if (start, checksum) != (entry.count, entry.crc32):
        raise CheckpointCorruptError(
            f"{path}: expected {entry.count} values with checksum {entry.crc32}, got {start} with {checksum}"
        )


def _existing(fs: Any, root: str) -> _Manifest:
    manifest = _read_manifest(fs, root)
    if manifest is None:
        raise CheckpointMissingError(f"{root}: there is no {MANIFEST} here, so no complete save of a vector")
    return manifest


def _read_manifest(fs: Any, root: str) -> _Manifest | None:
    """Return the manifest, None if there is none; raise CheckpointCorruptError if it is not one of ours."""
    path = f"{root}/{MANIFEST}"
    content = read_json(fs, path, FORMAT)
    if content is None:
        return None
    try:
        spec = MatrixSpec(content["dim"], 1, content["dtype"], content["kind"])
        names = ("keys", "values") if spec.kind == "sparse" else ("values",)
        files = {name: _File(**content["files"][name]) for name in names}
    except (KeyError, TypeError, UsageError) as error:
        raise CheckpointCorruptError(f"{path}: a part of it is missing or wrong: {error!r}") from error
    return _Manifest(spec.dim, spec.dtype, spec.kind, files)
