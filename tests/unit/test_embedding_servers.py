"""Operations that train where vectors are, their columns cut among servers, beside training on whole tables."""

from __future__ import annotations

import numpy as np
import pytest
from embedding_training import make_plan

from ps2.algorithms.embeddings.batch_kernels import add_batch_losses
from ps2.algorithms.embeddings.sampling import Sampler, kind_of
from ps2.algorithms.embeddings.skipgrams import ops
from ps2.algorithms.embeddings.training_kernels import LOSS, LOSSES, PAIRS
from ps2.algorithms.embeddings.worker import minibatch_tokens
from ps2.errors import OutOfRangeError, ShapeError

WORDS, SIZE, RATE, KEY = 30, 19, 0.05, -3
KINDS = [("skipgram", 2), ("cbow", 2), ("edges", 2), ("edges", 1)]


class Fleet:
    """Shards of two tables whose columns are cut among some servers."""

    def __init__(self, plan, parts, tables, draws):
        self.bounds = [SIZE * part // parts for part in range(parts + 1)]
        self.shards = [
            tuple(np.hstack([t[:, b:e].reshape(1, -1), np.zeros((1, WORDS), np.float32)]) for t in tables)
            for b, e in zip(self.bounds[:-1], self.bounds[1:], strict=True)
        ]
        for shard in self.shards:
            for begin in (0, 11):
                some = slice(begin, 11 if not begin else None)
                ops.put_aliases(
                    *shard, draws.thresholds[some], draws.aliases[some].view(np.uint32), words=WORDS, begin=begin
                )
        self.how = {"words": WORDS, "key": KEY, "window": plan.window, "negative": plan.settings.negative}
        self.how["kind"] = kind_of(plan)

    def tables(self):
        return [
            np.hstack([shard[number][0, :-WORDS].reshape(WORDS, -1) for shard in self.shards]) for number in range(2)
        ]


def batch(plan, count=8):
    rng = np.random.default_rng(2)
    offsets = np.arange(0, 2 * count + 1, 2) if plan.architecture == "edges" else np.array([0, 7, 7, 8, 2 * count])
    return rng.integers(0, WORDS, 2 * count).astype(np.uint16), offsets.astype(np.uint16)


def made(architecture, order, parts):
    plan = make_plan(WORDS, 100, vectorSize=SIZE, windowSize=3, negative=6, architecture=architecture, order=order)
    tables = (np.random.default_rng(1).normal(size=(2, WORDS, SIZE)) * 0.3).astype(np.float32)
    draws = Sampler.from_frequencies(plan, np.arange(WORDS)[::-1] + 1)
    return plan, tables, draws, Fleet(plan, parts, tables, draws)


def drawn_of(draws, tokens, offsets):
    return draws.sample((tokens.astype(np.int32), offsets.astype(np.int64)), np.uint64(KEY % 2**64))


@pytest.mark.parametrize(("architecture", "order"), KINDS)
def test_train_sentences_when_one_server_then_as_worker_tables(architecture, order):
    plan, tables, draws, fleet = made(architecture, order, 1)
    tokens, offsets = batch(plan)
    messages = ops.train_sentences(*fleet.shards[0], tokens, offsets, **fleet.how, rate=RATE)
    vectors, contexts = tables.copy()
    expected = drawn_of(draws, tokens, offsets).train(vectors, vectors if order == 1 else contexts, RATE)
    np.testing.assert_array_equal(messages, expected)
    np.testing.assert_array_equal(fleet.tables(), [vectors, contexts])


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize(("architecture", "order"), KINDS)
def test_learn_from_products_when_steps_are_small_then_as_whole(architecture, order, parts):
    plan, tables, draws, fleet = made(architecture, order, parts)
    tokens, offsets = batch(plan)
    rate = 1e-4  # products are of what vectors were before the batch, which makes little of a difference then
    result = np.sum([ops.find_products(*shard, tokens, offsets, **fleet.how) for shard in fleet.shards], axis=0)
    messages = np.zeros(3)
    add_batch_losses(result, messages)
    for shard in fleet.shards:
        ops.learn_from_products(*shard, tokens, offsets, result, **fleet.how, rate=rate, workers=1)
    vectors, contexts = tables.copy()
    expected = drawn_of(draws, tokens, offsets).train(vectors, vectors if order == 1 else contexts, rate)
    assert len(result) >= expected[PAIRS]
    assert messages[LOSS] / messages[LOSSES] == pytest.approx(expected[LOSS] / expected[LOSSES], rel=0.5)
    for ours, theirs, before in zip(fleet.tables(), (vectors, contexts), tables, strict=True):
        np.testing.assert_allclose(ours - before, theirs - before, atol=2e-6)


def test_find_products_when_given_what_is_wrong_then_says_so():
    plan, _, _, fleet = made("skipgram", 2, 1)
    tokens, offsets = batch(plan)
    with pytest.raises(OutOfRangeError, match="words below 30, got"):
        ops.find_products(*fleet.shards[0], tokens + np.uint16(30 - tokens.min()), offsets, **fleet.how)
    with pytest.raises(ShapeError, match="ascending bounds from 0 to 16"):
        ops.find_products(*fleet.shards[0], tokens, offsets[:-1], **fleet.how)
    with pytest.raises(ShapeError, match="two tables of 31 words"):
        ops.find_products(*fleet.shards[0], tokens, offsets, **{**fleet.how, "words": 31})
    products = np.zeros((3, 7), np.float32)
    with pytest.raises(ShapeError, match=r"products: expected shape \(\d+, 7\)"):
        ops.learn_from_products(*fleet.shards[0], tokens, offsets, products, **fleet.how, rate=RATE, workers=1)
    with pytest.raises(ShapeError, match="sentences of two"):
        ops.find_products(*fleet.shards[0], tokens, offsets, **{**fleet.how, "kind": 2})


@pytest.mark.parametrize(("architecture", "order"), KINDS)
@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0], [1], [1, 0, 1]])
def test_sentences_when_they_have_no_pairs_then_learn_nothing(architecture, order, lengths):
    if architecture == "edges" and any(length != 2 for length in lengths):
        lengths = []  # all others are no edges, and refused
    _, tables, _, fleet = made(architecture, order, 2)
    offsets = np.append(0, np.cumsum(lengths)).astype(np.uint16)
    tokens = np.arange(offsets[-1]).astype(np.uint16)
    for shard in fleet.shards:
        result = ops.find_products(*shard, tokens, offsets, **fleet.how)
        assert result.shape == (0, 7)
        ops.learn_from_products(*shard, tokens, offsets, result, **fleet.how, rate=1.0, workers=1)
        assert ops.train_sentences(*shard, tokens, offsets, **fleet.how, rate=1.0)[PAIRS] == 0
    np.testing.assert_array_equal(fleet.tables(), tables)


def test_learn_from_products_when_steps_are_large_then_bounded():
    plan, _, _, fleet = made("skipgram", 2, 2)
    tokens, offsets = batch(plan)
    for key in range(50):
        how = {**fleet.how, "key": key}
        result = np.sum([ops.find_products(*shard, tokens, offsets, **how) for shard in fleet.shards], axis=0)
        for shard in fleet.shards:
            ops.learn_from_products(*shard, tokens, offsets, result, **how, rate=0.5, workers=2)
    assert np.abs(fleet.tables()).max() < 30


def test_piece_tokens_when_one_server_then_many_else_by_top_word():
    plan = make_plan(WORDS, 100, vectorSize=SIZE)
    assert minibatch_tokens(plan, 0.01, 1) > 20_000
    assert minibatch_tokens(plan, 0.01, 2) == 1000
    assert minibatch_tokens(plan, 10.0, 2) == 40
    assert minibatch_tokens(make_plan(WORDS, 100, vectorSize=SIZE, windowSize=10**5, negative=500), 0.01, 2) == 1
    assert minibatch_tokens(make_plan(WORDS, 100, vectorSize=SIZE, stepSize=5e-324), 0.5, 2) == 1000
