"""The parameters of Word2Vec, DeepWalk, Node2Vec, LINE and RandomWalks; what a training is made of, and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from ps2.algorithms.frame.settings import Plan, Setting, Settings, getter, param, setter, with_values
from ps2.algorithms.frame.shared_settings import FleetSettings, WeightSettings
from ps2.algorithms.training.record import TrainingHistory
from ps2.array_types import Float32s, Int64s
from ps2.errors import ConfigError

Architecture = Literal["skipgram", "cbow", "edges"]
Strategy = Literal["auto", "servers", "rows", "local"]

MAX_WORDS = 2**31 - 1
# The final step size, relative to the initial one.
MIN_STEP = 1e-4
# A training has diverged if its loss exceeds this multiple of the loss of zero vectors. Trainings that learned
# something stayed below it at any step size; diverging ones were at 16 times and far beyond.
DIVERGED_FACTOR = 10.0
# LINE's orders of proximity, which are trained one after the other.
ORDERS = {"both": (1, 2), "first": (1,), "second": (2,)}


class SeedSettings(Settings):
    """The seed."""

    seed: Setting[int] = param(0, "the seed of all random draws", bits=64)

    getSeed, setSeed = getter(seed), setter(seed)


class EmbeddingSettings(SeedSettings, FleetSettings):
    """The parameters of all estimators of embeddings."""

    vectorSize: Setting[int] = param(128, "the dimension of the vectors", at_least=1, option="size")
    negative: Setting[int] = param(5, "the number of negative samples for each positive pair", at_least=1)
    nsExponent: Setting[float] = param(
        0.75, "the exponent of the frequencies from which negative samples are drawn", option=None
    )
    maxIter: Setting[int] = param(1, "the number of passes over the data", at_least=1, option="iterations")
    stepSize: Setting[float] = param(
        0.025, "the initial step size; it falls linearly to a ten-thousandth of that", above=0, option="lr"
    )
    via: Setting[str] = param(
        "auto",
        "where vectors are updated: 'servers' (they compute dot products, only scalars travel), 'rows' "
        "(the vectors of some sentences are pulled, updated and pushed), 'local' (each worker has all "
        "vectors, and differences travel now and then), or 'auto' (the fastest by measurement)",
        one_of=get_args(Strategy),
    )
    numWorkers: Setting[int | None] = param(
        None,
        "the number of tasks that train; not set: one for each executor, with a thread for each core",
        at_least=1,
        type=int,
        option=None,
    )

    getVectorSize, setVectorSize = getter(vectorSize), setter(vectorSize)
    getNegative, setNegative = getter(negative), setter(negative)
    getNsExponent, setNsExponent = getter(nsExponent), setter(nsExponent)
    getMaxIter, setMaxIter = getter(maxIter), setter(maxIter)
    getStepSize, setStepSize = getter(stepSize), setter(stepSize)
    getVia, setVia = getter(via), setter(via)


class Word2VecSettings(EmbeddingSettings):
    """The parameters of Word2Vec: those of pyspark.ml, and those of skip-gram and CBOW."""

    vectorSize: Setting[int] = param(100, "the dimension of the vectors", at_least=1)
    minCount: Setting[int] = param(5, "the minimum number of occurrences of a word in the vocabulary", at_least=0)
    windowSize: Setting[int] = param(
        5, "the context size: up to this many words of the sentence before and after each word", at_least=1
    )
    maxSentenceLength: Setting[int] = param(
        1000, "the maximum number of words of a sentence; longer ones are split", at_least=1
    )
    numPartitions: Setting[int] = param(
        1, "the number of tasks that train, if it is set and numWorkers is not", at_least=1
    )
    sample: Setting[float] = param(
        0.0,
        "the frequency (a share of all words) above which occurrences of a word are dropped at random, "
        "more of them the more frequent it is; 0: none are dropped",
        at_least=0,
    )
    architecture: Setting[str] = param(
        "skipgram",
        "'skipgram': predict the context from a word; 'cbow': predict a word from its context",
        one_of=("skipgram", "cbow"),
    )
    inputCol: Setting[str | None] = param(
        None, "the column of sentences, arrays of strings", type=str, option=None, in_model=True
    )
    outputCol: Setting[str | None] = param(
        None, "the column of the sentences' mean vectors", type=str, option=None, in_model=True
    )

    getMinCount, setMinCount = getter(minCount), setter(minCount)
    getWindowSize, setWindowSize = getter(windowSize), setter(windowSize)
    getMaxSentenceLength, setMaxSentenceLength = getter(maxSentenceLength), setter(maxSentenceLength)
    getNumPartitions, setNumPartitions = getter(numPartitions), setter(numPartitions)
    getSample, setSample = getter(sample), setter(sample)
    getArchitecture, setArchitecture = getter(architecture), setter(architecture)
    getInputCol, setInputCol = getter(inputCol), setter(inputCol)
    getOutputCol, setOutputCol = getter(outputCol), setter(outputCol)


class GraphSettings(SeedSettings, WeightSettings):
    """The columns of a graph's edges."""

    srcCol: Setting[str] = param(
        "src", "the column of each edge's source: integers or strings", option=None, in_model=True
    )
    dstCol: Setting[str] = param(
        "dst", "the column of each edge's target, of the same type as srcCol", option=None, in_model=True
    )
    directed: Setting[bool] = param(False, "whether edges lead from srcCol to dstCol only (true), or both ways (false)")
    weightCol: Setting[str | None] = param(
        None, "the column of the edges' weights; not set or empty: all weights are 1", type=str, option=None
    )

    getSrcCol, setSrcCol = getter(srcCol), setter(srcCol)
    getDstCol, setDstCol = getter(dstCol), setter(dstCol)
    getDirected, setDirected = getter(directed), setter(directed)


