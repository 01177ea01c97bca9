"""Files of vectors for indexes and databases: NumPy (Faiss), Parquet (Milvus and others), CSV for pgvector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.data.ids import Names
from ps2.errors import ConfigError, InputError
from ps2.storage.arrays import npy_header
from ps2.storage.files import recovery_errors, resolve_url, write_atomically

Array = npt.NDArray[Any]
FormName = Literal["npy", "parquet", "pgvector"]
FORMS: tuple[FormName, ...] = get_args(FormName)
# The number of vectors that are converted to text at once.
BLOCK_ROWS = 4096


def export_vectors(path: str, form: str, names: Names, vectors: Array) -> None:
    """Write ids and vectors in a form of ``FORMS``; ``MatrixFactors.exportVectors`` describes forms and errors."""
    if form not in FORMS:
        raise ConfigError(f"form: expected one of {', '.join(FORMS)}, got {form!r}")
    fs, root = resolve_url(path, "path")
    vectors = np.ascontiguousarray(vectors, "<f4")
    if form == "npy":
        with recovery_errors(root, "making the folder"):
            fs.makedirs(root, exist_ok=True)
        ids = names.values.to_numpy() if names.are_integers else np.array(names[:], np.str_)
        for name, array in (("ids", ids), ("vectors", vectors)):
            write_atomically(fs, f"{root}/{name}.npy", [npy_header(array.dtype, array.shape), array.tobytes()])
        return
    write_atomically(fs, root, _parquet(names, vectors) if form == "parquet" else _csv_lines(path, names, vectors))


def text_rows(vectors: Array, separator: bytes) -> list[bytes]:
    """Return each vector as text: the shortest numbers from which the same float32 are read."""
    elements: Any = vectors.astype("S")
    return [separator.join(row) for row in elements.tolist()]


def _parquet(names: Names, vectors: Array) -> Iterator[Any]:
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    schema = pa.schema({"id": names.values.type, "vector": pa.list_(pa.float32())})
    with pq.ParquetWriter(sink, schema) as writer:
        for begin in range(0, len(names), BLOCK_ROWS):
            block = vectors[begin : begin + BLOCK_ROWS]
            offsets = pa.array(np.arange(len(block) + 1) * block.shape[1], pa.int32())
            rows = pa.ListArray.from_arrays(offsets, pa.array(block.reshape(-1)))
            writer.write_batch(pa.record_batch([names.values[begin : begin + BLOCK_ROWS], rows], schema=schema))
    yield sink.getvalue()


def _csv_lines(path: str, names: Names, vectors: Array) -> Iterator[bytes]:
    for begin in range(0, len(names), BLOCK_ROWS):
        ids = [str(name) for name in names[begin : begin + BLOCK_ROWS]]
        if bad := next((text for text in ids if "\0" in text), None):
            raise InputError(f"{path}: expected ids without NUL, which PostgreSQL does not store, got {bad!r:.100}")
        if not names.are_integers:
            ids = ['"' + text.replace('"', '""') + '"' for text in ids]
        rows = text_rows(vectors[begin : begin + BLOCK_ROWS], b",")
        yield b"".join(b'%b,"[%b]"\n' % (text.encode(), row) for text, row in zip(ids, rows, strict=True))
