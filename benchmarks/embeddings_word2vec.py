"""Word2Vec on walks through BlogCatalog beside gensim's and pyspark.ml's: seconds, and how well edges are told.

Seconds are of the training without the vocabulary, which all of them count before; pyspark.ml's fit does not tell them
apart: beside it, ours has its vocabulary, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import embeddings_data as data
from benchmarks.embeddings_part import WORKERS, Asked, spark_and_servers
from benchmarks.frame import Part, answer, tell
from benchmarks.ml_part import Line
from benchmarks.trees_part import Score
from ps2.algorithms.feature import Word2Vec
from ps2.algorithms.graph import RandomWalks

Array = npt.NDArray[Any]

SIZE, WINDOW, NEGATIVE, LENGTH = 128, 10, 5, 40
# How many times less seconds than theirs; and walks from each vertex: pyspark.ml is slow.
GOALS = {"gensim": 1.2, "pyspark.ml": 5.0}
WALKS = {"gensim": 20, "pyspark.ml": 4}
Vectors = dict[str, Array]


def measure(asked: Asked) -> Part:
    pairs = data.edges(asked.data_dir)
    peers: dict[str, Callable[[Any], tuple[float, Vectors]]] = {"gensim": _gensim, "pyspark.ml": _pyspark}
    lines: list[Any] = []
    with spark_and_servers(asked, "word2vec") as spark:
        frame = data.framed(spark, pairs)
        for name, theirs in peers.items():
            sentences = _sentences(frame, WALKS[name])
            tokens = int(sentences.selectExpr("sum(size(words))").first()[0])
            _ours(sentences.limit(100), whole=False)
            seconds: list[tuple[float, float]] = []
            for _ in range(asked.rounds):
                found = theirs(sentences), _ours(sentences, whole=name == "pyspark.ml")
                seconds.append((found[0][0], found[1][0]))
                near = [_nearness(vectors, pairs) for _, vectors in found]
                speeds = [tokens / each_s for each_s in seconds[-1]]
                tell(f"{name}: {speeds[0]:,.0f} tokens/s, AUC {near[0]:.3f}; ours: {speeds[1]:,.0f}, {near[1]:.3f}")
            sentences.unpersist()
            what = f"Word2Vec, {WALKS[name]} walks of {LENGTH} a vertex"
            lines.append(Line(f"{what}: s", name, "s", GOALS[name], *zip(*seconds, strict=True)))
            lines.append(Score(f"{what}: edges told from other pairs", name, "AUC", None, *near))
    return Part(lines, facts={"d": SIZE, "window": WINDOW, "negative": NEGATIVE})


def _sentences(frame: Any, walks: int) -> Any:
    """Return walks as cached sentences of words, in no order."""
    from pyspark.sql import functions as F

    made = RandomWalks(numWalks=walks, walkLength=LENGTH, seed=3).transform(frame)
    words = made.select(F.col("walk").cast("array<string>").alias("words")).orderBy(F.xxhash64("words"))
    found = words.repartition(WORKERS).persist()
    found.count()
    return found


def _ours(sentences: Any, whole: bool) -> tuple[float, Vectors]:
    """Train one worker with as many threads as Spark has task slots.

    Args:
        whole: whether seconds are those of all of fit.
    """
    began_s = time.monotonic()
    given: dict[str, Any] = {"vectorSize": SIZE, "windowSize": WINDOW, "negative": NEGATIVE, "minCount": 0, "seed": 1}
    model = Word2Vec(inputCol="words", **given).fit(sentences)
    seconds = time.monotonic() - began_s if whole else sum(model.summary.stepSeconds)
    embedding = model.embedding
    return seconds, dict(zip(embedding.names.values.to_pylist(), embedding.vectors, strict=True))


def _gensim(sentences: Any) -> tuple[float, Vectors]:
    """Train gensim's with as many threads, on lists in memory; the time that they take to come there is not counted."""
    from gensim.models import Word2Vec as Gensim

    lists = [row["words"] for row in sentences.toLocalIterator()]
    given = {"vector_size": SIZE, "window": WINDOW, "negative": NEGATIVE, "sg": 1, "sample": 0, "min_count": 0}
    model = Gensim(**given, workers=WORKERS, seed=1)
    model.build_vocab(lists)
    began_s = time.monotonic()
    model.train(lists, total_examples=model.corpus_count, epochs=1)
    seconds = time.monotonic() - began_s
    return seconds, {word: model.wv[word] for word in model.wv.index_to_key}


def _pyspark(sentences: Any) -> tuple[float, Vectors]:
    """Train pyspark.ml's, by hierarchical softmax, in two partitions."""
    from pyspark.ml.feature import Word2Vec as Theirs

    given: dict[str, Any] = {"vectorSize": SIZE, "windowSize": WINDOW, "minCount": 0, "numPartitions": WORKERS}
    began_s = time.monotonic()
    model = Theirs(inputCol="words", seed=1, **given).fit(sentences)
    seconds = time.monotonic() - began_s
    return seconds, {row["word"]: row["vector"].toArray() for row in model.getVectors().toLocalIterator()}


def _nearness(vectors: Vectors, pairs: Array) -> float:
    """Return how well cosines tell edges from other pairs of vertices: AUC."""
    rng = np.random.default_rng(5)
    known = np.array(list(map(int, vectors)))
    matrix = np.zeros((pairs.max() + 1, SIZE), np.float32)
    matrix[known] = np.stack(list(vectors.values()))
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-9)
    some = pairs[rng.choice(len(pairs), 50_000, replace=False)]
    others = rng.choice(known, some.shape)
    return data.auc(*(np.einsum("nd,nd->n", matrix[of[:, 0]], matrix[of[:, 1]]) for of in (some, others)))


if __name__ == "__main__":
    answer(Asked, measure)
