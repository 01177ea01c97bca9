"""Operations of topic models do to a shard what NumPy does to its counts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammaln

from ps2 import DCV
from ps2.algorithms.topics import ops
from ps2.errors import UsageError
from ps2.matrix.partition import Partition
from ps2.ops.all import lookup
from ps2.ops.blocks import fold
from ps2.ops.warm import _compile
from tests.fakes import FleetInProcess, installed, session_over

WORDS, TOPICS = 12, 300


@pytest.fixture
def counts():
    rng = np.random.default_rng(0)
    return (rng.integers(0, 2000, (WORDS, TOPICS)) * (rng.random((WORDS, TOPICS)) < 0.3)).astype(np.int32)


def test_look_when_counts_vary_then_finds_likelihood_and_totals(counts):
    likelihood, sums, negative = ops.look(counts, np.array([0.01]))
    assert likelihood == pytest.approx((gammaln(counts + 0.01) - gammaln(0.01)).sum(), rel=1e-12)
    np.testing.assert_array_equal(sums, counts.sum(axis=0))
    assert negative.tolist() == [0]


def test_look_when_counts_are_negative_then_says_how_many(counts):
    counts[3, 4], counts[5, 0] = -1, -7
    assert ops.look(counts, np.array([0.01]))[2].tolist() == [2]


@pytest.mark.parametrize(
    ("begin", "end", "left"), [(0, 103, [3, 4]), (104, 200, [0, 1, 2, 3]), (0, 9, [0, 1, 2, 3, 4])]
)
def test_clear_when_words_span_shards_then_each_clears_its_own(begin, end, left):
    counts = np.ones((5, 2), np.int32)
    ops.clear(counts, Partition(1, 100, 105), begin=begin, end=end)
    assert np.flatnonzero(counts[:, 0]).tolist() == left


@pytest.mark.parametrize("name", ["clear", "look"])
def test_operation_when_compiled_ahead_then_it_takes_tiny_arrays(name):
    _compile(lookup(f"topics.{name}"))


def test_counts_when_others_change_async_then_prefetch_is_valid():
    with installed(session_over(FleetInProcess(2))) as session:
        m = DCV.dense(WORDS, TOPICS, "int32", layout="column").matrix()
        m.pull(columns=[0])
        _, reading = session.dispatch.read([m._pull(None, np.array([2, 7]))])
        one = {
            "sizes": np.ones(1, np.uint8),
            "positions": np.array([5], np.uint16),
            "changes": fold(np.ones(1, np.int32)),
        }
        m.apply("columns_add_some", wait=False, slots=[3], **one)
        assert not reading.is_invalid
        m.apply("columns_add_some", wait=False, slots=[7], **one)
        assert reading.is_invalid
        assert m.pull(columns=[3, 7])[:, 5].tolist() == [1, 1]


def test_async_apply_when_operation_returns_then_usage_error():
    with installed(session_over(FleetInProcess(2))):
        m = DCV.dense(WORDS, TOPICS, "int32", layout="column").matrix()
        with pytest.raises(UsageError, match=r"'topics.look' returns an answer"):
            m.apply("topics.look", wait=False, beta=[0.1])
