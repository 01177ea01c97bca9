"""Trained topics, usable without Spark and servers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.frame.array_files import ArrayModel, ModelFiles
from ps2.algorithms.topics.inference import Sampling, Variational, checked_documents, halves
from ps2.algorithms.topics.settings import InferenceName
from ps2.data.plain_arrays import as_array
from ps2.errors import CheckpointCorruptError, ConfigError, InputError, ShapeError
from ps2.ops.kernels import Float64s, Int64s
from ps2.plot_extra import PlotPath, needs_matplotlib, save_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = npt.NDArray[Any]

# The number of documents in a batch; a sum over all documents is computed batch by batch.
BATCH_DOCUMENTS = 4096


# Data of n non-empty documents: topic proportions, shape (n, topics); the number of tokens of each document, shape
# (n,); the number of tokens of each word, shape (words,).
Seen = tuple[Float64s, Float64s, Float64s]


def _inference(name: Any) -> Any:
    if name not in get_args(InferenceName):
        raise ValueError(f"inference: {name!r}")
    return name


class LDATopics(ArrayModel):
    """The topics of a trained ``LDA``; picklable.

    Attributes:
        counts: int32 or float64, shape (words, topics): tokens of each word in each topic. Counts plus ``beta`` are the
            Dirichlet parameters of the topics, lambda.
        alpha: float64, shape (topics,): Dirichlet prior of a document's topics.
        beta: Dirichlet prior of a topic's words.
        inference: how topics of new documents are inferred: "sampled" (Gibbs sampling) or "variational" (as
            pyspark.ml).
        seed: the seed of sampling.

    Example::

        model = LDATopics.load("models/news")
        shares = model.transform(X)  # counts, NumPy or scipy CSR
    """

    _MODEL_CLASS = "ps2.algorithms.clustering.LDAModel"
    _FILES = ModelFiles(
        "ps2.topics.v1",
        "topics",
        {"counts": "iuf", "alpha": "f"},
        {"beta": float, "inference": _inference, "seed": int},
    )

    def __init__(
        self,
        counts: npt.ArrayLike,
        alpha: npt.ArrayLike,
        beta: float,
        inference: InferenceName = "sampled",
        seed: int = 0,
    ) -> None:
        """Raises:
        ShapeError: alpha does not have one number per topic.
        InputError: counts are not finite floats, or integers in [0, 2^31).
        """
        array = as_array("counts", counts)
        if array.dtype.kind not in "iuf" or not _are_exact(array):
            raise InputError("counts: expected integers from 0 to 2^31 - 1, or finite floats")
        self.counts: Array = np.ascontiguousarray(array, np.float64 if array.dtype.kind == "f" else np.int32)
        self.alpha: Float64s = np.array(alpha, np.float64)
        if self.counts.ndim != 2 or self.alpha.shape != self.counts.shape[1:]:
            raise ShapeError(
                f"alpha: expected one for each topic of counts of shape {self.counts.shape}, got {self.alpha.shape}"
            )
        self.beta, self.inference, self.seed = float(beta), inference, seed

    def __repr__(self) -> str:
        return f"LDATopics(topics={self.topics}, words={self.dim}, inference={self.inference!r})"

    def _params(self) -> dict[str, Any]:
        return {"k": self.topics, "inference": self.inference, "seed": self.seed}

    def _arrays_to_write(self) -> dict[str, Array]:
        counts = self.counts
        if counts.dtype.kind != "f":
            counts = counts.astype(np.min_scalar_type(int(counts.max(initial=0))))
        return {"counts": counts, "alpha": self.alpha}

    def write(self, url: str) -> dict[str, Any]:
        return {**super().write(url), "shape": list(self.counts.shape)}

    @classmethod
    def read(cls, path: str, url: str, content: Any) -> LDATopics:
        topics = super().read(path, url, content)
        if list(topics.counts.shape) != content.get("shape"):
            raise CheckpointCorruptError(f"{path}: expected shape {content.get('shape')}, got {topics.counts.shape}")
        return topics

    @property
    def topics(self) -> int:
        """Number of topics."""
        return int(self.counts.shape[1])

    @property
    def dim(self) -> int:
        """Number of words."""
        return int(self.counts.shape[0])

    @property
    def classes(self) -> None:
        """None: documents have no class."""
        return None

    @property
    def is_light(self) -> bool:
        """Whether the topics are pickled with each function that uses them: False, they are broadcast."""
        return False

    def chances(self) -> Float64s:
        """Return the mean probability of each word in each topic, shape (words, topics)."""
        weights = self.counts + self.beta
        return np.asarray(weights / weights.sum(axis=0))

    def describeTopics(
        self, maxTermsPerTopic: int = 10, vocabulary: Sequence[str] | None = None
    ) -> list[tuple[Any, Float64s]]:
        """Return the most likely words of each topic, and their probabilities; ties keep the order of words.

        Args:
            maxTermsPerTopic: the maximum number of words of a topic.
            vocabulary: the words, such as ``CountVectorizerModel.vocabulary``.

        Returns:
            For each topic its words and their probabilities, float64, shape (n,). Words are indices, int64, shape (n,);
            with a vocabulary they are a list of strings.

        Raises:
            ShapeError: the number of words is not the model's.
        """
        self.check_vocabulary(vocabulary)
        total = self.counts.sum(axis=0, dtype=np.float64) + self.beta * self.dim
        descriptions = []
        for k in range(self.topics):
            words = _largest(np.ascontiguousarray(self.counts[:, k]), maxTermsPerTopic)
            names = words if vocabulary is None else [vocabulary[word] for word in words]
            descriptions.append((names, (self.counts[words, k] + self.beta) / total[k]))
        return descriptions

    def plotTopics(
        self,
        path: PlotPath = None,
        maxTermsPerTopic: int = 10,
        vocabulary: Sequence[str] | None = None,
        topics: Sequence[int] | None = None,
        *,
        ax: Axes | None = None,
    ) -> Axes:
        """Plot the most likely words of topics as bars, a panel for each topic.

        Args:
            path: a file to which the plot is also written: PNG, or the format of its suffix (.svg, .pdf).
            maxTermsPerTopic: the maximum number of words of a topic.
            vocabulary: the words, such as ``CountVectorizerModel.vocabulary``; None: their indices are shown.
            topics: the indices of the topics to draw; None: the first 24 topics.
            ax: the Axes to draw in; None: a new figure. It opens no window, but notebooks show it.

        Returns:
            The Axes that contains the panels.

        Raises:
            ConfigError: matplotlib is not installed, or an argument is out of range.
            ShapeError: the number of words is not the model's.
        """
        with needs_matplotlib("plotTopics"):
            from ps2.algorithms.topics.plotting import MAX_TOPICS, Topic, draw_topics
        indices = list(range(min(self.topics, MAX_TOPICS)) if topics is None else topics)
        if maxTermsPerTopic < 1:
            raise ConfigError(f"maxTermsPerTopic: expected at least 1, got {maxTermsPerTopic!r}")
        if not indices or not all(0 <= index < self.topics for index in indices):
            raise ConfigError(f"topics: expected numbers from 0 to {self.topics - 1}, got {indices}")
        descriptions, tokens = self.describeTopics(maxTermsPerTopic, vocabulary), self.counts.sum(axis=0)
        panels = []
        for index in indices:
            words, weights = descriptions[index]
            fraction = float(tokens[index] / max(tokens.sum(), 1))
            panels.append(Topic(index, fraction, [str(word) for word in words], weights))
        selection = "" if len(indices) == self.topics else f"{len(indices)} of "
        return save_plot(draw_topics(panels, f"{selection}{self.topics:,} topics over {self.dim:,} words", ax), path)

    def check_vocabulary(self, vocabulary: Sequence[str] | None) -> None:
        """Raise ShapeError if there is a vocabulary whose number of words is not the model's."""
        if vocabulary is not None and len(vocabulary) != self.dim:
            raise ShapeError(f"vocabulary: expected {self.dim} words, got {len(vocabulary)}")

    def transform(self, x: Any) -> Float64s:
        """Return the documents' topic proportions.

        Args:
            x: counts, shape (n, words): scipy sparse, or anything that NumPy converts to an array, such as a pandas
                DataFrame.

        Returns:
            float64, shape (n, topics); the sum of each row is 1. An empty document has alpha / sum(alpha).

        Raises:
            ShapeError, DTypeError: x is not a matrix of numbers with a column for each word.
            InputError: a value of x is not a count.
        """
        return self._proportions(checked_documents(x, self.dim))

    def margins(self, x: sp.csr_array) -> Float64s:
        """Return the result of ``transform``; predictions for DataFrames call this method of any model."""
        return self.transform(x)

    def perplexity(self, x: Any, seed: int = 0) -> float:
        """Return the perplexity of held-out documents, by document completion: lower is better.

        One half of each document's tokens determines its topic proportions theta_d, and the other half is scored. The
        perplexity is exp(-mean of log(sum over k of theta_dk phi_wk)) over the tokens w of the other halves (Wallach et
        al., "Evaluation methods for topic models", 2009, section 5.1).

        Args:
            x: see ``transform``.
            seed: the seed by which documents are divided into halves.

        Raises:
            ShapeError, DTypeError: see ``transform``.
            InputError: a value of x is not a count, or no document has two tokens.
        """
        return perplexity_from(*self.completed(x, seed))

    def completed(self, x: Any, seed: int) -> tuple[float, float]:
        """Return the log-likelihood of second halves, and their number of tokens; arguments as in ``perplexity``."""
        first, second = halves(checked_documents(x, self.dim), seed)
        score = 0.0
        for begin in range(0, first.shape[0], BATCH_DOCUMENTS):
            part = slice(begin, begin + BATCH_DOCUMENTS)
            score += float(self._sampling.scores(second[part], self._proportions(first[part])).sum())
        return score, float(second.sum())

    def logLikelihood(self, x: Any) -> float:
        """Return a lower bound of the documents' log-likelihood, as in pyspark.ml; args and errors as in ``transform``.

        The bound is that of variational Bayes, however the topics were trained: Hoffman et al. (2010), equation 16.
        """
        return self.bound(x) + self.bound_of_topics

    def logPerplexity(self, x: Any) -> float:
        """Return minus ``logLikelihood`` per token, as in pyspark.ml: lower is better."""
        documents = checked_documents(x, self.dim)
        tokens = float(documents.sum())
        if not tokens:
            raise InputError("x: the likelihood needs at least one document with words, got none")
        return -self.logLikelihood(documents) / tokens

    def bound(self, x: Any) -> float:
        """Return the documents' terms of ``logLikelihood``, which can be added up over batches."""
        return self._variational.bound(checked_documents(x, self.dim))

    @property
    def bound_of_topics(self) -> float:
        """The topics' term of ``logLikelihood``."""
        return self._variational.bound_of_topics

    def toPyLDAvis(self, x: Any, vocabulary: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the arguments of ``pyLDAvis.prepare``: ``pyLDAvis.prepare(**model.toPyLDAvis(X, words))``.

        Args:
            x: see ``transform``; empty documents are left out.
            vocabulary: the words; None: their indices are used as words.

        Raises:
            ShapeError: the number of words is not the model's; or as in ``transform``.
        """
        return self.vis(self.seen(x), vocabulary)

    def seen(self, x: Any) -> Seen:
        """Return the documents' data for ``vis``; args and errors as in ``transform``."""
        documents = checked_documents(x, self.dim)
        documents = documents[np.flatnonzero(np.diff(documents.indptr))]
        return self._proportions(documents), documents.sum(axis=1), documents.sum(axis=0)

    def vis(self, seen: Seen, vocabulary: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the arguments of ``pyLDAvis.prepare``; args and errors as in ``toPyLDAvis``."""
        self.check_vocabulary(vocabulary)
        proportions, lengths, frequency = seen
        return {
            "topic_term_dists": self.chances().T,
            "doc_topic_dists": proportions,
            "doc_lengths": lengths.astype(np.int64),
            "vocab": list(map(str, range(self.dim))) if vocabulary is None else list(vocabulary),
            "term_frequency": frequency.astype(np.int64),
        }

    def _proportions(self, x: sp.csr_array) -> Float64s:
        if self.inference == "sampled":
            return self._sampling.proportions(x)
        return self._variational.proportions(x)

    @cached_property
    def _sampling(self) -> Sampling:
        return Sampling(self.counts, self.alpha, self.beta, self.seed)

    @cached_property
    def _variational(self) -> Variational:
        return Variational(self.counts, self.alpha, self.beta)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


def perplexity_from(score: float, tokens: float) -> float:
    """Return the perplexity from the result of ``LDATopics.completed``; InputError: there are no tokens."""
    if not tokens:
        raise InputError("the perplexity needs at least one document of two tokens, got none")
    return math.exp(-score / tokens)


def _largest(values: Array, limit: int) -> Int64s:
    """Return the indices of the largest values, the largest first; equal values keep their order."""
    limit = min(limit, len(values))
    if not limit:
        return np.empty(0, np.int64)
    min_value = np.partition(values, len(values) - limit)[len(values) - limit]
    candidates = np.flatnonzero(values >= min_value)
    return candidates[np.argsort(-values[candidates], kind="stable")[:limit]]


def _are_exact(counts: Array) -> bool:
    """Return whether int32, or for floats float64, represents the counts exactly."""
    is_exact = np.isfinite(counts) if counts.dtype.kind == "f" else (counts >= 0) & (counts <= np.iinfo(np.int32).max)
    return bool(is_exact.all())
