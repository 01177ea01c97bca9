"""Vectors of words and vertices, compared with gensim and pyspark.ml: tokens a second, F1 of labels.

docs/performance/embeddings.md says how to read it.
"""

from __future__ import annotations

import gzip
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from benchmarks import frame
from benchmarks.frame import Benchmark, Line, Part, Score, option, tell, timed
from benchmarks.local_spark import WORKERS, cached, spark_and_servers
from benchmarks.ml_data import file_in
from ps2.algorithms.feature import Word2Vec
from ps2.algorithms.graph import DeepWalk, RandomWalks

Array = npt.NDArray[Any]
EDGES, LABELS = "blogcatalog.edges.txt.gz", "blogcatalog.labels.txt.gz"
SPLITS = 5
SEED = 7
# Macro-F1 and Micro-F1 by the share of labelled vertices, from DeepWalk's README: 80 walks of 40, d = 128, window 10.
PUBLISHED = {0.1: (21.08, 35.86), 0.5: (27.68, 41.51), 0.9: (28.21, 42.40)}
# By how much PS2's results may be below these.
LESS = 0.5
PARAMS: dict[str, Any] = {"vectorSize": 128, "walkLength": 40, "windowSize": 10, "seed": 1}
KINDS = ("Macro-F1", "Micro-F1")
SIZE, WINDOW, NEGATIVE, LENGTH = 128, 10, 5, 40
# Goals for the speed-up over each baseline, and walks from each vertex; pyspark.ml is slow.
GOALS = {"gensim": 1.2, "pyspark.ml": 5.0}
WALKS = {"gensim": 20, "pyspark.ml": 4}
# Step sizes of the baselines and of PS2.
STEP_SIZES = {"gensim": (0.025, 0.025), "pyspark.ml": (0.05, 0.1)}
LABELLED = 0.5
# Number of vertices to look at, and number of nearest vertices of each that are checked for being neighbours.
ASKED, NEAREST = 2_000, 10
Vectors = dict[str, Array]


@dataclass(frozen=True)
class Args(frame.Args):
    walks: int = option(80, "Walks from each vertex, of deepwalk and node2vec.", least=1)
    via: tuple[str, ...] = option(("local", "rows", "servers"), "Ways to train, of deepwalk.")


def edges(folder: str) -> Array:
    """Return the 333,983 distinct edges, shape (n, 2)."""
    with gzip.open(file_in(folder, EDGES), "rb") as file:
        return np.array(file.read().split(), np.int64).reshape(-1, 2)


def labels(folder: str) -> tuple[Array, sp.csr_array]:
    """Return the labelled vertices, and a 0/1 matrix of labels, shape (vertices, 39); a vertex may have several."""
    with gzip.open(file_in(folder, LABELS), "rt") as file:
        lines = [list(map(int, line.split())) for line in file if line.strip()]
    vertices = np.array([line[0] for line in lines])
    rows = np.repeat(np.arange(len(lines)), [len(line) - 1 for line in lines])
    columns = np.array([label for line in lines for label in line[1:]])
    result, columns = np.unique(columns, return_inverse=True)
    return vertices, sp.csr_array((np.ones(len(rows), np.int8), (rows, columns)), shape=(len(lines), len(result)))


def framed(spark: Any, pairs: Array, partitions: int = 2) -> Any:
    """Return edges as a cached DataFrame of src and dst."""
    import pandas as pd

    frame = spark.createDataFrame(pd.DataFrame({"src": pairs[:, 0], "dst": pairs[:, 1]}))
    return cached(frame, partitions)


