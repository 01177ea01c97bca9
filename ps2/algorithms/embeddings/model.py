"""Trained embeddings, without Spark and servers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.frame.array_files import ArrayModel, ModelFiles
from ps2.algorithms.frame.name_files import NAME_ARRAYS, name_arrays, names_from_arrays
from ps2.array_types import Float32s, Float64s, Int64s
from ps2.data.ids import Names
from ps2.data.plain_arrays import as_array
from ps2.errors import ConfigError, InputError, ShapeError
from ps2.number_checks import is_whole
from ps2.plot_extra import PlotPath, needs_matplotlib, save_plot
from ps2.storage.files import resolve_url, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = npt.NDArray[Any]

# The number of pairs that are scored at once, and of vectors that are converted to text at once.
BLOCK_PAIRS, BLOCK_ROWS = 1 << 16, 4096
# Characters at which readers of word2vec's format end a name or a line.
SPACE = re.compile(r"[\s\x00]")
# For each kind of training: the public model class, and the word for a name in error messages.
MODELS = {
    "word2vec": ("ps2.algorithms.feature.Word2VecModel", "word"),
    "deepwalk": ("ps2.algorithms.graph.DeepWalkModel", "vertex"),
    "node2vec": ("ps2.algorithms.graph.Node2VecModel", "vertex"),
    "line": ("ps2.algorithms.graph.LINEModel", "vertex"),
}


class Embedding(ArrayModel):
    """Vectors of words or vertices, trained by ``Word2Vec`` or an estimator of graphs; picklable.

    Attributes:
        names: words or vertex ids, the most frequent first: the rows of ``vectors``.
        vectors: float32, shape (n, d).
        counts: int64, shape (n,): the occurrences of each name; 0 if unknown.
        contexts: float32, shape (n, d): the output vectors of the training, which ``score`` uses; None: not saved, or
            the same as ``vectors``, which ``score`` then uses.
        exponent: the exponent of the counts from which negatives were drawn.
        kind: the kind of training: "word2vec", "deepwalk", "node2vec" or "line".
        sources: int64, shape (n,): with directed edges, how often each name is a source; ``counts`` then count targets.
            None: ``counts`` count both.

    Example::

        words = Embedding.load("models/news")
        words.similar("oak", 10)  # [("elm", 0.93), ...]
    """

    _FILES = ModelFiles(
        "ps2.embedding.v1",
        "an embedding",
        {"vectors": "f", "counts": "i"},
        {"kind": str, "shape": tuple, "exponent": float},
        {"contexts": "f", "sources": "i", **NAME_ARRAYS},
    )

    def __init__(  # noqa: PLR0913 - most of them are keywords
        self,
        names: Names | Iterable[Any],
        vectors: npt.ArrayLike,
        counts: npt.ArrayLike | None = None,
        kind: str = "word2vec",
        contexts: npt.ArrayLike | None = None,
        exponent: float = 0.75,
        sources: npt.ArrayLike | None = None,
    ) -> None:
        """Raises:
        InputError: names are not all integers or all strings, or one is repeated.
        ShapeError: arrays do not match the number of names.
        """
        if kind not in MODELS:
            raise ConfigError(f"kind: expected one of {', '.join(MODELS)}, got {kind!r}")
        self.names = names if isinstance(names, Names) else Names.from_values(names, MODELS[kind][1])
        self.vectors: Float32s = np.ascontiguousarray(as_array("vectors", vectors), np.float32)
        n = len(self.names)
        self.counts: Array = np.zeros(n, np.int64) if counts is None else np.asarray(counts, np.int64)
        self.contexts = None if contexts is None else np.ascontiguousarray(contexts, np.float32)
        self.sources: Array | None = None if sources is None else np.asarray(sources, np.int64)
        self.kind, self.exponent = kind, float(exponent)
        if self.contexts is not None and self.contexts.shape != self.vectors.shape:
            raise ShapeError(f"contexts: expected shape {self.vectors.shape}, got {self.contexts.shape}")
        if self.sources is not None and self.sources.shape != (n,):
            raise ShapeError(f"sources: expected one number for each of {n} names, got shape {self.sources.shape}")
        if self.vectors.ndim != 2 or len(self.vectors) != n or self.counts.shape != (n,):
            raise ShapeError(
                f"vectors: expected one, and one count, for each of {n} names, got shapes {self.vectors.shape} and "
                f"{self.counts.shape}"
            )

    def __repr__(self) -> str:
        return f"Embedding({self.kind!r}, n={len(self)}, dim={self.dim})"

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: Any) -> bool:
        return name in self.names

    def __getitem__(self, name: Any) -> Float32s:
        """Return the vector of a name.

        Raises:
            InputError: the name has no vector.
        """
        return self.vectors[self.names.position(name)]

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        return int(self.vectors.shape[1])

    @property
    def is_light(self) -> bool:
        """Whether it is small enough to travel in a closure."""
        return False

    # -- files -----------------------------------------------------------------------------------------------------

    @property
    def _MODEL_CLASS(self) -> str:  # type: ignore[override]
        return MODELS[self.kind][0]

    def _params(self) -> dict[str, Any]:
        return {"vectorSize": self.dim}

    def _arrays_to_write(self) -> dict[str, Array]:
        optional = {"contexts": self.contexts, "sources": self.sources}
        arrays = {name: array for name, array in optional.items() if array is not None}
        return {**super()._arrays_to_write(), **arrays, **name_arrays(self.names)}

    def _values_to_write(self) -> dict[str, Any]:
        return {"kind": self.kind, "shape": list(self.vectors.shape), "exponent": self.exponent}

    @classmethod
    def _make(cls, arrays: dict[str, Any], values: dict[str, Any]) -> Embedding:
        kind, shape, vectors = values["kind"], values["shape"], arrays["vectors"]
        if kind not in MODELS or vectors.shape != shape:
            raise ValueError(f"expected vectors of shape {shape} and a known kind, got {vectors.shape} and {kind!r}")
        contexts, sources = arrays.get("contexts"), arrays.get("sources")
        names = names_from_arrays(arrays, MODELS[kind][1])
        return Embedding(names, vectors, arrays["counts"], kind, contexts, values["exponent"], sources)

    def saveWord2Vec(self, path: str, binary: bool = False) -> None:
        """Write a file in word2vec's format, which gensim's ``KeyedVectors.load_word2vec_format(path, binary)`` reads.

        The first line has the number of vectors and their dimension. Then each name is followed by a space and its
        numbers: in text separated by spaces, in binary as little-endian float32.

        Args:
            path: a file, local or an fsspec URL, which is replaced.
            binary: whether to write numbers in binary.

        Raises:
            InputError: a name is empty or has white space, which would end it in such a file.
            RecoveryError: the file system refuses.
        """
        texts = [str(name) for name in self.names.values.to_pylist()]
        for text in texts:
            if not text or SPACE.search(text):
                raise InputError(
                    f"{path}: expected names without white space, which ends them in such a file, got {text!r:.100}"
                )
        fs, root = resolve_url(path, "path")
        write_whole(fs, root, _word2vec_blocks(texts, self.vectors, binary))

    # -- neighbours ------------------------------------------------------------------------------------------------

    def similar(self, name: Any, n: int = 10) -> list[tuple[Any, float]]:
        """Return the names with the most similar vectors and their cosines, the most similar first.

        Args:
            name: a name, which the result leaves out; or a vector, shape (dim,).
            n: maximum number of names.

        Raises:
            InputError: the name has no vector, or a number of the vector is not finite.
            ShapeError: the vector has another size.
            ConfigError: n is not an integer, or below 1.
        """
        if not is_whole(n) or n < 1:
            raise ConfigError(f"n: expected an integer, at least 1, got {n!r}")
        if isinstance(name, (str, int, np.integer)):
            own = self.names.position(name)
            cosines = self._units @ self._units[own]
            cosines[own] = -np.inf
            count = min(n, len(self) - 1)
        else:
            cosines = self._units @ self._unit(name)
            count = min(n, len(self))
        positions = _largest(cosines, count)
        return list(zip(self.names.named(positions), cosines[positions].astype(float).tolist(), strict=True))

    def score(self, first: Sequence[Any], second: Sequence[Any], directed: bool = False) -> Float64s:
        """Return the log of how often each pair is expected, up to a constant: for link prediction.

        With negatives drawn by n ** e, v . c tends to log(n12 / (n1 n2 ** e)) plus a constant, where n12 counts the
        pair (Levy and Goldberg 2014, equation 8). So the score is v . c + log n1 + e log n2, with v the vector of the
        first, c the context of the second, n1 how often the first is a source, n2 how often the second is a target.
        Undirected, it is the mean of both directions.

        Raises:
            InputError: a name has no vector.
        """
        positions = self.names.known(first), self.names.known(second)
        if len(positions[0]) != len(positions[1]):
            raise ShapeError(f"second: expected {len(positions[0])} names, as many as first, got {len(positions[1])}")
        return self.expected(*positions, directed)

    def expected(self, first: Int64s, second: Int64s, directed: bool) -> Float64s:
        """Like ``score``, for positions of names."""
        scores = self._expected(first, second)
        return scores if directed else (scores + self._expected(second, first)) / 2

    def _expected(self, first: Int64s, second: Int64s) -> Float64s:
        contexts = self.vectors if self.contexts is None else self.contexts
        sources = self.counts if self.sources is None else self.sources
        log_sources, log_targets = (np.log(np.maximum(counts, 1)) for counts in (sources, self.counts))
        scores = log_sources[first] + self.exponent * log_targets[second]
        for begin in range(0, len(scores), BLOCK_PAIRS):
            block = slice(begin, begin + BLOCK_PAIRS)
            scores[block] += np.einsum("nd,nd->n", self.vectors[first[block]], contexts[second[block]])
        return scores

    def means(self, lists: pa.Array) -> Float64s:
        """Return the mean vector of each list of an Arrow array, shape (n, dim); 0 for an empty list. Names without a
        vector count as zeros, as in pyspark.ml."""
        offsets = lists.offsets.to_numpy().astype(np.int64)
        positions = self.names.positions(lists.values[offsets[0] : offsets[-1]])
        bounds = offsets - offsets[0]
        sums = np.zeros((len(lists), self.dim))
        for row, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
            known = positions[begin:end]
            sums[row] = self.vectors[known[known >= 0]].sum(axis=0, dtype=np.float64)
        return sums / np.maximum(np.diff(bounds), 1)[:, None]

    def transform(self, sentences: Iterable[Sequence[Any]]) -> Float64s:
        """Return the mean vector of each sentence, a list of names; see ``means``.

        Raises:
            InputError: a sentence is a text, or has a name of another type.
        """
        all_sentences = list(sentences)
        expected = f"sentences: expected lists of names, each {self.names.values.type}"
        for sentence in all_sentences:  # list() of a text would be its letters
            if isinstance(sentence, (str, bytes)):
                raise InputError(f"{expected}, got {sentence!r:.80}")
        try:
            lists = pa.array([list(sentence) for sentence in all_sentences], pa.list_(self.names.values.type))
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise InputError(f"{expected}: {error}") from error
        return self.means(lists)

    def plane(self) -> tuple[Float64s, Float64s]:
        """Return the vectors' two largest principal components, shape (n, 2), and each one's share of the variance."""
        x = self.vectors.astype(np.float64)
        x -= x.mean(axis=0)
        sizes, axes = np.linalg.eigh(x.T @ x)
        missing = (0, max(0, 2 - self.dim))
        points = np.pad(x @ axes[:, ::-1][:, :2], ((0, 0), missing))
        # Fix the sign of each axis: its component of largest magnitude is positive.
        signs = np.sign(points[np.abs(points).argmax(axis=0), [0, 1]])
        return points * np.where(signs == 0, 1.0, signs), np.pad(sizes[::-1][:2] / max(sizes.sum(), 1e-300), missing)

    def plotEmbedding(
        self,
        path: PlotPath = None,
        classes: Mapping[Any, Any] | None = None,
        labels: Sequence[Any] | None = None,
        *,
        ax: Axes | None = None,
    ) -> Axes:
        """Plot the vectors in the plane of their two largest principal components.

        Args:
            path: a file to which the plot is also written: PNG, or the format of its suffix (.svg, .pdf).
            classes: name -> class; each of the five largest classes has its colour, and all other names are grey.
            labels: names that are written beside their points; None: all names if there are 60 at most, else none.
            ax: the Axes to draw in; None: a new figure without pyplot, which opens no window; a notebook shows it.

        Returns:
            The Axes with the plot.

        Raises:
            ConfigError: matplotlib is not installed.
            InputError: a label has no vector.
        """
        with needs_matplotlib("plotEmbedding"):
            from ps2.algorithms.embeddings.plotting import Plane, draw_plane
        plane = Plane(self.names, *self.plane(), self.dim)
        return save_plot(draw_plane(plane, classes, labels, ax), path)

    @cached_property
    def _units(self) -> Float32s:
        """The vectors scaled to length 1; zeros stay."""
        # Sums are float64: in float32, the square of 1e-23 is 0, and the square of 2e19 is infinite.
        lengths = np.sqrt(np.einsum("nd,nd->n", self.vectors, self.vectors, dtype=np.float64))
        units = np.empty_like(self.vectors)
        return np.divide(self.vectors, np.where(lengths > 0, lengths, 1.0)[:, None], out=units, casting="same_kind")

    def _unit(self, vector: Any) -> Float32s:
        unit = as_array("vector", vector.toArray() if hasattr(vector, "toArray") else vector).astype(np.float64)
        if unit.shape != (self.dim,):
            raise ShapeError(f"vector: expected shape ({self.dim},), got {unit.shape}")
        if not np.isfinite(unit).all():
            raise InputError("vector: expected finite numbers, got NaN or infinity")
        if largest := np.abs(unit).max(initial=0.0):
            unit = unit / largest  # the square of a large float64 is infinite
            unit /= np.linalg.norm(unit)
        return unit.astype(np.float32)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


def _largest(values: Array, count: int) -> Array:
    """Return the positions of the largest values, in descending order; ties go to the lower position."""
    if count < 1:
        return np.empty(0, np.int64)
    smallest = np.partition(values, len(values) - count)[len(values) - count]
    positions = np.flatnonzero(values >= smallest)
    return positions[np.argsort(-values[positions], kind="stable")[:count]]


def _word2vec_blocks(texts: list[str], vectors: Float32s, binary: bool) -> Iterator[bytes]:
    yield f"{len(vectors)} {vectors.shape[1]}\n".encode()
    for begin in range(0, len(texts), BLOCK_ROWS):
        block = slice(begin, begin + BLOCK_ROWS)
        if binary:
            rows = [row.tobytes() for row in np.ascontiguousarray(vectors[block], "<f4")]
        else:  # the shortest text that reads back exactly
            numbers: Any = vectors[block].astype("S")
            rows = [b" ".join(row) for row in numbers.tolist()]
        yield b"".join(b"%b %b\n" % (text.encode(), row) for text, row in zip(texts[block], rows, strict=True))