class WalkSettings(GraphSettings):
    """The parameters of walks, and where the graph lies."""

    graphOn: Setting[str] = param(
        "auto",
        "where the graph lies: 'workers' (each has all of it), 'servers' (each has a part; workers ask "
        "them at each step), or 'auto' (workers up to 256 MiB); the walks do not depend on it",
        one_of=("auto", "workers", "servers"),
    )
    numWalks: Setting[int] = param(10, "the number of walks from each vertex", at_least=1, option="walks")
    walkLength: Setting[int] = param(80, "the maximum number of vertices of a walk", at_least=1, option="length")

    getGraphOn, setGraphOn = getter(graphOn), setter(graphOn)
    getNumWalks, setNumWalks = getter(numWalks), setter(numWalks)
    getWalkLength, setWalkLength = getter(walkLength), setter(walkLength)


class BiasedWalkSettings(WalkSettings):
    """The parameters of walks with node2vec's bias."""

    p: Setting[float] = param(
        1.0,
        "node2vec's return parameter: the larger, the less often a walk returns to its previous vertex at once",
        above=0,
    )
    q: Setting[float] = param(
        1.0, "node2vec's in-out parameter: the larger, the closer a walk stays to its previous vertex", above=0
    )

    getP, setP = getter(p), setter(p)
    getQ, setQ = getter(q), setter(q)


class RandomWalkSettings(BiasedWalkSettings, FleetSettings):
    """The parameters of RandomWalks."""

    numWorkers: Setting[int | None] = param(
        None,
        "the number of tasks that compute walks; not set: one for each task slot; the walks do not depend on it",
        at_least=1,
        type=int,
        option=None,
    )


class DeepWalkSettings(EmbeddingSettings, WalkSettings):
    """The parameters of DeepWalk."""

    numWalks: Setting[int] = param(
        10, "the number of walks from each vertex in each of maxIter passes", at_least=1, option="walks"
    )
    walkLength: Setting[int] = param(
        80,
        "the maximum number of vertices of a walk",
        check=(lambda value: value >= 2, "at least 2: a single vertex has no context"),
        option="length",
    )
    windowSize: Setting[int] = param(
        10,
        "the context size: up to this many vertices of the walk before and after each vertex",
        at_least=1,
        option="window",
    )

    getWindowSize, setWindowSize = getter(windowSize), setter(windowSize)


class Node2VecSettings(DeepWalkSettings, BiasedWalkSettings):
    """The parameters of Node2Vec."""


class LINESettings(EmbeddingSettings, GraphSettings):
    """The parameters of LINE."""

    maxIter: Setting[int] = param(20, "the number of passes over the data", at_least=1, option="iterations")
    order: Setting[str] = param(
        "both",
        "'first': vertices with an edge are similar; 'second': vertices with common neighbours are; "
        "'both': half of the vector each",
        one_of=ORDERS,
    )
    hashed: Setting[bool] = param(
        False,
        "whether ids (non-negative integers) are keys of sparse tables, without being numbered first: "
        "servers and workers use memory for touched ids only; requires via='rows' or 'auto'",
    )

    getOrder, setOrder = getter(order), setter(order)
    getHashed, setHashed = getter(hashed), setter(hashed)


