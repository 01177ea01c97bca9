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
from ps2.algorithms.frame.vector_files import export_vectors, text_rows
from ps2.array_types import Float32s, Float64s, Int64s
from ps2.data.ids import Names
from ps2.data.plain_arrays import as_array
from ps2.errors import ConfigError, InputError, ShapeError
from ps2.number_checks import is_whole
from ps2.plot_extra import PlotPath, needs_matplotlib, save_plot
from ps2.storage.files import resolve_url, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = npt.NDArray[Any]

# The number of pairs that are scored at once, and the number of vectors that are converted to text at once.
BLOCK_PAIRS, BLOCK_ROWS = 1 << 16, 4096
# The characters that end a name or a line in word2vec's format.
SPACE = re.compile(r"[\s\x00]")
# For each kind of training: the public model class, and the term for a name in error messages.
MODELS = {
    "word2vec": ("ps2.algorithms.feature.Word2VecModel", "word"),
    "deepwalk": ("ps2.algorithms.graph.DeepWalkModel", "vertex"),
    "node2vec": ("ps2.algorithms.graph.Node2VecModel", "vertex"),
    "line": ("ps2.algorithms.graph.LINEModel", "vertex"),
}


class Embedding(ArrayModel):
    """Vectors of words or vertices, trained by ``Word2Vec`` or an estimator of graphs; picklable.

    Attributes:
        names: the words or vertex ids of the rows of ``vectors``, the most frequent first.
        vectors: the vectors, float32, shape (n, d).
        counts: the number of occurrences of each name, int64, shape (n,); 0: unknown.
        contexts: the output vectors of the training, float32, shape (n, d); None: they were not saved, or are the same
            as ``vectors``, which ``score`` then uses instead.
        exponent: the exponent of the counts from which negatives were drawn.
        kind: the kind of training: "word2vec", "deepwalk", "node2vec" or "line".
        sources: for directed edges, the number of edges from each vertex, int64, shape (n,); ``counts`` then has the
            number of edges to each vertex. None: ``counts`` includes both.

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

    def __init__(  # noqa: PLR0913 - most arguments are keywords
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
        InputError: names are not all integers or all strings, or a name is repeated.
        ShapeError: the shape of an array does not match the number of names.
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
            raise ShapeError(f"sources: expected a count for each of {n} names, got shape {self.sources.shape}")
        if self.vectors.ndim != 2 or len(self.vectors) != n or self.counts.shape != (n,):
            raise ShapeError(
                f"vectors and counts: expected a row and a count for each of {n} names, got shapes "
                f"{self.vectors.shape} and {self.counts.shape}"
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
        """The dimension of the vectors."""
        return int(self.vectors.shape[1])

    @property
    def is_light(self) -> bool:
        """Whether Spark may pickle the embedding with a task's function. Never: it is broadcast."""
        return False

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

        The first line has the number of vectors and their dimension. Then come each name, a space, and the elements of
        its vector: as text separated by spaces, or as little-endian float32.

        Args:
            path: a local file, or an fsspec URL; an existing file is replaced.
            binary: whether to write vectors as float32 instead of text.

        Raises:
            InputError: a name is empty or has white space, which would end the name in this format.
            RecoveryError: the file system reports an error.
        """
        texts = [str(name) for name in self.names.values.to_pylist()]
        for text in texts:
            if not text or SPACE.search(text):
                raise InputError(
                    f"{path}: expected names without white space, which ends a name in this format, got {text!r:.100}"
                )
        fs, root = resolve_url(path, "path")
        write_atomically(fs, root, _word2vec_blocks(texts, self.vectors, binary))

    def exportVectors(self, path: str, form: str = "parquet") -> None:
        """Write names and vectors for an index or a database; see ``MatrixFactors.exportVectors``."""
        export_vectors(path, form, self.names, self.vectors)

    def similar(self, name: Any, n: int = 10) -> list[tuple[Any, float]]:
        """Return the names with the most similar vectors and their cosines, the most similar first.

        Args:
            name: a name, which the result omits; or a vector, shape (dim,).
            n: the maximum number of names.

        Raises:
            InputError: the name has no vector, or an element of the vector is not finite.
            ShapeError: the vector has another dimension.
            ConfigError: n is not an integer, or is below 1.
        """
        if not is_whole(n) or n < 1:
            raise ConfigError(f"n: expected an integer, at least 1, got {n!r}")
        if isinstance(name, (str, int, np.integer)):
            position = self.names.position(name)
            cosines = self._units @ self._units[position]
            cosines[position] = -np.inf
            count = min(n, len(self) - 1)
        else:
            cosines = self._units @ self._unit(name)
            count = min(n, len(self))
        positions = _largest(cosines, count)
        return list(zip(self.names.named(positions), cosines[positions].astype(float).tolist(), strict=True))

    def score(self, first: Sequence[Any], second: Sequence[Any], directed: bool = False) -> Float64s:
        """Return the log of the expected number of occurrences of each pair, up to a constant, for link prediction.

        If negatives are drawn with probabilities proportional to n ** e, the trained v . c is about
        log(n12 / (n1 n2 ** e)) plus a constant, where n12 is the count of the pair (Levy and Goldberg 2014, equation
        8). So the score is v . c + log n1 + e log n2. v is the vector of the first name, and n1 its count as a source;
        c is the context of the second name, and n2 its count as a target. Undirected pairs get the mean score of both
        directions.

        Raises:
            InputError: a name has no vector.
        """
        positions = self.names.known(first), self.names.known(second)
        if len(positions[0]) != len(positions[1]):
            raise ShapeError(f"second: expected {len(positions[0])} names, as many as first, got {len(positions[1])}")
        return self.expected(*positions, directed)

    def expected(self, first: Int64s, second: Int64s, directed: bool) -> Float64s:
        """Like ``score``, for positions in ``names``."""
        scores = self._expected(first, second)
        return scores if directed else (scores + self._expected(second, first)) / 2

    def _expected(self, first: Int64s, second: Int64s) -> Float64s:
        """Return the scores of directed pairs."""
        contexts = self.vectors if self.contexts is None else self.contexts
        sources = self.counts if self.sources is None else self.sources
        log_sources, log_targets = (np.log(np.maximum(counts, 1)) for counts in (sources, self.counts))
        scores = log_sources[first] + self.exponent * log_targets[second]
        for begin in range(0, len(scores), BLOCK_PAIRS):
            block = slice(begin, begin + BLOCK_PAIRS)
            scores[block] += np.einsum("nd,nd->n", self.vectors[first[block]], contexts[second[block]])
        return scores

    def means(self, lists: pa.Array) -> Float64s:
        """Return the mean vector of each list of an Arrow array, shape (n, dim); 0 for an empty list.

        Names without a vector count as zero vectors, as in pyspark.ml.
        """
        offsets = lists.offsets.to_numpy().astype(np.int64)
        positions = self.names.positions(lists.values[offsets[0] : offsets[-1]])
        bounds = offsets - offsets[0]
        sums = np.zeros((len(lists), self.dim))
        for row, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
            row_positions = positions[begin:end]
            sums[row] = self.vectors[row_positions[row_positions >= 0]].sum(axis=0, dtype=np.float64)
        return sums / np.maximum(np.diff(bounds), 1)[:, None]

    def transform(self, sentences: Iterable[Sequence[Any]]) -> Float64s:
        """Return the mean vector of each sentence, a list of names; see ``means``.

        Raises:
            InputError: a sentence is a string instead of a list, or has a name of another type.
        """
        all_sentences = list(sentences)
        expected = f"sentences: expected lists of names, each {self.names.values.type}"
        for sentence in all_sentences:  # list() would split a string into characters
            if isinstance(sentence, (str, bytes)):
                raise InputError(f"{expected}, got {sentence!r:.80}")
        try:
            lists = pa.array([list(sentence) for sentence in all_sentences], pa.list_(self.names.values.type))
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise InputError(f"{expected}: {error}") from error
        return self.means(lists)

    def plane(self) -> tuple[Float64s, Float64s]:
        """Return coordinates in the two largest principal components, (n, 2), and the shares of the variance."""
        x = self.vectors.astype(np.float64)
        x -= x.mean(axis=0)
        variances, axes = np.linalg.eigh(x.T @ x)
        missing = (0, max(0, 2 - self.dim))
        points = np.pad(x @ axes[:, ::-1][:, :2], ((0, 0), missing))
        # Fix the sign of each axis: the coordinate with the largest absolute value is positive.
        signs = np.sign(points[np.abs(points).argmax(axis=0), [0, 1]])
        return points * np.where(signs == 0, 1.0, signs), np.pad(
            variances[::-1][:2] / max(variances.sum(), 1e-300), missing
        )

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
            classes: the class of each name; the five largest classes get colours, and all other names are grey.
            labels: the names whose points are labelled; None: all names if there are at most 60, else no names.
            ax: the Axes to draw in; None: those of a new figure that opens no window; a notebook shows the figure.

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
        """The vectors divided by their Euclidean norms; zero vectors do not change."""
        # Sums are float64: in float32, the square of 1e-23 is 0, and the square of 2e19 is infinite.
        norms = np.sqrt(np.einsum("nd,nd->n", self.vectors, self.vectors, dtype=np.float64))
        units = np.empty_like(self.vectors)
        return np.divide(self.vectors, np.where(norms > 0, norms, 1.0)[:, None], out=units, casting="same_kind")

    def _unit(self, vector: Any) -> Float32s:
        """Check a vector, and divide it by its Euclidean norm."""
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
    """Return the positions of the largest values, in descending order; of equal values, the lower position is first."""
    if count < 1:
        return np.empty(0, np.int64)
    smallest = np.partition(values, len(values) - count)[len(values) - count]
    positions = np.flatnonzero(values >= smallest)
    return positions[np.argsort(-values[positions], kind="stable")[:count]]


def _word2vec_blocks(texts: list[str], vectors: Float32s, binary: bool) -> Iterator[bytes]:
    """Yield a file in word2vec's format, block by block."""
    yield f"{len(vectors)} {vectors.shape[1]}\n".encode()
    for begin in range(0, len(texts), BLOCK_ROWS):
        block = slice(begin, begin + BLOCK_ROWS)
        if binary:
            rows = [row.tobytes() for row in np.ascontiguousarray(vectors[block], "<f4")]
        else:
            rows = text_rows(vectors[block], b" ")
        yield b"".join(b"%b %b\n" % (text.encode(), row) for text, row in zip(texts[block], rows, strict=True))
