"""Word2Vec, DeepWalk, Node2Vec, LINE and their models: what is learnt, files, pyspark.ml's model, and wrong tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pyspark.ml import feature
from pyspark.ml.linalg import VectorUDT

from ps2.algorithms import LINE, DeepWalk, Embedding, Node2Vec, Word2Vec, Word2VecModel
from ps2.algorithms.graph import DeepWalkModel, LINEModel
from ps2.errors import ConfigError, InputError

# Tasks reach it, so all of them run in the same Python workers.
pytestmark = pytest.mark.usefixtures("ps")

TREES, BEASTS = ("oak", "elm", "yew", "ash"), ("cat", "dog", "cow", "hen")
GROUP = 8
SMALL = {"vectorSize": 8, "seed": 1, "stepSize": 0.05}


@pytest.fixture(scope="module")
def sentences(spark):
    """Sentences of trees and sentences of beasts, one that is empty, and a word that is rare."""
    rng = np.random.default_rng(1)
    rows = [(number, rng.choice(TREES if number % 2 else BEASTS, 10).tolist()) for number in range(400)]
    return spark.createDataFrame([*rows, (400, []), (401, ["rare", "oak"])], "id int, words array<string>").repartition(
        2
    )


@pytest.fixture(scope="module")
def edges(spark):
    """Two groups of vertices with an edge between any two of one, and one edge between them; ids are far apart."""
    groups = [range(GROUP), range(GROUP, 2 * GROUP)]
    pairs = [(a, b) for group in groups for a in group for b in group if a < b]
    rows = [(7 * a, 7 * b, 1.0) for a, b in [*pairs, (0, GROUP)]]
    return spark.createDataFrame(rows, "src long, dst long, weight double").repartition(2).persist()


@pytest.fixture(scope="module")
def words(ps, sentences):
    return Word2Vec(inputCol="words", outputCol="vector", maxIter=10, numWorkers=2, **SMALL).fit(sentences)


@pytest.fixture(scope="module")
def walked(ps, edges):
    return DeepWalk(numWalks=4, walkLength=12, windowSize=3, maxIter=10, numWorkers=2, **SMALL).fit(edges)


def in_groups(embedding):
    """The share of each vertex's most similar ones that are of its own group."""
    result = [
        id // 7 // GROUP == other // 7 // GROUP
        for id in embedding.names.values.to_pylist()
        for other, _ in embedding.similar(id, 3)
    ]
    return np.mean(result)


def test_word2vec_when_trained_then_words_of_a_kind_are_alike(words):
    assert {word for word, _ in words.findSynonymsArray("oak", 3)} == set(TREES) - {"oak"}
    result = words.findSynonyms("cat", 3)
    assert result.dtypes == [("word", "string"), ("similarity", "double")]
    assert not result.schema["similarity"].nullable  # as pyspark.ml's
    assert {row["word"] for row in result.collect()} == set(BEASTS) - {"cat"}
    assert repr(words) == f"Word2VecModel: uid={words.uid}, n=8, vectorSize=8"


def test_word2vec_when_trained_then_vocabulary_is_by_frequency(words, sentences):
    counts = words.embedding.counts
    assert (counts.sum(), (np.diff(counts) <= 0).all(), "rare" in words.embedding) == (4001, True, False)
    assert words.getVectors().dtypes == [("word", "string"), ("vector", "vector")]
    assert [row["word"] for row in words.getVectors().collect()] == words.embedding.names.values.to_pylist()


def test_word2vec_when_trained_then_its_summary_tells_how(words):
    history = words.summary.history
    assert history.steps >= 1
    assert history.objective[-1] < history.objective[0]
    assert all(math.isfinite(value) for values in history.metrics.values() for value in values)


def test_transform_when_given_sentences_then_matches_pyspark(words, sentences):
    result, there = words.transform(sentences), words.toPyspark()
    assert isinstance(there, feature.Word2VecModel)
    assert isinstance(result.schema["vector"].dataType, VectorUDT)
    expected = [row["vector"].toArray() for row in there.transform(sentences).orderBy("id").collect()]
    ours = [row["vector"].toArray() for row in result.orderBy("id").collect()]
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    np.testing.assert_allclose(ours[7], words.embedding.transform(sentences.where("id = 7").first()[1:])[0])
    np.testing.assert_allclose(
        [value for _, value in words.findSynonymsArray("oak", 3)],
        [value for _, value in there.findSynonymsArray("oak", 3)],
        atol=1e-5,
    )
    assert (there.getVectorSize(), there.getInputCol()) == (8, "words")