@dataclass(frozen=True, kw_only=True)
class EmbeddingPlan(Plan[EmbeddingSettings]):
    """A training of embeddings by negative sampling (Mikolov et al. 2013, "Distributed Representations of Words").

    Attributes:
        vocabulary: the number of words; word numbers are in [0, vocabulary), the most frequent first. Words that are
            keys have their own numbers in each worker.
        total: the number of tokens (or edges) of an epoch, over all workers.
        order: 2: contexts are separate from vectors; 1, for edges only: they are the vectors themselves.
    """

    vocabulary: int
    total: int
    order: int = 2

    def __post_init__(self) -> None:
        for name, limit in (("vocabulary", MAX_WORDS), ("total", math.inf)):
            if not 1 <= (value := getattr(self, name)) <= limit:
                raise ConfigError(f"{name}: expected a number from 1 to {limit:,}, got {value}")
        if self.order == 1 and self.architecture != "edges":
            raise ConfigError("order: expected 2, or of edges 1, got 1")

    def by(self, strategy: str) -> EmbeddingPlan:
        """Return the plan with another strategy."""
        return replace(self, settings=with_values(self.settings, via=strategy))

    @property
    def architecture(self) -> Architecture:
        """The architecture.

        "skipgram": predict a word from each of its contexts; "cbow": from their mean; "edges" (LINE, Tang et al. 2015):
        a sentence is a pair, predict the second word from the first.
        """
        if isinstance(self.settings, LINESettings):
            return "edges"
        is_cbow = isinstance(self.settings, Word2VecSettings) and self.settings.architecture == "cbow"
        return "cbow" if is_cbow else "skipgram"

    @property
    def size(self) -> int:
        """The dimension of the vectors of this order."""
        settings = self.settings
        parts = len(ORDERS[settings.order]) if isinstance(settings, LINESettings) else 1
        return settings.vectorSize // parts

    @property
    def window(self) -> int:
        """The maximum number of context words on either side; the actual number is random. 1 for edges."""
        settings = self.settings
        return settings.windowSize if isinstance(settings, (Word2VecSettings, DeepWalkSettings)) else 1

    @property
    def sample(self) -> float:
        """The threshold of word2vec's subsampling, as a share of all tokens; 0: no subsampling."""
        return self.settings.sample if isinstance(self.settings, Word2VecSettings) else 0.0

    @property
    def keyed(self) -> bool:
        """Whether words are keys: integers without numbering, only with the strategy "rows"."""
        return isinstance(self.settings, LINESettings) and self.settings.hashed

    @property
    def shares_table(self) -> bool:
        """Whether contexts are the vectors themselves."""
        return self.order == 1

    @property
    def tables(self) -> int:
        """The number of tables."""
        return 1 if self.shares_table else 2

    @property
    def table_bytes(self) -> int:
        """The bytes of one table."""
        return self.vocabulary * self.size * np.dtype(np.float32).itemsize

    @property
    def zero_vectors_loss(self) -> float:
        """The loss of a prediction and its negatives if all vectors are 0."""
        return (1 + self.settings.negative) * math.log(2)

    def has_diverged(self, loss: float) -> bool:
        """Return True if an epoch's mean loss is NaN, or too large for later epochs to recover."""
        return not loss <= DIVERGED_FACTOR * self.zero_vectors_loss

    @property
    def sharing(self) -> int:
        """The number of a word's contexts that share negatives: two; or all, where more negatives would cost more."""
        return 2 if self.settings.via == "local" and self.architecture == "skipgram" else 2 * self.window

    @property
    def negatives_drawn(self) -> int:
        """The number of negatives for each word (or edge), for all groups of contexts that share them."""
        return self.settings.negative * (-(-2 * self.window // self.sharing))

    @property
    def tokens_per_example(self) -> int:
        """The number of tokens in a unit of ``total``: two for an edge."""
        return 2 if self.architecture == "edges" else 1

    @property
    def inputs_per_token(self) -> float:
        """The mean number of inputs of a token's group; of skip-gram its contexts, window + 1 in the mean."""
        return {"skipgram": self.window + 1.0, "cbow": 1.0, "edges": 0.5}[self.architecture]

    def rate(self, progress: float) -> float:
        """Return the step size.

        Args:
            progress: the number of epochs, the finished share of the current one included.
        """
        return self.settings.stepSize * max(MIN_STEP, 1.0 - progress / self.settings.maxIter)


@dataclass(frozen=True, eq=False)
class FittedEmbeddings:
    """The result of a training.

    Attributes:
        vectors: float32, shape (vocabulary, size).
        contexts: float32, shape (vocabulary, size); None: the vectors themselves.
        history: the training's history; the objective is the mean of -log p of a prediction and its negatives, for each
            epoch.
        clocks: the number of clocks of the run, earlier trainings included.
        keys, counts: int64: if words are keys, these and their occurrences, the most frequent first.
    """

    vectors: Float32s
    contexts: Float32s | None
    history: TrainingHistory
    clocks: int
    keys: Int64s | None = None
    counts: Int64s | None = None
