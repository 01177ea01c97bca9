"""Trained factors without Spark: predictions, recommendations, similar ids, files, and wrong arrays."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pyarrow as pa
import pytest

from ps2.algorithms.factors.model import MatrixFactors
from ps2.errors import CheckpointCorruptError, CheckpointMissingError, ConfigError, InputError, ShapeError, UsageError

USERS, ITEMS = ["ann", "bob", "été", "n\0l"], [30, 10, 20, 2**62, -5]
RANK = 3


def make(biases=False, users=USERS, items=ITEMS):
    rng = np.random.default_rng(1)
    p, q = rng.normal(size=(len(users), RANK)), rng.normal(size=(len(items), RANK))
    b = (rng.normal(size=len(users)), rng.normal(size=len(items)), 3.5) if biases else (None, None, 0.0)
    return MatrixFactors(users, items, p, q, *b)


def dense(factors):
    """All predictions, in float64."""
    scores = factors.userFactors.astype(float) @ factors.itemFactors.T
    if factors.hasBiases:
        scores += factors.mean + factors.userBias[:, None] + factors.itemBias
    return scores


both = pytest.mark.parametrize("biases", [False, True])


def test_ids_when_in_any_order_then_ascend_with_their_vectors():
    rng = np.random.default_rng(2)
    q = rng.normal(size=(len(ITEMS), RANK)).astype(np.float32)
    factors = MatrixFactors(["b", "a"], ITEMS, q[:2], q)
    assert (list(factors.users), list(factors.items)) == (["a", "b"], sorted(ITEMS))
    np.testing.assert_array_equal(factors.userFactors, q[[1, 0]])
    np.testing.assert_array_equal(factors.itemFactors, q[np.argsort(ITEMS)])


@both
def test_predict_when_ids_are_known_then_is_product_and_biases(biases):
    factors = make(biases)
    users, items = zip(*((user, item) for user in factors.users for item in factors.items), strict=True)
    result = factors.predict(users, items)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, dense(factors).reshape(-1), rtol=1e-5, atol=1e-6)


def test_predict_when_an_id_is_unknown_then_nan():
    result = make().predict(["ann", "who", "bob"], [10, 10, 11])
    assert np.isnan(result).tolist() == [False, True, True]


def test_predict_when_lists_or_types_differ_then_error():
    with pytest.raises(ShapeError, match="items: expected 2, as many as users, got 1"):
        make().predict(["ann", "bob"], [10])
    with pytest.raises(InputError, match="user: expected strings"):
        make().predict([1, 2], [10, 10])
    with pytest.raises(InputError, match="item: expected integers"):
        make().predict(["ann"], ["10"])


@both
def test_recommend_when_asked_then_best_items_with_their_ratings(biases):
    factors = make(biases)
    for row, user in zip(dense(factors), factors.users, strict=True):
        order = np.argsort(-row)
        result = factors.recommend(user, 3)
        assert [item for item, _ in result] == [factors.items[at] for at in order[:3]]
        np.testing.assert_allclose([rating for _, rating in result], row[order[:3]], rtol=1e-5)


def test_recommend_when_asked_then_ratings_are_those_of_predict():
    factors = make(biases=True)
    items, ratings = zip(*factors.recommend("bob", 9), strict=True)
    assert len(items) == len(ITEMS)
    np.testing.assert_array_equal(factors.predict(["bob"] * len(items), items), np.array(ratings, np.float32))


def test_recommend_when_items_are_excluded_then_others_come():
    factors = make()
    best = [item for item, _ in factors.recommend("ann", 5)]
    assert [item for item, _ in factors.recommend("ann", 3, exclude=[best[0], best[2], 999])] == [
        best[at] for at in (1, 3, 4)
    ]


def test_recommend_when_user_is_unknown_then_error():
    with pytest.raises(InputError, match="user: expected one of the 4 that have a vector, got 'who'"):
        make().recommend("who")


@pytest.mark.parametrize(("names", "got"), [("ann", "'ann'"), (b"ann", "b'ann'"), (3, "3"), (None, "None")])
def test_ids_when_one_instead_of_a_list_then_error(names, got):
    """The letters of a text would be unknown ids: nothing would be excluded, and all ratings NaN."""
    factors = MatrixFactors(["a", "n"], ["ann", "bob"], np.ones((2, 1)), np.ones((2, 1)))
    for call in (lambda: factors.recommend("a", 1, exclude=names), lambda: factors.predict(["a"], names)):
        with pytest.raises(InputError, match=f"item: expected a list of names, got {got}"):
            call()


@pytest.mark.parametrize("k", [0, -1, 1.5, True, None])
def test_recommend_when_k_is_invalid_then_error(k):
    with pytest.raises(ConfigError, match="k: expected an integer, at least 1, got"):
        make().recommend("ann", k)


def test_recommend_users_when_asked_then_best_users():
    factors = make(biases=True)
    column = dense(factors)[:, factors.items.index(20)]
    assert [user for user, _ in factors.recommendUsers(20, 4)] == [factors.users[at] for at in np.argsort(-column)]


def test_similar_when_asked_then_cosines_of_other_items():
    factors = make(biases=True)
    units = factors.itemFactors / np.linalg.norm(factors.itemFactors, axis=1, keepdims=True)
    cosines = units @ units[factors.items.index(10)]
    order = [at for at in np.argsort(-cosines) if factors.items[at] != 10]
    result = factors.similarItems(10, 9)
    assert [item for item, _ in result] == [factors.items[at] for at in order]
    np.testing.assert_allclose([cosine for _, cosine in result], cosines[order], rtol=1e-5)
    assert len(factors.similarUsers("ann", 2)) == 2


@both
def test_files_when_reloaded_then_factors_are_the_same(tmp_path, biases):
    factors = make(biases)
    factors.save(str(tmp_path / "model"))
    again = MatrixFactors.load(str(tmp_path / "model"))
    assert (list(again.users), list(again.items)) == (list(factors.users), list(factors.items))
    assert again.mean == factors.mean
    for one, other in zip(again.extended(), factors.extended(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (again.user.id_type, again.item.id_type, repr(again)) == (pa.string(), pa.int64(), repr(factors))


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64"])
def test_files_when_ids_are_narrow_then_type_is_kept(tmp_path, kind):
    ids = pa.array([3, 1], pa.type_for_alias(kind))
    MatrixFactors(ids, np.array([5, 6], kind), np.eye(2), np.eye(2)).save(str(tmp_path / "model"))
    again = MatrixFactors.load(str(tmp_path / "model"))
    assert (str(again.user.id_type), str(again.item.id_type), list(again.users)) == (kind, kind, [1, 3])


def test_files_when_an_array_has_changed_then_error_names_it(tmp_path):
    make().save(str(tmp_path / "model"))
    (tmp_path / "model" / "item_factors.npy").write_bytes(b"else")
    with pytest.raises(CheckpointCorruptError, match=r"item_factors\.npy: its checksum is not"):
        MatrixFactors.load(str(tmp_path / "model"))


@pytest.mark.parametrize("change", ["ids", "files", "kind"])
def test_files_when_metadata_are_wrong_then_error(tmp_path, change):
    make().save(str(tmp_path / "model"))
    path = tmp_path / "model" / "metadata" / "part-00000"
    messages = json.loads(path.read_text())
    if change == "kind":
        messages["ps2"]["ids"]["item"] = "float32"
    else:
        del messages["ps2"][change]
    path.write_text(json.dumps(messages))
    with pytest.raises(CheckpointCorruptError, match="a part of the metadata is missing or wrong"):
        MatrixFactors.load(str(tmp_path / "model"))


def test_load_when_there_is_no_such_model_then_error(tmp_path):
    with pytest.raises(CheckpointMissingError):
        MatrixFactors.load(str(tmp_path / "nowhere"))
    make().save(str(tmp_path / "model"))
    with pytest.raises(UsageError, match="there is something already"):
        make().save(str(tmp_path / "model"))


def test_factors_when_pickled_then_predict_the_same():
    factors = make(biases=True)
    factors.recommend("ann")
    again = pickle.loads(pickle.dumps(factors))
    assert again.recommend("été", 3) == factors.recommend("été", 3)


def test_arrays_when_sizes_do_not_match_then_error():
    one, two = np.ones((1, RANK)), np.ones((2, RANK))
    with pytest.raises(ShapeError, match=r"user: expected a vector for each of 2 ids, got an array of shape \(1, 3\)"):
        MatrixFactors([1, 2], [1], one, one)
    with pytest.raises(ShapeError, match="item: expected vectors of the users' size 3, got 2"):
        MatrixFactors([1], [1, 2], one, two[:, :2])
    with pytest.raises(ShapeError, match="item: expected a bias for each of 2 ids"):
        MatrixFactors([1], [1, 2], one, two, [0.0], [0.0])
    with pytest.raises(InputError, match="biases: expected those of users and of items, or none"):
        MatrixFactors([1], [1, 2], one, two, [0.0])
    with pytest.raises(InputError, match="mean: expected 0 for a model without biases, got 3"):
        MatrixFactors([1], [1, 2], one, two, mean=3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_arrays_when_a_number_is_not_finite_then_error(value):
    with pytest.raises(InputError, match="item: expected finite numbers in all vectors, got NaN or infinity"):
        MatrixFactors([1], [1], [[1.0]], [[value]])


def test_arrays_when_products_overflow_then_error():
    with pytest.raises(InputError, match="factors: expected vectors whose products are below"):
        MatrixFactors([1], [1], [[1e20]], [[1e20]])


@pytest.mark.parametrize("ids", [[], [1, 1], [None, 1], [1.5, 2.0], ["a", 1]])
def test_ids_when_they_are_not_distinct_ids_then_error(ids):
    with pytest.raises(InputError, match="expected"):
        MatrixFactors(ids, [1], np.ones((len(ids), 1)), [[1.0]])