def f1(vectors: Array, wanted: sp.csr_array, share: float, splits: int = SPLITS) -> tuple[float, float]:
    """Return Macro-F1 and Micro-F1, in percent, of one logistic regression a label, trained on a share of the vertices.

    The protocol is that of DeepWalk's authors (``scoring.py``): for each vertex, as many labels are predicted as it
    has. Returns the mean of several splits.

    Args:
        vectors: shape (vertices, d), of the vertices that have labels.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score
    from sklearn.multiclass import OneVsRestClassifier

    dense, result = wanted.toarray(), []
    for split in range(splits):
        order = np.random.default_rng([SEED, split]).permutation(len(vectors))
        train, test = np.split(order, [int(share * len(order))])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a rare label may be in no vertex of the split
            model = OneVsRestClassifier(LogisticRegression(solver="liblinear")).fit(vectors[train], dense[train])
        chances = model.predict_proba(vectors[test])
        ranks = np.argsort(np.argsort(-chances, axis=1), axis=1)
        predicted = ranks < dense[test].sum(axis=1)[:, None]
        result.append(
            [100 * f1_score(dense[test], predicted, average=kind, zero_division=0.0) for kind in ("macro", "micro")]
        )
    macro, micro = np.mean(result, axis=0)
    return float(macro), float(micro)


def deepwalk(args: Args) -> Part:
    """Compare F1 of labels of BlogCatalog, by vectors of DeepWalk in each way, with the authors' results."""
    lines, rows = [], []
    with spark_and_servers("embeddings", args.memory) as (spark, _):
        frame = framed(spark, edges(args.data_dir))
        for via in args.via:
            model, seconds = timed(DeepWalk(**PARAMS, numWalks=args.walks, via=via).fit, frame)
            rows.append({"via": via, "s": f"{seconds:.1f}"})
            for share, result in by_share(args, model.embedding).items():
                for kind, ours, published in zip(KINDS, result, PUBLISHED[share], strict=True):
                    what = f"{via}: {kind}, {share:.0%} labelled"
                    lines.append(Score(what, "published", "F1", published - LESS, published, ours))
    return Part(lines, facts={"walks": f"{args.walks} of 40", "d": 128, "window": 10}, table=rows)


def by_share(args: Args, embedding: Any) -> dict[float, tuple[float, float]]:
    """Return Macro-F1 and Micro-F1 by the share of labelled vertices."""
    vertices, expected = labels(args.data_dir)
    vectors = embedding.vectors[embedding.names.known(vertices)].astype(np.float64)
    return {share: f1(vectors, expected, share) for share in PUBLISHED}


def word2vec(args: Args) -> Part:
    """Compare Word2Vec on walks through BlogCatalog: seconds, and F1 of labels.

    Seconds are those of training without building the vocabulary, which precedes training everywhere. pyspark.ml's fit
    does not separate the two, so the comparison with it includes PS2's vocabulary. pyspark.ml uses hierarchical
    softmax, which needs another step size than negative sampling. So each side uses that of 0.025, 0.05, 0.1 and 0.2
    whose vectors predict labels best.
    """
    peers: dict[str, Callable[[Any, float], tuple[float, Vectors]]] = {"gensim": _gensim, "pyspark.ml": _pyspark}
    lines: list[Line | Score] = []
    pairs = edges(args.data_dir)
    with spark_and_servers("embeddings", args.memory) as (spark, _):
        frame = framed(spark, pairs)
        for name, theirs in peers.items():
            sentences = _sentences(frame, WALKS[name])
            tokens = int(sentences.selectExpr("sum(size(words))").first()[0])
            their_step, our_step = STEP_SIZES[name]
            _ours(sentences.limit(100), our_step, whole=False)
            seconds: list[tuple[float, float]] = []
            for _ in range(args.rounds):
                result = theirs(sentences, their_step), _ours(sentences, our_step, whole=name == "pyspark.ml")
                seconds.append((result[0][0], result[1][0]))
                tell(f"tokens/s: {name} {tokens / seconds[-1][0]:,.0f}, ours {tokens / seconds[-1][1]:,.0f}")
            sentences.unpersist()
            what = f"Word2Vec, {WALKS[name]} walks of {LENGTH} a vertex"
            lines.append(Line(f"{what}: s", name, "s", GOALS[name], *zip(*seconds, strict=True)))
            for kind, *scores in zip(KINDS, *(_f1(args, vectors) for _, vectors in result), strict=True):
                lines.append(Score(f"{what}: {kind}, {LABELLED:.0%} labelled", name, "F1", None, *scores))
    return Part(lines, facts={"d": SIZE, "window": WINDOW, "negative": NEGATIVE})


