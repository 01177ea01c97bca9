"""MatrixFactorizationModel on given factors: pyspark.ml's ALSModel says the same, whatever the ids and the tasks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml import recommendation
from pyspark.sql.types import FloatType, IntegerType

from ps2.algorithms import MatrixFactorizationModel, MatrixFactors
from ps2.errors import ConfigError, InputError, UsageError

USERS, ITEMS, RANK = 70, 50, 6


def factors(kind="int32", biases=False, users=USERS, items=ITEMS):
    rng = np.random.default_rng(7)
    ids = rng.permutation(10 * users)[:users], rng.permutation(10 * items)[:items]
    arrays = [pa.array(each).cast(pa.type_for_alias(kind)) for each in ids]
    p, q = rng.normal(size=(users, RANK)), rng.normal(size=(items, RANK))
    more = (rng.normal(size=users), rng.normal(size=items), 3.5) if biases else ()
    return MatrixFactors(*arrays, p, q, *more)


@pytest.fixture(scope="module")
def model(spark):
    return MatrixFactorizationModel(factors())


@pytest.fixture(scope="module")
def biased(spark):
    return MatrixFactorizationModel(factors(biases=True))


@pytest.fixture(scope="module")
def pairs(spark, model):
    """Pairs of known ids, and some of unknown ones."""
    rng = np.random.default_rng(8)
    names = model.factors
    known = [(int(rng.choice(names.users)), int(rng.choice(names.items))) for _ in range(200)]
    rows = [*known, (names.users[0], -1), (-1, names.items[0]), (-1, -1)]
    return spark.createDataFrame(rows, "user int, item int").repartition(3).cache()


def lists(frame):
    """Recommendations by id: other ids and ratings."""
    own, result = frame.columns
    return {row[own]: [tuple(each) for each in row[result]] for row in frame.collect()}


def assert_same_lists(ours, theirs):
    """Compare lists of the same ids; ratings may round in another way, and then change places."""
    assert ours.keys() == theirs.keys()
    for id, result in ours.items():
        np.testing.assert_allclose([r for _, r in result], [r for _, r in theirs[id]], rtol=1e-5, atol=1e-5)
        assert [other for other, _ in result] == [other for other, _ in theirs[id]]


@pytest.mark.parametrize("k", [7, 1000])
def test_recommend_when_for_all_users_then_lists_are_pysparks(model, k):
    ours, theirs = model.recommendForAllUsers(k), model.toPyspark().recommendForAllUsers(k)
    assert ours.dtypes == theirs.dtypes
    assert_same_lists(lists(ours), lists(theirs))


def test_recommend_when_for_all_items_then_lists_are_pysparks(biased):
    ours, theirs = biased.recommendForAllItems(5), biased.toPyspark().recommendForAllItems(5)
    assert ours.dtypes == theirs.dtypes
    assert_same_lists(lists(ours), lists(theirs))


def test_recommend_when_ratings_are_equal_then_order_is_pysparks(spark):
    rng = np.random.default_rng(9)
    p, q = rng.integers(-1, 2, (30, 2)), rng.integers(-1, 2, (40, 2))
    tied = MatrixFactorizationModel(MatrixFactors(np.arange(30, dtype=np.int32), np.arange(40, dtype=np.int32), p, q))
    # With one block of items, every item takes part in pyspark.ml's own order of equal ratings.
    assert lists(tied.recommendForAllUsers(40)) == lists(tied.toPyspark().recommendForAllUsers(40))


def test_recommend_when_for_a_subset_then_known_ones_come_once(model, pairs):
    users = {row["user"] for row in pairs.collect()} - {-1}
    ours, theirs = model.recommendForUserSubset(pairs, 4), model.toPyspark().recommendForUserSubset(pairs, 4)
    assert set(lists(ours)) == users
    assert ours.count() == len(users)
    assert_same_lists(lists(ours), lists(theirs))
    items = {row["item"] for row in pairs.collect()} - {-1}
    assert set(lists(model.recommendForItemSubset(pairs, 4))) == items


@pytest.mark.parametrize("min_pairs", [1, 64, 1 << 16])
def test_recommend_when_pairs_are_excluded_then_others_come(model, pairs, monkeypatch, min_pairs):
    monkeypatch.setattr("ps2.algorithms.factors.recommendation_frame.MIN_PAIRS", min_pairs)
    names, seen = model.factors, pairs.union(pairs).selectExpr("user", "item", "1 as day")
    excluded = {(row["user"], row["item"]) for row in pairs.collect()}
    result = lists(model.recommendForAllUsers(45, exclude=seen))
    assert list(result) == list(names.users)  # in the order of the ids
    for user in names.users:
        assert result[user] == names.recommend(user, 45, exclude=[item for who, item in excluded if who == user])
    for item, best in lists(model.recommendForAllItems(USERS, exclude=seen)).items():
        assert {user for user, _ in best} == {user for user in names.users if (user, item) not in excluded}
    some = pairs.where("item % 2 = 0")
    subset = lists(model.recommendForUserSubset(some, 45, exclude=seen))
    assert subset == {user: result[user] for user in subset}
    assert set(subset) == {row["user"] for row in some.collect()} - {-1}


def test_recommend_when_all_items_are_excluded_then_lists_empty(spark, model):
    names = model.factors
    seen = spark.createDataFrame([(names.users[0], item) for item in names.items] + [(None, 1)], "user int, item int")
    assert lists(model.recommendForAllUsers(3, exclude=seen))[names.users[0]] == []
    with pytest.raises(InputError, match="'item': expected integers, as the items that the model knows are"):
        model.recommendForAllUsers(3, exclude=seen.selectExpr("user", "string(item) as item"))


def test_recommend_when_tasks_are_many_then_no_bit_changes(spark, monkeypatch):
    large = MatrixFactorizationModel(factors(users=3000, items=1500))
    expected = lists(large.recommendForAllUsers(6))
    monkeypatch.setattr("ps2.algorithms.factors.recommendation_frame.MIN_USERS", 100)
    assert large.recommendForAllUsers(6).rdd.getNumPartitions() > 2
    assert lists(large.recommendForAllUsers(6)) == expected
    some = large.factors.users[5]
    assert large.recommend(some, 6) == expected[some]


def test_transform_when_ids_are_known_then_same_as_pysparks(biased, pairs):
    ours, theirs = biased.transform(pairs), biased.toPyspark().transform(pairs)
    assert ours.dtypes == theirs.dtypes
    by_pair = [{(row[0], row[1]): row["prediction"] for row in frame.collect()} for frame in (ours, theirs)]
    # To the last bit: both add up from the first number on.
    np.testing.assert_array_equal(*([result[pair] for pair in sorted(result)] for result in by_pair))


def test_transform_when_ids_are_unknown_then_nan_or_dropped(model, pairs):
    kept = model.transform(pairs).collect()
    assert sum(np.isnan(row["prediction"]) for row in kept) == 3
    dropped = model.copy().setColdStartStrategy("Drop").transform(pairs)
    assert dropped.count() == len(kept) - 3
    assert dropped.where("isnan(prediction)").count() == 0


def test_transform_when_an_id_is_null_then_nan_or_dropped(spark, model):
    """Large ids beside nulls stay exact."""
    large = MatrixFactorizationModel._of(MatrixFactors([2**60 + 1], [2, 3], [[2.0]], [[3.0], [4.0]]))
    for trained in (model, large):
        user, item = int(trained.factors.users[0]), int(trained.factors.items[0])
        frame = spark.createDataFrame([(user, item), (None, item), (user, None)], "user long, item long")
        predictions = [row.prediction for row in trained.transform(frame).collect()]
        assert predictions[0] == trained.predict([user], [item])[0]
        assert np.isnan(predictions[1:]).all()
        assert trained.copy().setColdStartStrategy("drop").transform(frame).count() == 1


def test_transform_when_a_column_is_wrong_then_error(spark, model):
    frame = spark.createDataFrame([("1", 2, 0.5)], "user string, item int, prediction double")
    with pytest.raises(InputError, match="column 'user': expected integers, as the users that the model knows"):
        model.transform(frame)
    with pytest.raises(InputError, match="column 'prediction': it is there already"):
        model.transform(frame.selectExpr("1 as user", "item", "prediction"))
    with pytest.raises(InputError, match="nothing"):
        model.copy().setItemCol("nothing").transform(frame.selectExpr("1 as user"))
    with pytest.raises(InputError, match="expected a DataFrame of Spark"):
        model.recommendForUserSubset([1, 2], 3)


def test_recommend_when_number_is_invalid_then_error(model):
    with pytest.raises(ConfigError, match="k: expected an integer, at least 1, got 0"):
        model.recommendForAllUsers(0)


def test_factors_when_collected_then_are_the_arrays(model, biased):
    rows = model.userFactors.collect()
    assert [row["id"] for row in rows] == list(model.factors.users)
    np.testing.assert_array_equal(np.array([row["features"] for row in rows], np.float32), model.factors.userFactors)
    assert model.itemFactors.dtypes == [("id", "int"), ("features", "array<float>")]
    rows = biased.itemFactors.collect()
    np.testing.assert_array_equal(np.array([row["bias"] for row in rows], np.float32), biased.factors.itemBias)
    assert (model.rank, biased.mean) == (RANK, 3.5)


@pytest.mark.parametrize("kind", ["int8", "int16", "int64", "string"])
def test_model_when_ids_have_another_type_then_frames_have_it(spark, kind):
    names = list("abcdefgh") if kind == "string" else range(8)
    ids = pa.array(list(names), pa.type_for_alias(kind))
    rng = np.random.default_rng(3)
    created = MatrixFactorizationModel(MatrixFactors(ids, ids, rng.normal(size=(8, 2)), rng.normal(size=(8, 2))))
    word = {"int8": "tinyint", "int16": "smallint", "int64": "bigint", "string": "string"}[kind]
    result = created.recommendForAllUsers(2)
    assert result.dtypes == [("user", word), ("recommendations", f"array<struct<item:{word},rating:float>>")]
    assert lists(result) == {id: created.recommend(id, 2) for id in names}
    rated = created.transform(created.userFactors.selectExpr("id as user", "id as item")).collect()
    np.testing.assert_array_equal([row["prediction"] for row in rated], created.predict(names, names))


@pytest.mark.parametrize("ids", [["a", "b"], [1, 2**31], [-(2**31) - 1, 1]])
def test_to_pyspark_when_ids_are_wide_then_error_says_so(spark, ids):
    created = MatrixFactorizationModel(MatrixFactors([1, 2], ids, np.eye(2), np.eye(2)))
    with pytest.raises(UsageError, match="toPyspark: expected items' ids that are integers of 32 bits"):
        created.toPyspark()


def test_to_pyspark_when_converted_then_params_and_uid_are_kept(model):
    theirs = model.copy().setUserCol("u").setColdStartStrategy("drop").toPyspark()
    assert isinstance(theirs, recommendation.ALSModel)
    assert (theirs.uid, theirs.rank) == (model.uid, RANK)
    assert (theirs.getUserCol(), theirs.getColdStartStrategy()) == ("u", "drop")
    kinds = [field.dataType for field in theirs.userFactors.schema]
    assert (kinds[0], kinds[1].elementType) == (IntegerType(), FloatType())


def test_model_when_reloaded_then_predicts_with_or_without_spark(biased, pairs, tmp_path):
    biased.copy().setPredictionCol("p").save(str(tmp_path / "model"))
    again = MatrixFactorizationModel.load(str(tmp_path / "model"))
    assert (again.uid, again.getPredictionCol(), repr(again)) == (biased.uid, "p", repr(biased))
    assert not again.hasSummary
    expected = biased.transform(pairs).collect()
    np.testing.assert_array_equal(
        [row["p"] for row in again.transform(pairs).collect()], [row["prediction"] for row in expected]
    )
    alone = MatrixFactors.load(str(tmp_path / "model"))
    alone.save(str(tmp_path / "again"))
    user = alone.users[3]
    assert MatrixFactorizationModel.load(str(tmp_path / "again")).recommend(user, 4) == biased.recommend(user, 4)


def test_model_when_similar_is_asked_then_it_is_of_factors(model):
    item, user = model.factors.items[0], model.factors.users[0]
    assert model.similarItems(item, 3) == model.factors.similarItems(item, 3)
    assert model.similarUsers(user, 3) == model.factors.similarUsers(user, 3)


def test_model_when_it_is_of_pyspark_then_isinstance_says_yes(model):
    assert isinstance(model, recommendation.ALSModel)