def test_model_when_reloaded_then_same_with_or_without_spark(words, walked, tmp_path):
    words.save(str(tmp_path / "words"))
    loaded = Word2VecModel.load(str(tmp_path / "words"))
    assert (loaded.getInputCol(), loaded.hasSummary) == ("words", False)
    assert loaded.findSynonymsArray("oak", 2) == words.findSynonymsArray("oak", 2)
    alone = Embedding.load(str(tmp_path / "words"))
    alone.save(str(tmp_path / "again"))
    assert Word2VecModel.load(str(tmp_path / "again")).getVectorSize() == 8
    walked.save(str(tmp_path / "walked"))
    np.testing.assert_array_equal(
        DeepWalkModel.load(str(tmp_path / "walked")).embedding.vectors, walked.embedding.vectors
    )


def test_estimator_when_saved_and_loaded_then_params_match(spark, tmp_path):
    Node2Vec(p=0.5, via="rows", weightCol="w").save(str(tmp_path / "estimator"))
    result = Node2Vec.load(str(tmp_path / "estimator"))
    assert (result.getP(), result.getVia(), result.getWeightCol(), result.getQ()) == (0.5, "rows", "w", 1.0)


def test_deepwalk_when_trained_then_group_vertices_are_similar(walked, edges, tmp_path):
    assert in_groups(walked.embedding) > 0.9
    assert walked.vectors.dtypes == [("id", "bigint"), ("vector", "vector")]
    assert walked.vectors.count() == 2 * GROUP
    pairs = walked.score(edges.selectExpr("dst as src", "CAST(0 AS INT) as dst").limit(5)).collect()
    assert [row["score"] for row in pairs] == pytest.approx(walked.embedding.score([r["src"] for r in pairs], [0] * 5))
    assert walked.embedding.score([7, 7], [14, 7 * GROUP + 7]).argmax() == 0
    assert walked.score(edges.selectExpr("src", "dst + 1 as dst")).first()["score"] is None
    walked.plotEmbedding(tmp_path / "vectors.png", {0: "first"})
    assert (tmp_path / "vectors.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("kind", "ids"),
    [
        ("long", [2**60, 2**60 + 1, 2**63 - 1, -(2**63), -1]),
        ("int", [5, 6, 2**31 - 1, -(2**31)]),
        ("string", list("abcd")),
    ],
)
def test_score_when_ids_are_beside_nulls_then_they_stay_exact(spark, kind, ids):
    model = LINEModel(Embedding(ids, np.random.default_rng(1).normal(size=(len(ids), 4)), kind="line"))
    pairs = [(a, b) for a in ids for b in ids]
    with_nulls = [*pairs, (None, ids[0]), (ids[1], None), (None, None)]
    frame = spark.createDataFrame(with_nulls, f"src {kind}, dst {kind}").repartition(3)
    result = {(row["src"], row["dst"]): row["score"] for row in model.score(frame).collect()}
    expected = model.embedding.score(*zip(*pairs, strict=True))
    assert result == {**dict(zip(pairs, expected.tolist(), strict=True)), **dict.fromkeys(with_nulls[-3:])}


def test_score_when_ids_are_null_or_no_rows_then_none_is_scored(spark):
    model = LINEModel(Embedding([0, 1], np.eye(2), kind="line"))
    nulls = spark.createDataFrame([(None, None)] * 3, "src long, dst long")
    assert [row["score"] for row in model.score(nulls).collect()] == [None] * 3
    assert model.score(nulls.limit(0)).collect() == []


def test_node2vec_when_string_ids_and_server_graph_then_learns(edges):
    named = edges.selectExpr("concat('n', src) as a", "concat('n', dst) as b", "weight")
    model = Node2Vec(
        srcCol="a",
        dstCol="b",
        weightCol="weight",
        graphOn="servers",
        p=0.5,
        q=2.0,
        **{"numWalks": 4, "walkLength": 12, "windowSize": 3, "maxIter": 1, **SMALL},
    ).fit(named)
    ids = model.embedding.names.values.to_pylist()
    assert sorted(ids) == sorted(f"n{7 * vertex}" for vertex in range(2 * GROUP))
    with pytest.raises(InputError, match="expected ids, strings, got bigint"):
        model.score(edges.withColumnsRenamed({"src": "a", "dst": "b"}))


def test_line_when_trained_then_vertices_of_a_group_are_alike(edges):
    model = LINE(weightCol="weight", maxIter=40, **{**SMALL, "stepSize": 0.2}).fit(edges)
    assert isinstance(model, LINEModel)
    assert (model.embedding.vectors.shape, in_groups(model.embedding) > 0.9) == ((2 * GROUP, 8), True)
    assert model.summary.history.steps == 80


