"""The parameters of Word2Vec, DeepWalk, Node2Vec, LINE and RandomWalks."""

from __future__ import annotations

from typing import Literal, get_args

from ps2.algorithms.frame.settings import Setting, Settings, getter, param, setter, with_default
from ps2.algorithms.frame.shared_settings import FleetSettings, WeightSettings

Strategy = Literal["auto", "servers", "rows", "local"]

# LINE's orders of proximity, which are trained one after the other.
ORDERS = {"both": (1, 2), "first": (1,), "second": (2,)}


class SeedSettings(Settings):
    """The param ``seed``."""

    seed: Setting[int] = param(0, "the seed of all random numbers", bits=64)

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
        0.025, "the initial step size, which falls linearly to a ten-thousandth of its value", above=0, option="lr"
    )
    via: Setting[str] = param(
        "auto",
        "where vectors are updated: 'servers' (on the servers; workers send tokens and receive dot products), "
        "'rows' (in workers, which pull the vectors of some sentences and push their changes), 'local' (in "
        "workers, which have all vectors and exchange changes periodically), or 'auto' (the fastest by measurement)",
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
    """The parameters of Word2Vec: those of pyspark.ml, and those of skip-gram and CBOW; ``maxIter``: decision 124."""

    vectorSize: Setting[int] = param(100, "the dimension of the vectors", at_least=1)
    maxIter: Setting[int] = with_default(EmbeddingSettings, "maxIter", 5)
    minCount: Setting[int] = param(5, "the minimum number of occurrences of a word in the vocabulary", at_least=0)
    windowSize: Setting[int] = param(
        5, "the context size: up to this many words of the sentence before and after each word", at_least=1
    )
    maxSentenceLength: Setting[int] = param(
        1000, "the maximum number of words in a sentence; longer sentences are split", at_least=1
    )
    numPartitions: Setting[int] = param(
        1, "the number of tasks that train, if it is set and numWorkers is not", at_least=1
    )
    sample: Setting[float] = param(
        0.0,
        "word2vec's subsampling: occurrences of words more frequent than this fraction of all words are dropped "
        "at random, more of them for more frequent words; 0: no occurrences are dropped",
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
    directed: Setting[bool] = param(False, "whether edges lead from source to target only (true), or both ways (false)")
    weightCol: Setting[str | None] = param(
        None, "the column of the edges' weights; not set or empty: all weights are 1", type=str, option=None
    )

    getSrcCol, setSrcCol = getter(srcCol), setter(srcCol)
    getDstCol, setDstCol = getter(dstCol), setter(dstCol)
    getDirected, setDirected = getter(directed), setter(directed)


class WalkSettings(GraphSettings):
    """The parameters of walks, and the location of the graph."""

    graphOn: Setting[str] = param(
        "auto",
        "where the graph is stored: 'workers' (each has the whole graph), 'servers' (each has some vertices; "
        "workers send a request for each step), or 'auto' (workers up to 256 MiB); the walks are the same",
        one_of=("auto", "workers", "servers"),
    )
    numWalks: Setting[int] = param(10, "the number of walks from each vertex", at_least=1, option="walks")
    walkLength: Setting[int] = param(80, "the maximum number of vertices in a walk", at_least=1, option="length")

    getGraphOn, setGraphOn = getter(graphOn), setter(graphOn)
    getNumWalks, setNumWalks = getter(numWalks), setter(numWalks)
    getWalkLength, setWalkLength = getter(walkLength), setter(walkLength)


class BiasedWalkSettings(WalkSettings):
    """The parameters of walks with node2vec's bias."""

    p: Setting[float] = param(
        1.0,
        "node2vec's return parameter: with larger values, a walk returns to its previous vertex less often",
        above=0,
    )
    q: Setting[float] = param(
        1.0, "node2vec's in-out parameter: with larger values, a walk stays closer to its previous vertex", above=0
    )

    getP, setP = getter(p), setter(p)
    getQ, setQ = getter(q), setter(q)


class RandomWalkSettings(BiasedWalkSettings, FleetSettings):
    """The parameters of RandomWalks."""

    numWorkers: Setting[int | None] = param(
        None,
        "the number of tasks that compute walks; not set: one for each task slot; the walks are the same",
        at_least=1,
        type=int,
        option=None,
    )


class DeepWalkSettings(EmbeddingSettings, WalkSettings):
    """The parameters of DeepWalk."""

    numWalks: Setting[int] = param(
        10, "the number of walks from each vertex in each of the maxIter passes", at_least=1, option="walks"
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
        "'first': vertices with an edge between them get similar vectors; 'second': vertices with common "
        "neighbours do; 'both': each order trains half of each vector",
        one_of=ORDERS,
    )
    hashed: Setting[bool] = param(
        False,
        "whether ids (non-negative integers) are keys of sparse tables, so that vertices are not listed before the "
        "training, and servers and workers store only the ids that they train; requires via='rows' or 'auto'",
    )

    getOrder, setOrder = getter(order), setter(order)
    getHashed, setHashed = getter(hashed), setter(hashed)
