"""The rows of ``benchmarks.defaults``: files of ``--data-dir`` if they are there, and generated ones."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
import scipy.sparse as sp

from benchmarks import embeddings, ml_data, topics_data
from benchmarks.frame import tell
from benchmarks.local_spark import cached

Array = npt.NDArray[Any]
T = TypeVar("T")
HELD_OUT, LIKED = 0.2, 4
MOVIELENS, HIGGS = "ml-1m.ratings.txt.gz", "higgs7k.train.tsv.gz"
A9A, AGARICUS = "a9a.libsvm.gz", "agaricus.train.libsvm.gz"
FRAPPE = ("frappe.validation.libfm", "frappe.test.libfm")
# The generated rows: a seed, rows of numbers, of clicks and of ratings; words in a group, groups, and sentences.
SEED, ROWS, CLICKS, RATINGS = 5, 10_000, 300_000, 400_000
GROUP_WORDS, GROUPS, SENTENCES = 40, 25, 20_000


def _sets(folder: str, files: Mapping[str, tuple[tuple[str, ...], Callable[[], T]]]) -> dict[str, T]:
    """Return the sets whose files are in a folder, by name, and say which are left out."""
    sets = {}
    for name, (needed, read) in files.items():
        if missing := [file for file in needed if not folder or not (Path(folder) / file).is_file()]:
            tell(f"left out: {name}: no {', '.join(missing)} in --data-dir")
        else:
            sets[name] = read()
    return sets


def split(rows: Any, seed: int) -> tuple[Any, Any]:
    """Return the rows to train on and those that are held out, in Spark's cache."""
    train, test = rows.randomSplit([1 - HELD_OUT, HELD_OUT], seed)
    return cached(train), cached(test)


# -- rows of numbers ---------------------------------------------------------------------------------------------------


def labelled(spark: Any, folder: str) -> dict[str, Any]:
    """Return tables of features and labels 0 and 1."""
    x, margins = _generated()
    labels = np.random.default_rng(SEED).random(len(x)) < 1 / (1 + np.exp(-margins))
    return _sets(
        folder,
        {
            "a9a": ((A9A,), lambda: cached(ml_data.read_libsvm(spark, Path(folder) / A9A, 123))),
            "agaricus": ((AGARICUS,), lambda: cached(ml_data.read_libsvm(spark, Path(folder) / AGARICUS, 126))),
            "HIGGS, 7,000 rows": ((HIGGS,), lambda: _framed(spark, *_higgs(folder))),
            "generated": ((), lambda: _framed(spark, x, labels)),
        },
    )


def numbers(spark: Any, folder: str) -> dict[str, Any]:
    """Return tables of features and labels that are numbers; one of HIGGS's columns is predicted from the others."""
    x, margins = _generated()

    def last_column() -> Any:
        rows = _higgs(folder)[0]
        return _framed(spark, rows[:, :-1], rows[:, -1])

    y = margins + np.random.default_rng(SEED).normal(size=len(x))
    files = {"HIGGS, last column": ((HIGGS,), last_column), "generated": ((), lambda: _framed(spark, x, y))}
    return _sets(folder, files)


def points(spark: Any, folder: str) -> dict[str, Any]:
    """Return tables of features to cluster."""
    rng = np.random.default_rng(SEED)
    groups = rng.normal(size=(50, 20))[rng.integers(0, 50, ROWS)] + rng.normal(scale=0.5, size=(ROWS, 20))
    files = {
        "HIGGS, 7,000 rows": ((HIGGS,), lambda: _framed(spark, *_higgs(folder))),
        "generated": ((), lambda: _framed(spark, groups, np.zeros(ROWS))),
    }
    return _sets(folder, files)


def matrix(rows: Any) -> Any:
    """Return the features of a table as a sparse matrix."""
    return ml_data.collected(rows).x


def _generated() -> tuple[Array, Array]:
    """Return rows of numbers, and margins that are linear except for the product of two columns."""
    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(ROWS, 20))
    return x, x @ rng.normal(scale=0.4, size=20) + x[:, 0] * x[:, 1]


def _higgs(folder: str) -> tuple[Array, Array]:
    rows = np.loadtxt(Path(folder) / HIGGS)
    return rows[:, 1:], rows[:, 0]


def _framed(spark: Any, x: Array, y: Array) -> Any:
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    ends = np.arange(0, x.size + 1, x.shape[1], dtype=np.int32)
    lists = pa.ListArray.from_arrays(ends, pa.array(np.ascontiguousarray(x, np.float64).reshape(-1)))
    table = spark.createDataFrame(pa.table({"label": np.asarray(y, np.float64), "x": lists}))
    return cached(table.select("label", array_to_vector(F.col("x")).alias("features")))


