"""LDA and its model: what is trained, pyspark.ml on the same topics, files, and the look at documents before."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pyspark.ml import clustering
from pyspark.ml.linalg import DenseMatrix, SparseVector, Vectors, VectorUDT
from pyspark.sql import functions as F
from topics_training import DOCUMENTS, TOPICS, WORDS, documents

from ps2.algorithms import LDA, LDAModel, LDATopics
from ps2.algorithms.frame.dealing import deal
from ps2.algorithms.frame.tables import check_columns
from ps2.algorithms.frame.unlabelled import survey_documents
from ps2.algorithms.training.faults import ColumnNames
from ps2.errors import InputError, UsageError

SMALL = {"k": TOPICS, "maxIter": 8, "numWorkers": 2, "seed": 3}


@pytest.fixture(scope="module")
def frame(spark):
    """Documents, of which the twelfth is empty; word 7 is in none."""
    rows = [(n, SparseVector(WORDS, *row)) for n, row in enumerate(map(entries, documents().toarray()))]
    return spark.createDataFrame(rows, ["id", "counts"]).repartition(2).cache()


def entries(row):
    words = np.flatnonzero(row)
    return words.tolist(), row[words].astype(float).tolist()


@pytest.fixture(scope="module")
def model(ps, frame):
    return LDA(featuresCol="counts", **SMALL).fit(frame)


def shares_of(model, frame, name="topicDistribution"):
    rows = model.transform(frame).orderBy("id").select(name).collect()
    return np.array([row[0].toArray() for row in rows])


def test_fit_when_sampled_then_each_token_has_a_topic(model):
    assert isinstance(model, LDAModel)
    assert model.topics.counts.sum() == documents().sum()
    np.testing.assert_array_equal(model.topics.counts.sum(axis=1), documents().sum(axis=0))
    np.testing.assert_array_equal(model.estimatedDocConcentration(), [0.1] * TOPICS)
    assert (model.vocabSize(), model.isDistributed(), model.topics.beta) == (WORDS, False, 0.01)
    assert repr(model) == f"LDAModel: uid={model.uid}, k={TOPICS}, numFeatures={WORDS}"


def test_summary_when_trained_then_tells_of_each_iteration(model, tmp_path):
    summary = model.summary
    assert (len(summary.objectiveHistory), summary.totalIterations) == (8, 8)
    assert summary.objectiveHistory[-1] < summary.objectiveHistory[0]
    summary.plot(tmp_path / "likelihood.png")
    assert (tmp_path / "likelihood.png").stat().st_size > 1000
    assert "8 iterations in" in summary._repr_html_()
    assert "ms an iteration" in summary._repr_html_()


def test_transform_when_sampled_then_shares_match_arrays(model, frame):
    shares = shares_of(model, frame)
    np.testing.assert_allclose(shares, model.topics.transform(documents()))
    np.testing.assert_allclose(shares[11], 1 / TOPICS)
    result = model.transform(frame).schema["topicDistribution"]
    assert (result.dataType, result.metadata) == (VectorUDT(), {"ml_attr": {"num_attrs": TOPICS}})


def test_pyspark_when_given_same_topics_then_results_match(model, frame):
    ours, theirs = model.copy({model.inference: "variational"}), model.toPyspark()
    assert isinstance(theirs, clustering.LocalLDAModel)
    assert ours.describeTopics(4).schema == theirs.describeTopics(4).schema
    for one, other in zip(ours.describeTopics(4).collect(), theirs.describeTopics(4).collect(), strict=True):
        assert one.termIndices == other.termIndices
        np.testing.assert_allclose(one.termWeights, other.termWeights)
    words = [f"w{word}" for word in range(WORDS)]
    for row in ours.describeTopics(2, vocabulary=words).collect():
        assert row.terms == [words[word] for word in row.termIndices]
    np.testing.assert_allclose(ours.topicsMatrix().toArray(), theirs.topicsMatrix().toArray())
    np.testing.assert_array_equal(ours.estimatedDocConcentration(), theirs.estimatedDocConcentration())
    assert (theirs.vocabSize(), theirs.getK(), theirs.getFeaturesCol()) == (WORDS, TOPICS, "counts")
    assert ours.logLikelihood(frame) == pytest.approx(theirs.logLikelihood(frame), rel=1e-3)
    assert ours.logPerplexity(frame) == pytest.approx(theirs.logPerplexity(frame), rel=1e-3)
    with_words = frame.where("id != 11")
    # Both begin a document at random: one of few words may come to another optimum.
    apart = np.abs(np.asarray(shares_of(ours, with_words)) - np.asarray(shares_of(theirs, with_words))).max(axis=1)
    assert np.mean(apart < 5e-3) > 0.9


def test_likelihoods_when_of_dataframe_then_match_arrays(model, frame):
    x = documents()
    assert model.logLikelihood(frame) == pytest.approx(model.topics.logLikelihood(x))
    assert model.logPerplexity(frame) == pytest.approx(model.topics.logPerplexity(x))
    assert model.perplexity(frame, seed=2) == pytest.approx(model.topics.perplexity(x, seed=2))
    assert 1 < model.perplexity(frame) < WORDS


def test_vis_when_of_a_dataframe_then_has_its_documents(model, frame):
    words = [f"word{n}" for n in range(WORDS)]
    result, expected = model.toPyLDAvis(frame, words), model.topics.toPyLDAvis(documents(), words)
    assert sorted(result) == ["doc_lengths", "doc_topic_dists", "term_frequency", "topic_term_dists", "vocab"]
    np.testing.assert_array_equal(result["term_frequency"], expected["term_frequency"])
    np.testing.assert_array_equal(np.sort(result["doc_lengths"]), np.sort(expected["doc_lengths"]))
    assert result["doc_topic_dists"].shape == (DOCUMENTS - 1, TOPICS)


def test_model_when_reloaded_then_same_with_or_without_spark(model, frame, tmp_path):
    path = str(tmp_path / "model")
    model.copy({model.topicDistributionCol: "shares"}).write().overwrite().save(path)
    loaded = LDAModel.load(path)
    assert (loaded.getTopicDistributionCol(), loaded.getK(), loaded.hasSummary) == ("shares", TOPICS, False)
    np.testing.assert_array_equal(loaded.topics.counts, model.topics.counts)
    np.testing.assert_array_equal(LDATopics.load(path).transform(documents()), shares_of(loaded, frame, "shares"))
    LDATopics.load(path).save(str(tmp_path / "alone"))
    again = LDAModel.load(str(tmp_path / "alone"))
    assert (again.vocabSize(), again.getK(), again.getSeed(), again.topics.seed) == (WORDS, TOPICS, 3, 3)


def test_save_when_inference_was_changed_then_arrays_have_it(model, tmp_path):
    changed = model.copy()
    changed.setInference("variational").save(str(tmp_path / "model"))
    assert LDATopics.load(str(tmp_path / "model")).inference == "variational"


def test_estimator_when_saved_and_loaded_then_params_match(spark, tmp_path):
    lda = LDA(k=3, docConcentration=0.5, optimizer="online", sync="average")
    lda.save(str(tmp_path / "lda"))
    result = LDA.load(str(tmp_path / "lda"))
    assert (result.getDocConcentration(), result.getOptimizer(), result.getSync()) == ([0.5], "online", "average")


def test_fit_when_online_then_topics_are_found_too(ps, frame):
    model = LDA(featuresCol="counts", optimizer="online", subsamplingRate=1.0, **SMALL).fit(frame)
    assert (model.topics.inference, model.topics.beta, model.vocabSize()) == ("variational", 1 / TOPICS, WORDS)
    assert model.perplexity(frame) < WORDS


def test_to_pyspark_when_there_is_one_topic_then_is_refused(spark):
    with pytest.raises(UsageError, match=r"pyspark\.ml's LDA has at least two topics"):
        LDAModel(LDATopics([[1], [2]], [0.1], 0.1)).toPyspark()


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("'a'", "'counts': expected vectors of pyspark.ml or arrays of numbers, got string"),
        ("if(id = 11, null, array(1))", "counts: 1 of 40 rows hold null, such as row"),
        ("if(id = 11, array(1, 2), array(1))", "have another size"),
        # So many tokens would take more servers' memory, and matrices of more rows, than there may be.
        ("array(if(id = 11, 1e300D, 1D))", r"1 of 40 rows hold values that are no counts, such as 1e\+300 in row"),
    ],
)
def test_fit_when_rows_are_no_counts_then_error_says_how_many(ps, frame, column, message):
    with pytest.raises(InputError, match=message):
        LDA(featuresCol="counts", **SMALL).fit(frame.withColumn("counts", F.expr(column)))


def test_transform_when_documents_are_invalid_then_says_why(spark, model, frame):
    others = spark.createDataFrame([(Vectors.dense([1.0, 2.0]),)], ["counts"])
    with pytest.raises(Exception, match=rf"expected size {WORDS} as in training, got 2"):
        model.transform(others).collect()
    with pytest.raises(Exception, match=rf"such as 2 in row 0 of rdd_partition 0: expected size {WORDS}"):
        model.logPerplexity(others)
    with pytest.raises(InputError, match="there is no column 'counts'"):
        model.transform(frame.select("id"))


def test_transform_when_word_was_unseen_then_prior_is_used(spark, model):
    unseen = spark.createDataFrame([(0, Vectors.sparse(WORDS, {7: 3.0}))], ["id", "counts"])
    assert shares_of(model, unseen).sum() == pytest.approx(1.0)


def test_matrix_when_asked_for_then_has_a_row_a_word(model):
    matrix = model.topicsMatrix()
    assert isinstance(matrix, DenseMatrix)
    np.testing.assert_allclose(matrix.toArray(), model.topics.counts + 0.01)


COLUMNS = ColumnNames("counts", label=None)
FEW = [(Vectors.sparse(3, {0: 2.0, 2: 1.0}),), (Vectors.dense([0, 4, 0]),), (Vectors.sparse(3, {}),)]


def test_survey_when_rows_are_documents_then_counts_tokens(spark):
    frame = spark.createDataFrame(FEW, ["counts"])
    check_columns(frame, COLUMNS)
    result = survey_documents(frame, COLUMNS)
    assert (result.rows, result.tokens, result.dim) == (3, 7, 3)
    table = deal(frame, COLUMNS, result, 2)
    assert (table.frame.columns, table.workers) == (["counts"], 2)


def test_survey_when_documents_are_arrays_then_counts_tokens_too(spark):
    result = survey_documents(spark.createDataFrame([([1, 0],), ([0, 5],)], "counts array<int>"), COLUMNS)
    assert (result.tokens, result.dim) == (6, 2)
    strange = spark.createDataFrame([([1e300, 2.0],), ([math.inf, math.nan],), ([None, 3.0],)], "counts array<double>")
    assert survey_documents(strange, COLUMNS).tokens == 9


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([([0, 0],), ([0, 0],)], "counts: expected counts of words, but all of 2 documents are empty"),
        ([([],), ([1],)], "'counts': expected features, got a vector of size 0 in the first row"),
        ([(None,), ([1],)], "'counts': expected vectors or arrays, got null in 1 rows"),
        ([], "expected rows to train on, got an empty DataFrame"),
    ],
)
def test_survey_when_no_word_to_train_on_then_error_says_so(spark, rows, message):
    with pytest.raises(InputError, match=message):
        survey_documents(spark.createDataFrame(rows, "counts array<int>"), COLUMNS)
