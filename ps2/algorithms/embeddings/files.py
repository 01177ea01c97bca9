"""Files of a trained embedding: NumPy arrays beside the metadata that pyspark writes, or word2vec's format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.estimators.array_files import read_array, reading, write_arrays
from ps2.array_types import Float32s
from ps2.data.names import Names
from ps2.errors import InputError
from ps2.storage.files import resolve_url, write_whole

Array = npt.NDArray[Any]

FORMAT = "ps2.embedding.v1"
# Kind of training -> model class, and what errors call a name.
MODELS = {
    "word2vec": ("ps2.algorithms.feature.Word2VecModel", "word"),
    "deepwalk": ("ps2.algorithms.graph.DeepWalkModel", "vertex"),
    "node2vec": ("ps2.algorithms.graph.Node2VecModel", "vertex"),
    "line": ("ps2.algorithms.graph.LINEModel", "vertex"),
}


@dataclass(frozen=True, eq=False)
class EmbeddingContent:
    """Content of the files.

    Attributes:
        kind: what was trained: one of ``MODELS``.
        names: of the vectors.
        vectors: float32, shape (n, d).
        contexts: float32, shape (n, d); None: none were saved.
        counts: int64, shape (n,): occurrences of each name.
        exponent: of the counts, for drawing negatives.
        sources: int64, shape (n,): how often each is an edge's source, if ``counts`` are of targets; None: equal to
            them.
    """

    kind: str
    names: Names
    vectors: Float32s
    contexts: Float32s | None
    counts: Array
    exponent: float
    sources: Array | None = None


def write_embedding(url: str, content: EmbeddingContent) -> Any:
    """Write an embedding; return its entry in the metadata.

    Raises:
        RecoveryError: the file system refuses.
    """
    names = content.names
    arrays: dict[str, Array] = {"vectors.npy": content.vectors, "counts.npy": content.counts}
    if content.contexts is not None:
        arrays["contexts.npy"] = content.contexts
    if content.sources is not None:
        arrays["sources.npy"] = content.sources
    if names.are_integers:
        arrays["ids.npy"] = names.values.to_numpy()
    else:
        # All names in UTF-8, concatenated, and the end of each.
        ends = np.cumsum(np.array([len(name.encode()) for name in names.values.to_pylist()], np.int64))
        text = "".join(names.values.to_pylist()).encode()
        arrays |= {"names.npy": np.frombuffer(text, np.uint8), "ends.npy": ends}
    shape = list(content.vectors.shape)
    about = {"format": FORMAT, "kind": content.kind, "shape": shape, "exponent": content.exponent}
    return {**about, "files": write_arrays(url, arrays)}


def read_embedding(path: str, url: str, content: Any) -> EmbeddingContent:
    """Read an embedding.

    Args:
        path: the user's name of it, for errors.
        content: what ``write_embedding`` returned.

    Raises:
        UsageError: the format is of an unknown version.
        CheckpointCorruptError: the files do not match the metadata.
    """
    with reading(path, content, FORMAT, "an embedding"):
        files, kind = content["files"], content["kind"]
        what = MODELS[kind][1]
        vectors, counts = (read_array(url, f"{name}.npy", files) for name in ("vectors", "counts"))
        contexts, sources = (
            read_array(url, f"{name}.npy", files) if f"{name}.npy" in files else None
            for name in ("contexts", "sources")
        )
        if "ids.npy" in files:
            names = Names(pa.array(read_array(url, "ids.npy", files)), what)
        else:
            names = Names(_texts(read_array(url, "names.npy", files), read_array(url, "ends.npy", files)), what)
        if list(vectors.shape) != content["shape"] or not len(names) == len(vectors) == len(counts):
            raise ValueError(f"shapes {vectors.shape} and {counts.shape}, and {len(names)} names")
        if contexts is not None and contexts.shape != vectors.shape:
            raise ValueError(f"shapes {vectors.shape} and, of contexts, {contexts.shape}")
        if sources is not None and sources.shape != counts.shape:
            raise ValueError(f"shapes {counts.shape} and, of sources, {sources.shape}")
        return EmbeddingContent(kind, names, vectors, contexts, counts, float(content["exponent"]), sources)


def _texts(text: Array, ends: Array) -> pa.Array:
    offsets = np.append(0, ends)
    if np.any(np.diff(offsets) < 0) or offsets[-1] != len(text):
        raise ValueError("names and where they end do not go together")
    data = text.tobytes()
    bounds = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    return pa.array([data[begin:end].decode() for begin, end in bounds], pa.string())


# Vectors converted to text at once.
SOME = 4096
# Readers of the format end a name or a line at these.
SPACE = re.compile(r"[\s\x00]")


def write_word2vec(path: str, names: Names, vectors: Float32s, binary: bool) -> None:
    """Write vectors to a file, local or an fsspec URL, replacing it.

    Raises:
        InputError: a name is empty or has white space, which would end it in such a file.
        RecoveryError: the file system refuses.
    """
    texts = [str(name) for name in names.values.to_pylist()]
    for text in texts:
        if not text or SPACE.search(text):
            raise InputError(
                f"{path}: expected names without white space, which ends them in such a file, got {text!r:.100}"
            )
    fs, root = resolve_url(path, "path")
    write_whole(fs, root, _parts(texts, vectors, binary))


def _parts(texts: list[str], vectors: Float32s, binary: bool) -> Iterator[bytes]:
    yield f"{len(vectors)} {vectors.shape[1]}\n".encode()
    for begin in range(0, len(texts), SOME):
        some = slice(begin, begin + SOME)
        rows = _bytes(vectors[some]) if binary else _words(vectors[some])
        yield b"".join(b"%b %b\n" % (text.encode(), row) for text, row in zip(texts[some], rows, strict=True))


def _bytes(vectors: Float32s) -> list[bytes]:
    return [row.tobytes() for row in np.ascontiguousarray(vectors, "<f4")]


def _words(vectors: Float32s) -> list[bytes]:
    """Return numbers as the shortest text that reads back exactly."""
    words: Any = vectors.astype("S")
    return [b" ".join(row) for row in words.tolist()]
