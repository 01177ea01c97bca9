"""What a training of embeddings has found, in a folder: NumPy arrays beside the metadata that pyspark writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.embeddings.names import Names
from ps2.algorithms.estimators.array_files import read_array, reading, write_arrays

Array = npt.NDArray[Any]
Float32s = npt.NDArray[np.float32]

FORMAT = "ps2.embedding.v1"
# The class of the model, by what was trained; and what one of its names is called.
MODELS = {
    "word2vec": ("ps2.algorithms.feature.Word2VecModel", "word"),
    "deepwalk": ("ps2.algorithms.graph.DeepWalkModel", "vertex"),
    "node2vec": ("ps2.algorithms.graph.Node2VecModel", "vertex"),
    "line": ("ps2.algorithms.graph.LINEModel", "vertex"),
}


@dataclass(frozen=True, eq=False)
class Content:
    """What is in the files.

    Attributes:
        kind: what was trained: one of ``MODELS``.
        names: of the vectors.
        vectors: float32, shape (n, d).
        contexts: likewise; None: there are none.
        counts: int64, shape (n,): how often each was there.
        exponent: power of these by which negatives were drawn.
        sources: int64, shape (n,): how often each was an edge's source, where counts are of targets; None: as often.
    """

    kind: str
    names: Names
    vectors: Float32s
    contexts: Float32s | None
    counts: Array
    exponent: float
    sources: Array | None = None


def write_embedding(url: str, content: Content) -> Any:
    """Write what was found; return what the metadata have to say of it.

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
        # All names in UTF-8, one behind the other, and where each ends.
        ends = np.cumsum(np.array([len(name.encode()) for name in names.values.to_pylist()], np.int64))
        text = "".join(names.values.to_pylist()).encode()
        arrays |= {"names.npy": np.frombuffer(text, np.uint8), "ends.npy": ends}
    shape = list(content.vectors.shape)
    about = {"format": FORMAT, "kind": content.kind, "shape": shape, "exponent": content.exponent}
    return {**about, "files": write_arrays(url, arrays)}


def read_embedding(path: str, url: str, content: Any) -> Content:
    """Read what ``write_embedding`` has written.

    Args:
        path: what the user calls it.
        content: what ``write_embedding`` has returned.

    Raises:
        UsageError: it is of a version that is not known here.
        CheckpointCorruptError: the files are not what the metadata say.
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
        return Content(kind, names, vectors, contexts, counts, float(content["exponent"]), sources)


def _texts(text: Array, ends: Array) -> pa.Array:
    offsets = np.append(0, ends)
    if np.any(np.diff(offsets) < 0) or offsets[-1] != len(text):
        raise ValueError("names and where they end do not go together")
    data = text.tobytes()
    bounds = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    return pa.array([data[begin:end].decode() for begin, end in bounds], pa.string())