def _sentences(frame: Any, walks: int) -> Any:
    """Return walks as cached sentences of words, in random order."""
    from pyspark.sql import functions as F

    created = RandomWalks(numWalks=walks, walkLength=LENGTH, seed=3).transform(frame)
    words = created.select(F.col("walk").cast("array<string>").alias("words")).orderBy(F.xxhash64("words"))
    return cached(words)


def _ours(sentences: Any, step_size: float, whole: bool) -> tuple[float, Vectors]:
    """Train one worker with as many threads as Spark has task slots.

    Args:
        whole: True: time the whole of fit; False: time the training alone.
    """
    began_s = time.monotonic()
    inputs: dict[str, Any] = {"vectorSize": SIZE, "windowSize": WINDOW, "negative": NEGATIVE, "minCount": 0, "seed": 1}
    model = Word2Vec(inputCol="words", stepSize=step_size, **inputs).fit(sentences)
    whole_s, steps_s = time.monotonic() - began_s, sum(model.summary.stepSeconds)
    tell(f"ours: {whole_s:.1f} s of fit, {steps_s:.1f} of them training")
    seconds = whole_s if whole else steps_s
    embedding = model.embedding
    return seconds, dict(zip(embedding.names.values.to_pylist(), embedding.vectors, strict=True))


def _gensim(sentences: Any, step_size: float) -> tuple[float, Vectors]:
    """Train gensim's Word2Vec with as many threads, on lists in memory; the time to build the lists does not count."""
    from gensim.models import Word2Vec as Gensim

    lists = [row["words"] for row in sentences.toLocalIterator()]
    inputs = {"vector_size": SIZE, "window": WINDOW, "negative": NEGATIVE, "sg": 1, "sample": 0, "min_count": 0}
    model = Gensim(**inputs, alpha=step_size, workers=WORKERS, seed=1)
    model.build_vocab(lists)
    began_s = time.monotonic()
    model.train(lists, total_examples=model.corpus_count, epochs=1)
    seconds = time.monotonic() - began_s
    return seconds, {word: model.wv[word] for word in model.wv.index_to_key}


def _pyspark(sentences: Any, step_size: float) -> tuple[float, Vectors]:
    """Train pyspark.ml's Word2Vec, with hierarchical softmax, in two partitions."""
    from pyspark.ml.feature import Word2Vec as Theirs

    inputs: dict[str, Any] = {"vectorSize": SIZE, "windowSize": WINDOW, "minCount": 0, "numPartitions": WORKERS}
    began_s = time.monotonic()
    model = Theirs(inputCol="words", stepSize=step_size, seed=1, **inputs).fit(sentences)
    seconds = time.monotonic() - began_s
    return seconds, {row["word"]: row["vector"].toArray() for row in model.getVectors().toLocalIterator()}


def _f1(args: Args, vectors: Vectors) -> tuple[float, float]:
    """Return Macro-F1 and Micro-F1 of labels, half of which are known."""
    vertices, expected = labels(args.data_dir)
    return f1(np.stack([vectors[str(vertex)] for vertex in vertices]).astype(np.float64), expected, LABELLED)


PARTS = {"word2vec": word2vec, "deepwalk": deepwalk}
BENCHMARK = Benchmark(
    "embeddings", Args, PARTS, dict.fromkeys(PARTS, f"{EDGES} and {LABELS}"), packages=("gensim", "scikit-learn")
)

if __name__ == "__main__":
    BENCHMARK.main()
