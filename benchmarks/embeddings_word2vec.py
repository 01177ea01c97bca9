"""Word2Vec on walks through BlogCatalog, compared with gensim and pyspark.ml: seconds, F1 of labels, neighbours.

Seconds are those of training without building the vocabulary, which precedes training everywhere. pyspark.ml's fit does
not separate the two, so the comparison with it includes PS2's vocabulary. pyspark.ml uses hierarchical softmax, which
needs another step size than negative sampling. So each side uses that of 0.025, 0.05, 0.1 and 0.2 whose vectors predict
labels best.
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
# Goals for the speed-up over each baseline, and walks from each vertex; pyspark.ml is slow.
GOALS = {"gensim": 1.2, "pyspark.ml": 5.0}
WALKS = {"gensim": 20, "pyspark.ml": 4}
# Step sizes of the baselines and of PS2.
STEP_SIZES = {"gensim": (0.025, 0.025), "pyspark.ml": (0.05, 0.1)}
LABELLED = 0.5
# Number of vertices to look at, and number of nearest vertices of each that are checked for being neighbours.
ASKED, NEAREST = 2_000, 10
Vectors = dict[str, Array]


def measure(asked: Asked) -> Part:
    peers: dict[str, Callable[[Any, float], tuple[float, Vectors]]] = {"gensim": _gensim, "pyspark.ml": _pyspark}
    lines: list[Any] = []
    pairs = data.edges(asked.data_dir)
    with spark_and_servers(asked, "word2vec") as spark:
        frame = data.framed(spark, pairs)
        for name, theirs in peers.items():
            sentences = _sentences(frame, WALKS[name])
            tokens = int(sentences.selectExpr("sum(size(words))").first()[0])
            their_step, our_step = STEP_SIZES[name]
            _ours(sentences.limit(100), our_step, whole=False)
            seconds: list[tuple[float, float]] = []
            for _ in range(asked.rounds):
                found = theirs(sentences, their_step), _ours(sentences, our_step, whole=name == "pyspark.ml")
                seconds.append((found[0][0], found[1][0]))
                speeds = [tokens / each_s for each_s in seconds[-1]]
                tell(f"{name}: {speeds[0]:,.0f} tokens/s; ours: {speeds[1]:,.0f}")
            sentences.unpersist()
            what = f"Word2Vec, {WALKS[name]} walks of {LENGTH} a vertex"
            lines.append(Line(f"{what}: s", name, "s", GOALS[name], *zip(*seconds, strict=True)))
            scores = [_f1(asked, vectors) for _, vectors in found]
            for kind, *of in zip(("Macro-F1", "Micro-F1"), *scores, strict=True):
                tell(f"{name}: {kind} {of[0]:.2f}; ours: {of[1]:.2f}")
                lines.append(Score(f"{what}: {kind}, {LABELLED:.0%} labelled", name, "F1", None, *of))
            near = [_neighbours(vectors, pairs) for _, vectors in found]
            tell(f"{name}: neighbours among the nearest {near[0]:.3f}; ours: {near[1]:.3f}")
            lines.append(Score(f"{what}: neighbours among the {NEAREST} nearest", name, "share", None, *near))
    return Part(lines, facts={"d": SIZE, "window": WINDOW, "negative": NEGATIVE})


def _sentences(frame: Any, walks: int) -> Any:
    """Return walks as cached sentences of words, in random order."""
    from pyspark.sql import functions as F

    made = RandomWalks(numWalks=walks, walkLength=LENGTH, seed=3).transform(frame)
    words = made.select(F.col("walk").cast("array<string>").alias("words")).orderBy(F.xxhash64("words"))
    found = words.repartition(WORKERS).persist()
    found.count()
    return found


def _ours(sentences: Any, step_size: float, whole: bool) -> tuple[float, Vectors]:
    """Train one worker with as many threads as Spark has task slots.

    Args:
        whole: True: time the whole of fit; False: time the training alone.
    """
    began_s = time.monotonic()
    given: dict[str, Any] = {"vectorSize": SIZE, "windowSize": WINDOW, "negative": NEGATIVE, "minCount": 0, "seed": 1}
    model = Word2Vec(inputCol="words", stepSize=step_size, **given).fit(sentences)
    whole_s, steps_s = time.monotonic() - began_s, sum(model.summary.stepSeconds)
    tell(f"ours: {whole_s:.1f} s of fit, {steps_s:.1f} of them training")
    seconds = whole_s if whole else steps_s
    embedding = model.embedding
    return seconds, dict(zip(embedding.names.values.to_pylist(), embedding.vectors, strict=True))


def _gensim(sentences: Any, step_size: float) -> tuple[float, Vectors]:
    """Train gensim's Word2Vec with as many threads, on lists in memory; the time to build the lists does not count."""
    from gensim.models import Word2Vec as Gensim

    lists = [row["words"] for row in sentences.toLocalIterator()]
    given = {"vector_size": SIZE, "window": WINDOW, "negative": NEGATIVE, "sg": 1, "sample": 0, "min_count": 0}
    model = Gensim(**given, alpha=step_size, workers=WORKERS, seed=1)
    model.build_vocab(lists)
    began_s = time.monotonic()
    model.train(lists, total_examples=model.corpus_count, epochs=1)
    seconds = time.monotonic() - began_s
    return seconds, {word: model.wv[word] for word in model.wv.index_to_key}


def _pyspark(sentences: Any, step_size: float) -> tuple[float, Vectors]:
    """Train pyspark.ml's Word2Vec, with hierarchical softmax, in two partitions."""
    from pyspark.ml.feature import Word2Vec as Theirs

    given: dict[str, Any] = {"vectorSize": SIZE, "windowSize": WINDOW, "minCount": 0, "numPartitions": WORKERS}
    began_s = time.monotonic()
    model = Theirs(inputCol="words", stepSize=step_size, seed=1, **given).fit(sentences)
    seconds = time.monotonic() - began_s
    return seconds, {row["word"]: row["vector"].toArray() for row in model.getVectors().toLocalIterator()}


def _f1(asked: Asked, vectors: Vectors) -> tuple[float, float]:
    """Return Macro-F1 and Micro-F1 of labels, half of which are known."""
    vertices, wanted = data.labels(asked.data_dir)
    return data.f1(np.stack([vectors[str(vertex)] for vertex in vertices]).astype(np.float64), wanted, LABELLED)


def _neighbours(vectors: Vectors, pairs: Array) -> float:
    """Return the share of neighbours among the vertices with the nearest vectors, by cosine, for some vertices."""
    names = np.array(list(map(int, vectors)))
    units = np.stack(list(vectors.values())).astype(np.float32)
    units /= np.maximum(np.linalg.norm(units, axis=1, keepdims=True), 1e-9)
    asked = np.random.default_rng(5).choice(len(names), ASKED, replace=False)
    cosines = units[asked] @ units.T
    cosines[np.arange(ASKED), asked] = -np.inf
    nearest = names[np.argpartition(-cosines, NEAREST, axis=1)[:, :NEAREST]]
    width = pairs.max() + 1
    there = np.concatenate([pairs[:, 0] * width + pairs[:, 1], pairs[:, 1] * width + pairs[:, 0]])
    return float(np.isin(names[asked][:, None] * width + nearest, there).mean())


if __name__ == "__main__":
    answer(Asked, measure)