@pytest.mark.parametrize("hashed", [False, True])
def test_line_when_edges_are_directed_then_counted_at_source(spark, hashed):
    star = spark.createDataFrame(
        [(0, leaf, 2.0) for leaf in range(1, 6)] + [(1, 0, 4.0)], "src long, dst long, w double"
    )
    model = LINE(hashed=hashed, directed=True, weightCol="w", order="second", maxIter=1, numWorkers=1, **SMALL).fit(
        star
    )
    positions = model.embedding.names.known(range(6))
    # Six edges that weigh 14.
    assert model.embedding.sources[positions].tolist() == [4, 2, 0, 0, 0, 0]
    assert model.embedding.counts[positions].tolist() == [2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("rows", "schema", "message"),
    [
        ([], "words array<string>", "expected sentences, got an empty DataFrame"),
        ([(None,), (["a"],)], "words array<string>", "got null, or a null in one, in 1 of 2 rows; such a row: Row"),
        ([("a b",)], "words string", "column 'words': expected sentences, arrays of strings, got string"),
        ([(["a"] * 4 + ["b"] * 9,)], "words array<string>", "at least two words that occur 5 times"),
        ([([],)], "words array<string>", "all sentences are empty"),
        ([(["a"],)], "text array<string>", "there is no column 'words'; there are: text"),
    ],
)  # fmt: skip
def test_sentences_when_they_are_wrong_then_the_error_says_what(spark, rows, schema, message):
    with pytest.raises(InputError, match=message):
        Word2Vec(inputCol="words").fit(spark.createDataFrame(rows, schema))


@pytest.mark.parametrize(
    ("estimator", "rows", "message"),
    [
        (DeepWalk(), [(1, 1, 1.0)], "expected at least two vertices, got one"),
        (LINE(), [(1, 1, 1.0)], "expected at least two vertices, got one"),
        (
            DeepWalk(weightCol="w"),
            [(1, 2, 0.0)],
            "edges that walks can go along, got none of a weight above 0",
        ),
        (LINE(weightCol="w"), [(1, 2, 0.0)], "expected edges, got none of a weight above 0"),
        (LINE(hashed=True), [(1, 1, 1.0)], "expected at least two vertices, got one"),
        (LINE(hashed=True), [(1, -2, 1.0)], "expected ids that are not negative, to be hashed, got -2"),
        (LINE(hashed=True, weightCol="w"), [(1, 2, 0.0)], "expected edges, got none of a weight above 0"),
        (LINE(weightCol="w", hashed=True), [(1, 2, None)], "got null in 1 of 1 rows"),
    ],
)
def test_edges_when_they_are_wrong_then_the_error_says_what(spark, estimator, rows, message):
    with pytest.raises(InputError, match=message):
        estimator.fit(spark.createDataFrame(rows, "src int, dst int, w double"))


def test_word_when_unknown_or_empty_then_error_says_so(words):
    with pytest.raises(InputError, match="word: expected one of the 8 that have a vector, got 'rare'"):
        words.findSynonyms("rare", 2)
    with pytest.raises(ConfigError, match="n: expected an integer, at least 1, got 0"):
        words.findSynonyms("oak", 0)


def test_transform_when_table_is_wrong_then_error_says_what(spark, words, sentences):
    with pytest.raises(InputError, match="column 'id': it is there already"):
        words.copy({words.outputCol: "id"}).transform(sentences)
    with pytest.raises(Exception, match="column 'words': expected arrays of strings, got null"):  # by version, another
        words.transform(spark.createDataFrame([(None,)], "words array<string>")).collect()
    with pytest.raises(InputError, match="inputCol: expected the name of a column"):
        Word2Vec().fit(sentences)


def test_word2vec_when_sentences_are_few_then_one_worker_alone(ps, spark, sentences, words):
    few = spark.createDataFrame(sentences.collect(), sentences.schema).repartition(2).persist()
    few.count()
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    before = scheduler.numTotalJobs()
    model = Word2Vec(inputCol="words", maxIter=10, **SMALL).fit(few)
    placement = model.summary.placement
    assert scheduler.numTotalJobs() == before + 1
    assert (placement.workers, placement.via) == (1, "local")
    assert {word for word, _ in model.findSynonymsArray("oak", 3)} == set(TREES) - {"oak"}
    assert model.embedding.counts.tolist() == words.embedding.counts.tolist()


def test_word2vec_when_many_workers_then_placement_says_why(words):
    placement = words.summary.placement
    assert placement.workers == 2
    assert placement.reason.startswith("chosen by predicted time per token")
    assert all(name in placement.reason for name in ("'local'", "'rows'", "'servers'"))


def test_word2vec_when_few_sentences_have_nulls_then_error(ps, spark):
    bad = spark.createDataFrame([(["oak", None],), (["elm"],)], "words array<string>").persist()
    bad.count()
    with pytest.raises(InputError, match="got null, or a null in one, in 1 of 2 rows"):
        Word2Vec(inputCol="words").fit(bad)
