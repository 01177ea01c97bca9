"""Recommendations of exported factors and towers, over HTTP and on arrays, against NumPy."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pyarrow as pa
import pytest
import requests

from ps2.algorithms import MatrixFactors
from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.model import DeepModel
from ps2.algorithms.factors.model import Side
from ps2.algorithms.factors.top_k import Candidates, Excluded
from ps2.algorithms.frame.name_files import named_vectors
from ps2.data.hashing import Field, FieldHasher
from ps2.errors import ConfigError, InputError, ShapeError, UsageError
from ps2.serving import Scorer, http
from tests.exporting import export
from tests.in_process import training_context

USERS = ["ann", "bob", "cid", "dee"]
ITEMS = np.arange(100, 130)
RNG = np.random.default_rng(3)
FACTORS = MatrixFactors(
    USERS, ITEMS, RNG.normal(size=(4, 5)), RNG.normal(size=(30, 5)), RNG.normal(size=4), RNG.normal(size=30), 3.5
)


def lists(result):
    """Return pairs of item and score for each user."""
    return [list(zip(*pair, strict=True)) for pair in zip(result["items"], result["scores"], strict=True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("factors")
    FACTORS.export(str(path))
    return str(path)


@pytest.fixture(scope="module")
def recommend(folder):
    """Post a request to a running endpoint: return status and answer."""
    with Scorer(folder) as scorer, http.listen("127.0.0.1", range(1), None) as listener:
        server = http.http_server(http.ScoringService(scorer, None), 75)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def post(path="/recommend", **content):
            with requests.post(url + path, json=content, timeout=10) as answer:
                return answer.status_code, answer.json()

        post.metrics = lambda: requests.get(f"{url}/metrics", timeout=10).text
        yield post
        server.should_exit = True
        thread.join()


def test_recommend_when_users_are_known_then_lists_of_factors(recommend):
    status, result = recommend(users=["dee", "ann"], k=7)
    assert status == 200
    assert lists(result) == [FACTORS.recommend("dee", 7), FACTORS.recommend("ann", 7)]
    assert (result["known"], result["export"]) == ([True, True], 1)
    assert 'ps2_scored_rows_total{request="recommend"}' in recommend.metrics()


def test_recommend_when_user_is_unknown_then_best_on_average(recommend):
    result = recommend(users=["nobody", "ann", None], k=30)[1]
    assert result["known"] == [False, True, False]
    assert result["items"][0] == result["items"][2]
    means = {item: np.mean(FACTORS.predict(USERS, [item] * 4)) for item in ITEMS.tolist()}
    assert result["items"][0] == sorted(means, key=means.get, reverse=True)
    np.testing.assert_allclose(result["scores"][0], [means[item] for item in result["items"][0]], rtol=1e-5)


@pytest.mark.parametrize("exclude", [[100, 107, 7], [[100, 107], [101, 101, 7]]])
@pytest.mark.parametrize("items", [None, [100, 101, 102, 129, 3], [[100, 101], [129, 101, 107, 129]], []])
def test_recommend_when_items_are_filtered_then_best_of_the_rest(recommend, exclude, items):
    filters = {"exclude": exclude} if items is None else {"exclude": exclude, "items": items}
    status, result = recommend(users=["bob", "cid"], k=29, **filters)
    assert status == 200
    for row, user in enumerate(["bob", "cid"]):
        hidden = exclude[row] if isinstance(exclude[0], list) else exclude
        own = items[row] if items and isinstance(items[0], list) else items
        others = [pair for pair in FACTORS.recommend(user, 30) if pair[0] not in hidden]
        assert lists(result)[row] == [pair for pair in others if own is None or pair[0] in own][:29]


def test_recommend_when_users_are_many_then_each_has_own_list(recommend, monkeypatch):
    monkeypatch.setattr("ps2.serving.recommending.BLOCK_USERS", 3)
    monkeypatch.setattr("ps2.serving.http.CHUNK_VALUES", 8)
    users = [USERS[row % 4] for row in range(100)]
    exclude = [[int(ITEMS[row % 30])] for row in range(100)]
    result = recommend(users=users, k=3, exclude=exclude)[1]
    expected = [FACTORS.recommend(user, 3, hidden) for user, hidden in zip(users, exclude, strict=True)]
    assert lists(result) == expected


@pytest.mark.parametrize(
    ("content", "status", "text"),
    [
        ({"users": "ann"}, 400, "expected an object with a list 'users'"),
        ({"users": [17]}, 400, "user: expected strings"),
        ({"users": ["ann"], "k": 0}, 400, "k: expected an integer, at least 1, got 0"),
        ({"users": ["ann"], "k": "5"}, 400, "k: expected an integer"),
        ({"users": ["ann"], "k": 1 << 40}, 413, "expected at most 4,194,304 items for all users together"),
        ({"users": ["ann"], "exclude": ["x"]}, 400, "item: expected integers"),
        ({"users": ["ann"], "exclude": 5}, 400, "exclude: expected a list of items' ids"),
        ({"users": ["ann"], "items": [[1], [2]]}, 400, "items: expected a list of items' ids, or a list for each of 1"),
        ({"users": ["ann"], "items": [[1], 2]}, 400, "got 1 lists among 2 values"),
        ({"users": ["ann"], "n": 5}, 400, "expected 'users' with 'k', 'exclude', 'items' at most, got 'n' as well"),
    ],
)
def test_recommend_when_request_is_wrong_then_4xx_says_why(recommend, content, status, text):
    answer = recommend(**content)
    assert answer[0] == status
    assert text in answer[1]["error"]


def test_recommend_when_there_are_no_users_then_no_lists(recommend):
    assert recommend(users=[]) == (200, {"items": [], "scores": [], "known": [], "export": 1})


def test_score_when_export_has_factors_then_400_names_recommend(recommend):
    status, result = recommend("/score", rows=[{"user": "ann", "item": 100}])
    assert status == 400
    assert "recommend(users) reads it" in result["error"]


def test_recommend_when_export_has_no_items_then_error(tmp_path):
    export(tmp_path, [1, 2])
    with pytest.raises(UsageError, match="no vectors of items to recommend"):
        Scorer(str(tmp_path)).recommend([1])


def test_export_when_factors_change_then_scorer_takes_the_new(tmp_path):
    FACTORS.export(str(tmp_path))
    scorer = Scorer(str(tmp_path))
    other = MatrixFactors([5], ["x", "y"], [[1.0]], [[2.0], [3.0]])
    assert other.export(str(tmp_path)).number == 2
    assert scorer.refresh()
    result = scorer.recommend([5])
    assert (result.items, result.scores, result.export) == ([["y", "x"]], [[3.0, 2.0]], 2)


@pytest.fixture(scope="module")
def towers(tmp_path_factory):
    """Export two towers with items: return the scorer and the items' ids."""
    fields = Field.categorical("user"), Field.numeric("age"), Field.categorical("item")
    architecture, path = Architecture("two-tower", 4, 3, 2, (8, 5)), str(tmp_path_factory.mktemp("towers"))
    with training_context():
        table = {"k": 4, "optimizer": "adagrad", "init": "normal", "initScale": 0.5}
        model = DeepModel.new(architecture, FieldHasher(fields), table, seed=1)
        items = pa.record_batch({"item": ["a", "c", "b", "d"]})
        trained = pa.record_batch({"user": ["u1", "u2"], "age": [1.0, 2.0], "item": ["a", "b"]})
        model.table.pull(model.hasher.rows(trained).keys)
        model.table.push(model.hasher.rows(trained).keys[[0, 3]], RNG.normal(size=(2, 4)))
        side = Side.from_arrays("item", items.column(0), model.predictor().tower(items, right=True), None)
        model.export(path, arrays=named_vectors("item", side.names, side.factors))
    return Scorer(path), items.column(0).to_pylist()


