"""Embedding tables on real servers: against NumPy."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from ps2 import EmbeddingTable
from ps2.errors import CheckpointMissingError, ConfigError, DTypeError, OutOfRangeError, ShapeError, UsageError

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")

K = 5
SHAPE = 300, 4


@pytest.fixture
def keys():
    return np.random.default_rng(0).integers(0, 2**63 - 1, 500)[np.random.default_rng(1).integers(0, 500, SHAPE)]


@pytest.fixture
def gradients():
    return np.random.default_rng(2).normal(size=(*SHAPE, K)).astype(np.float32)


def summed(keys, gradients):
    distinct, positions = np.unique(keys, return_inverse=True)
    sums = np.zeros((distinct.size, K), np.float64)
    np.add.at(sums, positions.reshape(-1), gradients.reshape(-1, K))
    return sums[positions].reshape(gradients.shape)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam", "ftrl", "ftrl+adagrad"])
def test_push_when_keys_repeat_then_one_step_of_sums(ps, keys, gradients, optimizer):
    table = EmbeddingTable(K, optimizer, zeroColumns=1, init="zeros")
    table.push(keys, gradients)
    sums = summed(keys, gradients)
    # From zeros, with n = 0: the first step of each optimizer.
    expected = {
        "sgd": -0.05 * sums,
        "adagrad": -0.05 * np.sign(sums),
        "adam": -0.001 * np.sign(sums),
        "ftrl": -sums / ((1 + np.abs(sums)) / 0.05),
    }
    expected["ftrl+adagrad"] = np.where(np.arange(K) < 1, expected["ftrl"], expected["adagrad"])
    np.testing.assert_allclose(table.pull(keys), expected[optimizer], rtol=1e-4, atol=1e-7)
    table.free()


def test_pull_when_keys_are_new_then_makes_no_blocks(ps, keys):
    table = EmbeddingTable(K)
    assert table.pull(keys).shape == (*SHAPE, K)
    assert table.pull(7).shape == (K,)
    assert table.pull([]).shape == (0, K)
    assert table.keysCount() == 0
    table.free()


def test_table_when_pickled_then_is_the_same(ps, keys, gradients):
    table = EmbeddingTable(K, "sgd", lr=0.5)
    copy = pickle.loads(pickle.dumps(table))
    copy.push(keys, gradients, wait=False).flush()
    assert np.array_equal(table.pull(keys), copy.pull(keys))
    assert table.keysCount() == np.unique(keys).size
    table.free()


def test_table_when_saved_twice_and_loaded_then_goes_on(ps, keys, gradients, tmp_path):
    table = EmbeddingTable(K, "adam", lr=0.5)
    table.save(tmp_path / "saved")
    table.push(keys, gradients).save(tmp_path / "saved")
    loaded = EmbeddingTable.load(tmp_path / "saved")
    assert loaded.settings == table.settings
    for one in (table, loaded):
        one.push(keys, -gradients)
    assert np.array_equal(table.pull(keys), loaded.pull(keys))
    assert len(list((tmp_path / "saved").iterdir())) == 2
    table.free()
    loaded.free()


def test_load_when_nothing_is_there_then_missing(ps, tmp_path):
    with pytest.raises(CheckpointMissingError, match=r"table\.json"):
        EmbeddingTable.load(tmp_path)


def test_prefetch_when_pulled_then_answers_as_of_before(ps, keys, gradients):
    table = EmbeddingTable(K, "sgd", init="zeros")
    table.prefetch(keys)
    for read in table._reads._reads.values():
        read.wait()
    table.push(keys, gradients)
    assert not table.pull(keys).any()  # the answer of the prefetch
    assert table.pull(keys).any()
    table.free()


def test_keys_when_folded_then_collide(ps, keys, gradients):
    table = EmbeddingTable(K, "sgd", hashBits=3)
    table.push(keys, gradients)
    assert table.keysCount() == 8
    assert np.unique(table.pull(keys).reshape(-1, K), axis=0).shape[0] == 8
    table.free()


def test_distinct_when_keys_ascend_then_as_any_keys(ps, keys, gradients):
    table = EmbeddingTable(K, "adagrad")
    distinct = np.unique(keys)
    table.pushDistinct(distinct, gradients.reshape(-1, K)[: distinct.size])
    assert np.array_equal(table.pull(keys), table.pullDistinct(distinct)[np.searchsorted(distinct, keys)])
    table.free()


WRONG_KEYS = [([1.5], DTypeError), ([-1], OutOfRangeError), ([100], OutOfRangeError), (["a"], DTypeError)]


@pytest.mark.parametrize(("wrong", "error"), WRONG_KEYS)
def test_keys_when_wrong_then_error_names_them(ps, wrong, error):
    table = EmbeddingTable(K, keys=100)
    with pytest.raises(error, match="keys"):
        table.pull(wrong)
    with pytest.raises(error, match="keys"):
        table.push(wrong, np.ones((1, K)))
    table.free()


def test_gradients_when_wrong_then_error_names_them(ps):
    table = EmbeddingTable(K)
    with pytest.raises(ShapeError, match=r"gradients: expected shape \(2, 5\), got \(2, 4\)"):
        table.push([1, 2], np.ones((2, 4)))
    with pytest.raises(OutOfRangeError, match="got nan for key 2, weight 3"):
        table.push([1, 2], [[0] * 5, [0, 0, 0, np.nan, 0]])
    with pytest.raises(OutOfRangeError, match=r"at most 1e\+15, as the optimizer sums squares, got -1.* for key 1"):
        table.push([1], np.full((1, K), -1e20))
    with pytest.raises(UsageError, match="got 2 3 times"):
        table.pushDistinct(np.array([2, 1, 2, 2]), np.ones((4, K), np.float32))
    assert table.keysCount() == 0
    table.free()


WRONG_ARGUMENTS = [
    ({"k": 0}, "k"),
    ({"optimizer": "adagrat"}, "optimizer"),
    ({"lr": -1}, "lr"),
    ({"optimizer": "ftrl", "lr": 1}, "lr"),
    ({"keys": 0}, "keys"),
    ({"hashBits": 40}, "hashBits"),
    ({"zeroColumns": 6}, "zeroColumns"),
    ({"optimizer": "ftrl+adagrad"}, "zeroColumns"),
    ({"wire": "int8"}, "wire"),
]


@pytest.mark.parametrize(("wrong", "name"), WRONG_ARGUMENTS)
def test_table_when_argument_is_wrong_then_names_it(ps, wrong, name):
    with pytest.raises(ConfigError, match=name):
        EmbeddingTable(**{"k": K, **wrong})


def test_hyperparameter_when_set_then_later_pushes_use_it(ps, keys):
    table = EmbeddingTable(1, "sgd", lr=0.5, init="zeros").set(lr=2.0)
    table.push([3], [[1.0]])
    assert table.pull([3]) == -2.0
    assert table.hyperparameters == {"lr": 2.0, "l1": 0.0, "l2": 0.0}
    table.free()


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam", "ftrl", "ftrl+adagrad"])
def test_weights_when_gradient_is_zero_then_stay_as_begun(ps, keys, optimizer):
    table = EmbeddingTable(K, optimizer, zeroColumns=2, seed=3)
    began = table.pull(keys)
    table.push(keys, np.zeros((*SHAPE, K)))
    # FTRL computes the weight from its sums, in float32.
    np.testing.assert_allclose(table.pull(keys), began, rtol=1e-6)
    assert not began[..., :2].any()
    assert 0.009 < began[..., 2:].std() < 0.011
    table.free()


def test_keys_when_pushed_again_after_they_went_then_begin_anew(ps, keys, gradients):
    table = EmbeddingTable(K, "adam", admitAfter=2, expireAfterS=60, clock="event")
    began = table.pull(keys)
    table.push(keys, gradients)
    assert np.array_equal(table.pull(keys), began)  # the step before the admission is dropped
    first = table.push(keys, gradients).pull(keys)
    assert table.keysCount() == table.keyStatus().active == np.unique(keys).size
    assert table.remove(keys[:2]) == np.unique(keys[:2]).size
    assert np.array_equal(table.pull(keys[:2]), began[:2])
    assert table.advance(100.0).expire() == np.unique(keys).size - np.unique(keys[:2]).size
    for _ in range(2):
        table.push(keys, gradients)
    assert np.array_equal(table.pull(keys), first)
    table.free()


def test_keys_when_too_many_then_the_oldest_go(ps):
    table = EmbeddingTable(K, maxKeys=3000)
    for begin in range(0, 10_000, 500):
        table.push(np.arange(begin, begin + 500), np.ones((500, K)))
    assert table.keysCount() <= 3000
    assert not np.array_equal(table.pull(9_999), EmbeddingTable(K).pull(9_999))
    assert np.array_equal(table.pull(0), EmbeddingTable(K).pull(0))
    table.free()


def test_gradients_when_wire_is_narrow_then_rounded(ps, keys, gradients):
    table = EmbeddingTable(K, "sgd", lr=1.0, wire="float16", init="zeros")
    distinct = np.unique(keys)
    sent = gradients.reshape(-1, K)[: distinct.size]
    table.push(distinct, sent)
    assert np.array_equal(table.pull(distinct), -sent.astype(np.float16).astype(np.float32))
    with pytest.raises(OutOfRangeError, match="float16"):
        table.push([1, 1], np.full((2, K), 40_000.0))
    table.free()