# -- ratings and clicks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ratings:
    """Ratings as arrays; users and items are numbers from 0 on."""

    users: Array
    items: Array
    values: Array

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of users and of items."""
        return int(self.users.max()) + 1, int(self.items.max()) + 1

    def held(self, seed: int) -> Array:
        """Return the mask of the ratings to hold out."""
        return np.random.default_rng(seed).random(len(self.users)) < HELD_OUT

    def frames(self, spark: Any, seed: int) -> tuple[Any, Any]:
        """Return the ratings to train on and those that are held out."""
        columns = {"user": self.users.astype(np.int32), "item": self.items.astype(np.int32)}
        rows = pa.table({**columns, "rating": self.values.astype(np.float32)})
        held = pa.array(self.held(seed))
        parts = rows.filter(pa.compute.invert(held)), rows.filter(held)
        return cached(spark.createDataFrame(parts[0])), cached(spark.createDataFrame(parts[1]))

    def clicks(self) -> Ratings:
        """Return the pairs of high ratings, once each."""
        pairs = np.unique(np.stack([self.users, self.items], axis=1)[self.values >= LIKED], axis=0)
        return Ratings(pairs[:, 0], pairs[:, 1], np.ones(len(pairs)))

    def cells(self, seed: int) -> Any:
        """Return the matrix of the clicks to train on."""
        used = ~self.held(seed)
        ones = np.ones(int(used.sum()), np.float32)
        return sp.csr_matrix((ones, (self.users[used], self.items[used])), self.counts)

    def recall(self, users: Array, items: Array, seed: int, first: int) -> float:
        """Return the mean share of a user's held-out items among its best ``first`` that it has not clicked."""
        held, scores = self.held(seed), users @ items.T
        scores[self.users[~held], self.items[~held]] = -np.inf
        best = np.argpartition(-scores, first, axis=1)[:, :first]
        expected = np.zeros(scores.shape, np.bool_)
        expected[self.users[held], self.items[held]] = True
        counts = expected.sum(axis=1)
        hits = np.take_along_axis(expected, best, axis=1).sum(axis=1)
        return float(np.mean(hits[counts > 0] / np.minimum(counts[counts > 0], first)))