def test_towers_when_users_have_columns_then_cosines_of_score(towers):
    scorer, items = towers
    users = [{"user": "u1", "age": 3.0}, {"user": "new", "age": None}]
    result = scorer.recommend(users, 3, exclude=[["c"], []])
    assert result.known.tolist() == [True, False]
    for user, own, scores, hidden in zip(users, result.items, result.scores, (["c"], []), strict=True):
        cosines = dict(zip(items, scorer.score([{**user, "item": item} for item in items]), strict=True))
        best = sorted(set(items) - set(hidden), key=cosines.get, reverse=True)[:3]
        assert own == best
        np.testing.assert_allclose(scores, [cosines[item] for item in best], atol=1e-6)


@pytest.mark.parametrize(
    ("users", "more", "error", "text"),
    [
        (["u1"], {}, InputError, "users: expected dicts with the columns user, age"),
        ([{"user": "u1"}], {}, InputError, "age"),
        ([{"user": "u1", "age": 1.0}], {"k": 1.5}, ConfigError, "k: expected an integer"),
        ([{"user": "u1", "age": 1.0}], {"items": [["a"], ["b"]]}, ShapeError, "a list for each of 1 users"),
    ],
)
def test_towers_when_request_is_wrong_then_error_says_why(towers, users, more, error, text):
    with pytest.raises(error, match=text):
        towers[0].recommend(users, **more)


def many_vectors(seed=0, n=3000, rank=8):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, rank)) * rng.lognormal(0, 0.5, (n, 1))).astype(np.float32)


@pytest.fixture(scope="module")
def approximate():
    """Return exact and approximate candidates of the same vectors."""
    pytest.importorskip("usearch")
    from ps2.serving.approximate import ApproximateCandidates

    return Candidates(many_vectors()), ApproximateCandidates(many_vectors())


@pytest.mark.parametrize("users", [1, 40])
def test_index_when_approximate_then_finds_nearly_all(approximate, users):
    left, excluded = (
        many_vectors(1, users),
        Excluded.from_pairs(np.repeat(np.arange(users), 9), np.arange(9 * users), users),
    )
    (scores, best), (near_scores, near) = (candidates.best(left, 10, excluded) for candidates in approximate)
    assert near.shape == (users, 10)
    assert np.mean([len(np.intersect1d(*pair)) for pair in zip(best, near, strict=True)]) > 9.8
    is_same = best == near
    np.testing.assert_array_equal(near_scores[is_same], scores[is_same])  # to the bit
    for row in range(users):
        assert not np.isin(near[row], np.arange(9 * row, 9 * row + 9)).any()


def test_index_when_approximate_and_much_is_asked_then_exact(approximate):
    for result, expected in zip(*(each.best(many_vectors(1, 3), 500) for each in approximate), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_scorer_when_index_is_approximate_then_recommends(folder):
    pytest.importorskip("usearch")
    with Scorer(folder, index="approximate") as scorer:
        result = scorer.recommend(["dee"], 7)
    assert lists({"items": result.items, "scores": result.scores}) == [FACTORS.recommend("dee", 7)]
    with pytest.raises(ConfigError, match="index: expected exact or approximate, got 'hnsw'"):
        Scorer(folder, index="hnsw")


def test_scorer_when_usearch_is_missing_then_error_names_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    monkeypatch.delitem(sys.modules, "ps2.serving.approximate", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'ps2-spark\[ann\]'"):
        Scorer(folder, index="approximate")