def ratings(folder: str) -> dict[str, Ratings]:
    """Return tables of ratings."""
    rng = np.random.default_rng(SEED)
    users, items = (
        (RATINGS // 40 * rng.random(RATINGS) ** 2).astype(int),
        (2_000 * rng.random(RATINGS) ** 2).astype(int),
    )
    users, items = np.unique(np.stack([users, items]), axis=1)
    p, q = rng.normal(scale=0.6, size=(RATINGS // 40, 5)), rng.normal(scale=0.6, size=(2_000, 5))
    values = 3.5 + rng.normal(scale=0.4, size=2_000)[items] + (p[users] * q[items]).sum(axis=1)
    values = np.clip(np.round(values + rng.normal(scale=0.7, size=len(users))), 1, 5)
    files = {
        "MovieLens 1M": ((MOVIELENS,), lambda: _movielens(folder)),
        "generated": ((), lambda: Ratings(users, items, values)),
    }
    return _sets(folder, files)


def _movielens(folder: str) -> Ratings:
    with gzip.open(Path(folder) / MOVIELENS) as file:
        rows = np.loadtxt(file, np.int64)
    users, items = (np.unique(ids, return_inverse=True)[1] for ids in (rows[:, 0], rows[:, 1]))
    return Ratings(users, items, rows[:, 2].astype(float))


@dataclass(frozen=True, eq=False)
class Clicks:
    """Rows of one key in each column, and labels 0 and 1."""

    keys: Array
    labels: Array

    @property
    def columns(self) -> list[str]:
        return [f"c{index}" for index in range(self.keys.shape[1])]

    def _held(self, seed: int) -> Array:
        return np.random.default_rng(seed).random(len(self.labels)) < HELD_OUT

    def frames(self, spark: Any, seed: int) -> tuple[Any, Any]:
        """Return the rows to train on and those that are held out."""
        held, columns = self._held(seed), dict(zip(self.columns, self.keys.T, strict=True))
        rows = pa.table({**columns, "label": self.labels.astype(np.float64)})
        parts = rows.filter(pa.array(~held)), rows.filter(pa.array(held))
        return cached(spark.createDataFrame(parts[0])), cached(spark.createDataFrame(parts[1]))

    def arrays(self, seed: int) -> dict[str, Any]:
        """Return the arrays that ``benchmarks.deep_torch`` reads: keys count through all columns."""
        held, sizes = self._held(seed), self.keys.max(axis=0) + 1
        keys = self.keys + np.append(0, np.cumsum(sizes)[:-1])
        labels = self.labels.astype(np.int8)
        parts = {"train": keys[~held], "test": keys[held], "train_labels": labels[~held], "test_labels": labels[held]}
        return {"keys": int(sizes.sum()), **parts}


def clicks(folder: str) -> dict[str, Clicks]:
    """Return tables of clicks."""
    rng, counts = np.random.default_rng(SEED), (20_000, 2_000, 300)
    keys = [np.minimum(rng.zipf(power, CLICKS), count) - 1 for power, count in zip((1.2, 1.3), counts, strict=False)]
    keys.append(rng.integers(0, counts[2], CLICKS))
    margins = sum(rng.normal(0, 0.6, count)[one] for one, count in zip(keys, counts, strict=True)) - 2.2
    vectors = [rng.normal(0, 0.5, (count, 4)) for count in counts[:2]]
    margins += (vectors[0][keys[0]] * vectors[1][keys[1]]).sum(axis=1)
    labels = rng.random(CLICKS) < 1 / (1 + np.exp(-margins))

    def liked() -> Clicks:
        rated = _movielens(folder)
        return Clicks(np.stack([rated.users, rated.items], axis=1), rated.values >= LIKED)

    files = {
        "MovieLens 1M, liked": ((MOVIELENS,), liked),
        "frappe": (FRAPPE, lambda: _frappe(folder)),
        "generated": ((), lambda: Clicks(np.stack(keys, axis=1), labels)),
    }
    return _sets(folder, files)


def _frappe(folder: str) -> Clicks:
    lines = [line.split() for name in FRAPPE for line in (Path(folder) / name).read_text().splitlines()]
    keys = np.array([[int(part.partition(":")[0]) for part in line[1:]] for line in lines])
    return Clicks(keys, np.array([float(line[0]) > 0 for line in lines]))


# -- documents and sentences -------------------------------------------------------------------------------------------


def corpora(folder: str) -> dict[str, Any]:
    """Return counts of words in documents, as sparse matrices."""
    rng = np.random.default_rng(SEED)
    documents, tokens = 2_000, 100
    topics = rng.dirichlet(np.full(1_000, 0.05), 10)
    shares = rng.dirichlet(np.full(10, 0.2), documents) @ topics
    counts = sp.csr_array(np.stack([rng.multinomial(tokens, one / one.sum()) for one in shares]))
    files = {"KOS": ((topics_data.KOS,), lambda: topics_data.kos(folder)), "generated": ((), lambda: counts)}
    return _sets(folder, files)


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of words: a matrix of 0 and 1 with a row for each of ``words``."""

    words: list[str]
    matrix: Any

    def nearest_share(self, vectors: Mapping[str, Array], count: int) -> float:
        """Return the share of the ``count`` nearest labelled words, by cosine, that share a label with the word."""
        known = [index for index, word in enumerate(self.words) if word in vectors]
        rows = np.stack([vectors[self.words[index]] for index in known]).astype(np.float32)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        cosines = rows @ rows.T
        np.fill_diagonal(cosines, -np.inf)
        nearest = np.argpartition(-cosines, count, axis=1)[:, :count]
        labels = self.matrix[known]
        is_alike = (labels @ labels.T).toarray() > 0
        return float(np.take_along_axis(is_alike, nearest, axis=1).mean())


@dataclass(frozen=True, eq=False)
class Corpus:
    """``sentences`` returns a table of ``words`` by seed; ``labels`` are those of the words."""

    sentences: Callable[[int], Any]
    labels: Labels


def sentences(spark: Any, folder: str) -> dict[str, Corpus]:
    """Return sentences whose words have labels: walks through BlogCatalog's graph, and generated groups of words."""
    names = [f"w{index}" for index in range(GROUP_WORDS * GROUPS)]
    groups = sp.csr_array((np.ones(len(names)), (np.arange(len(names)), np.arange(len(names)) // GROUP_WORDS)))

    def generated(seed: int) -> Any:
        rng = np.random.default_rng([SEED, seed])
        own = rng.integers(0, GROUPS, (SENTENCES, 1)) * GROUP_WORDS + rng.integers(0, GROUP_WORDS, (SENTENCES, 12))
        chosen = np.where(rng.random(own.shape) < 0.6, own, rng.integers(0, len(names), own.shape))
        ends = np.arange(0, chosen.size + 1, chosen.shape[1], dtype=np.int32)
        lists = pa.ListArray.from_arrays(ends, pa.array(np.array(names)[chosen.reshape(-1)]))
        return spark.createDataFrame(pa.table({"words": lists}))

    def walks() -> Corpus:
        from pyspark.sql import functions as F

        from ps2.algorithms import RandomWalks

        edges = embeddings.framed(spark, embeddings.edges(folder))
        vertices, matrix = embeddings.labels(folder)

        def walk(seed: int) -> Any:
            rows = RandomWalks(numWalks=2, walkLength=40, seed=seed).transform(edges)
            return rows.select(F.col("walk").cast("array<string>").alias("words"))

        return Corpus(walk, Labels(list(map(str, vertices)), matrix.astype(float)))

    files = {
        "walks through BlogCatalog": ((embeddings.EDGES, embeddings.LABELS), walks),
        "generated": ((), lambda: Corpus(generated, Labels(names, groups))),
    }
    return _sets(folder, files)
