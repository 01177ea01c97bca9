"""Kernels of skip-gram, CBOW and edges beside plain NumPy; what is drawn; clocks; damping."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from embedding_training import make_plan

from ps2.algorithms.embeddings.damping import ChangeDamping, UpdateRates
from ps2.algorithms.embeddings.sampling import Sampler
from ps2.algorithms.embeddings.sentences import BATCH_TOKENS, InMemorySentences
from ps2.algorithms.embeddings.training_kernels import LOSS, LOSSES, PAIRS, sigmoid
from ps2.algorithms.embeddings.worker import ClockReader, EpochSchedule, RowNumbering, key_of
from ps2.errors import ConfigError

WORDS, SIZE = 30, 19
RECIPE = {"vocabulary": WORDS, "total": 200, "vectorSize": SIZE, "windowSize": 4}
PLAN = make_plan(**RECIPE)
RATE = 0.1


def plan_with(**changes):
    return make_plan(**RECIPE | changes)


def sentences(rng, count=12):
    lengths = rng.integers(1, 30, count)
    lengths[3] = 0
    return rng.integers(0, WORDS, lengths.sum()).astype(np.int32), np.append(0, np.cumsum(lengths))


def tables(rng):
    return (rng.normal(size=(2, WORDS, SIZE)) * 0.3).astype(np.float32)


def logistic(x):
    return 1 / (1 + np.exp(-x))


def groups(drawn):
    """Inputs and outputs of each group, as the paper of skip-gram has them."""
    plan = drawn.plan
    for begin, end in pairwise(drawn.offsets.tolist()):
        for at in range(begin, end, plan.tokens_per_example):
            if plan.architecture == "edges":
                inputs, target, number = [drawn.tokens[at]], drawn.tokens[at + 1], at // 2
            else:
                reach = drawn.windows[at]
                inputs = [drawn.tokens[i] for i in range(max(begin, at - reach), min(end, at + reach + 1)) if i != at]
                target, number = drawn.tokens[at], at
            apart = {target, inputs[0]} if plan.shares_table else {target}
            if inputs and not (plan.shares_table and target == inputs[0]):
                negatives = drawn.negatives[number].reshape(-1, plan.settings.negative)
                step = len(inputs) if plan.architecture != "skipgram" else plan.group_size
                for turn, first in enumerate(range(0, len(inputs), step)):
                    outputs = [target, *(n for n in negatives[turn : turn + 1].reshape(-1) if n not in apart)]
                    yield np.array(inputs[first : first + step]), np.array(outputs)


def reference(drawn, vectors, contexts, rate):
    """Train by NumPy, in float64; return what was learned and the mean loss of all pairs."""
    vectors = vectors.astype(np.float64)
    contexts = vectors if drawn.plan.shares_table else contexts.astype(np.float64)
    losses = []
    for inputs, outputs in groups(drawn):
        labels = np.zeros(len(outputs))
        labels[0] = 1
        x, o = vectors[inputs], contexts[outputs]
        if drawn.plan.architecture == "cbow":
            x = x.mean(axis=0, keepdims=True)
        dots = x @ o.T
        losses += np.logaddexp(0, np.where(labels, -dots, dots)).sum(axis=1).tolist()
        g = rate * (labels - logistic(dots))
        np.add.at(contexts, outputs, g.T @ x)
        np.add.at(vectors, inputs, np.broadcast_to(g @ o, (len(inputs), vectors.shape[1])))
    return vectors, contexts, losses


@pytest.mark.parametrize(("architecture", "order"), [("skipgram", 2), ("cbow", 2), ("edges", 2), ("edges", 1)], ids=str)
@pytest.mark.parametrize(("negative", "via"), [(1, "rows"), (5, "rows"), (7, "local")])
def test_train_when_one_thread_then_as_numpy(architecture, order, negative, via):
    rng = np.random.default_rng(negative)
    tokens, offsets = sentences(rng)
    if architecture == "edges":
        tokens, offsets = rng.integers(0, WORDS, 120).astype(np.int32), np.arange(0, 121, 2)
    plan = plan_with(architecture=architecture, order=order, negative=negative, via=via)
    sample = Sampler.from_frequencies(plan, np.arange(WORDS)[::-1] + 1).sample((tokens, offsets), np.uint64(7))
    vectors, contexts = tables(rng)
    expected_v, expected_c, losses = reference(sample, vectors, contexts, RATE)
    if order == 1:
        contexts = vectors
    messages = sample.train(vectors, contexts, RATE)
    np.testing.assert_allclose(vectors, expected_v, atol=2e-5)
    np.testing.assert_allclose(contexts, expected_c, atol=2e-5)
    assert messages[PAIRS] == len(losses)
    assert messages[LOSS] / messages[LOSSES] == pytest.approx(np.mean(losses), rel=0.5)  # of some of the groups


@pytest.mark.parametrize("size", [1, 10_000])
def test_train_when_vectors_are_short_or_long_then_matches_numpy(size):
    rng = np.random.default_rng(size)
    plan = plan_with(vectorSize=size, via="local")
    draws = Sampler.from_frequencies(plan, np.ones(WORDS, np.int64))
    sample = draws.sample(sentences(rng, 4), np.uint64(7))
    vectors, contexts = (rng.normal(size=(2, WORDS, size)) / np.sqrt(size)).astype(np.float32)
    expected_v, expected_c, _ = reference(sample, vectors, contexts, RATE)
    before = vectors.copy(), contexts.copy()
    sample.train(vectors, contexts, RATE)
    np.testing.assert_allclose(vectors, expected_v, atol=2e-5)
    np.testing.assert_allclose(contexts, expected_c, atol=2e-5)
    changes = [vectors - before[0], contexts - before[1]]
    norms = [np.linalg.norm(some) for some in changes]
    updates = UpdateRates.from_frequencies(plan, np.ones(WORDS, np.int64), draws.negative_probabilities)
    ChangeDamping(plan, updates).damp(changes, [vectors, contexts], 100.0, RATE, 2)
    for some, norm in zip(changes, norms, strict=True):
        assert 0.4 * norm < np.linalg.norm(some) <= norm * (1 + 1e-5)


def test_train_when_steps_are_small_then_follows_loss_gradient():
    rng = np.random.default_rng(3)
    plan = plan_with(architecture="edges")
    sample = Sampler.from_frequencies(plan, np.ones(WORDS, np.int64)).sample(
        (np.array([3, 8], np.int32), np.array([0, 2])), np.uint64(1)
    )
    vectors, contexts = tables(rng)
    (inputs, outputs) = next(iter(groups(sample)))

    def loss(vector):
        dots = contexts[outputs].astype(np.float64) @ vector
        return np.logaddexp(0, -dots[0]) + np.logaddexp(0, dots[1:]).sum()

    before = vectors[inputs[0]].astype(np.float64)
    differences = [(loss(before + e) - loss(before - e)) / 2e-6 for e in np.eye(SIZE) * 1e-6]
    sample.train(vectors, contexts, 0.01)
    np.testing.assert_allclose((vectors[inputs[0]] - before) / -0.01, differences, atol=1e-4)


@pytest.mark.parametrize(("architecture", "order"), [("skipgram", 2), ("cbow", 2), ("edges", 2), ("edges", 1)])
def test_train_when_rows_are_numbered_by_piece_then_as_whole(architecture, order):
    rng = np.random.default_rng(9)
    tokens, offsets = rng.integers(0, WORDS // 2, 120).astype(np.int32), np.arange(0, 121, 6)
    plan = plan_with(architecture=architecture, order=order)
    if architecture == "edges":
        offsets = np.arange(0, 121, 2)
    sample = Sampler.from_frequencies(plan, np.arange(WORDS)[::-1] + 1).sample((tokens, offsets), np.uint64(7))
    numbers, whole = RowNumbering(plan), tables(rng)[: plan.tables]
    parts = whole.copy()
    messages = np.zeros(3)
    pieces = list(sample.minibatches(25))
    assert sum(len(piece.tokens) for piece in pieces) == 120
    assert all(len(piece.negatives) <= 25 for piece in pieces)
    for piece in pieces:
        numbered, words = numbers.renumber(piece)
        assert len(words) == plan.tables
        rows = [table[some] for table, some in zip(parts, words, strict=True)]
        assert all(np.all(np.diff(some) > 0) for some in words)
        messages += numbered.train(rows[0], rows[-1], RATE)
        for table, some, row in zip(parts, words, rows, strict=True):
            table[some] = row
    expected = sample.train(whole[0], whole[-1], RATE)
    np.testing.assert_array_equal(parts, whole)
    assert messages[PAIRS] == expected[PAIRS]


def test_train_when_several_threads_then_about_as_one():
    rng = np.random.default_rng(5)
    plan = plan_with(vocabulary=500, vectorSize=64)
    words = (rng.random(40_000) * 500).astype(np.int32)
    sample = Sampler.from_frequencies(plan, np.ones(500, np.int64)).sample(
        (words, np.arange(0, 40_001, 40)), np.uint64(1)
    )
    result = []
    for threads in (1, 2):
        vectors = np.random.default_rng(1).normal(size=(500, 64)).astype(np.float32) * 0.1
        contexts = vectors[::-1].copy()
        messages = sample.train(vectors, contexts, 0.01, threads)
        result.append((vectors, messages))
    assert result[0][1][PAIRS] == result[1][1][PAIRS]
    cosines = np.sum(result[0][0] * result[1][0], axis=1) / np.prod(
        [np.linalg.norm(v, axis=1) for v, _ in result], axis=0
    )
    # How often the two read what the other is about to change depends on what else the machine does.
    assert cosines.mean() > 0.9
    assert cosines.min() > 0.7


def test_sigmoid_then_as_exact():
    x = np.linspace(-30, 30, 2001).astype(np.float32)
    np.testing.assert_allclose([sigmoid(v) for v in x], logistic(x.astype(np.float64)), atol=2e-7)


def test_draw_when_frequencies_differ_then_follows_their_power():
    frequencies = np.array([1000, 100, 10, 1, 0])
    plan = plan_with(vocabulary=5)
    draws = Sampler.from_frequencies(plan, frequencies)
    tokens = np.zeros(50_000, np.int32)
    sample = draws.sample((tokens, np.array([0, 50_000])), key_of(1, 0, 0, 0))
    shares = np.bincount(sample.negatives.reshape(-1), minlength=5) / sample.negatives.size
    expected = frequencies**0.75 / (frequencies**0.75).sum()
    np.testing.assert_allclose(shares, expected, atol=0.004)
    assert shares[4] == 0
    np.testing.assert_allclose(np.bincount(sample.windows, minlength=5) / 50_000, [0, *[0.25] * 4], atol=0.01)
    again = draws.sample((tokens, np.array([0, 50_000])), key_of(1, 0, 0, 0))
    assert np.array_equal(again.negatives, sample.negatives)
    assert not np.array_equal(draws.sample((tokens, sample.offsets), key_of(1, 0, 0, 1)).negatives, sample.negatives)


def test_draw_when_subsampling_frequent_words_then_as_word2vec():
    frequencies = np.array([90_000, 10_000])
    draws = Sampler.from_frequencies(plan_with(vocabulary=2, sample=0.01), frequencies)
    tokens = np.repeat(np.array([0, 1], np.int32), [90_000, 10_000])
    key = np.uint64(3)
    sample = draws.sample(draws.subsample((tokens, np.array([0, 50_000, 50_000, 100_000])), key), key)
    ratios = 0.01 / np.array([0.9, 0.1])
    kept = np.bincount(sample.tokens) / frequencies
    np.testing.assert_allclose(kept, np.sqrt(ratios) + ratios, atol=0.02)
    assert sample.offsets[1] == sample.offsets[2]
    assert sample.offsets[3] == len(sample.tokens) == len(sample.windows) == len(sample.negatives)


def test_reader_when_started_anywhere_then_batch_has_one_clock():
    lengths = np.full(3000, 40)
    kept = InMemorySentences(np.arange(120_000, dtype=np.int32), np.append(0, np.cumsum(lengths)))
    clocks = EpochSchedule(2, 4)
    reader = ClockReader(kept, clocks)
    first = [list(reader.batches(clock)) for clock in range(8)]
    numbers = [number for clock in first for number, _ in clock]
    assert numbers == [*range(6)] * 2
    assert all(len(clock) for clock in first)
    assert np.array_equal(np.concatenate([b[0] for clock in first[:4] for _, b in clock]), kept.words)
    for clock in (6, 2, 3):
        again = list(ClockReader(kept, clocks).batches(clock))
        assert [number for number, _ in again] == [number for number, _ in first[clock]]
    assert all(len(batch[0]) <= BATCH_TOKENS for clock in first for _, batch in clock)


def test_progress_when_a_clock_is_done_again_then_equal():
    kept = InMemorySentences(np.arange(120_000, dtype=np.int32), np.arange(0, 120_001, 40))
    reader = ClockReader(kept, EpochSchedule(2, 4))
    first = [[reader.progress for _ in reader.batches(clock)] for clock in range(8)]
    assert np.allclose(np.concatenate(first), [number / 6 for number in range(12)])
    for clock in (6, 2):
        again = ClockReader(kept, EpochSchedule(2, 4))
        assert [again.progress for _ in again.batches(clock)] == first[clock]
    assert PLAN.rate(0.0) == PLAN.settings.stepSize
    assert PLAN.rate(PLAN.settings.maxIter / 2) == PLAN.settings.stepSize / 2


def test_clocks_when_tokens_are_few_then_workers_meet_still():
    assert EpochSchedule.from_plan(plan_with(maxIter=2), 2, 1000) == EpochSchedule(2, 5)
    assert EpochSchedule.from_plan(plan_with(maxIter=1, total=10**6), 2, 1000) == EpochSchedule(1, 500)
    assert EpochSchedule.from_plan(plan_with(maxIter=1, total=1), 2, 1000) == EpochSchedule(1, 1)


def damped(changes, tables, frequencies, workers):
    plan = plan_with(vocabulary=len(frequencies))
    updates = UpdateRates.from_frequencies(plan, frequencies, np.full(len(frequencies), 1 / len(frequencies)))
    damping, result = ChangeDamping(plan, updates), [changes.copy(), changes.copy()]
    for _ in range(5):  # until the directions are found
        result = [changes.copy(), changes.copy()]
        damping.damp(result, tables, 1000.0, 0.025, workers)
    return updates, result


def test_damping_when_rows_share_direction_then_means_along_it():
    rng = np.random.default_rng(2)
    long = np.linalg.qr(rng.normal(size=(SIZE, 1)))[0][:, 0].astype(np.float32)
    rows = (100 * rng.normal(size=(8, 1)) * long + 1e-4 * rng.normal(size=(8, SIZE))).astype(np.float32)
    changes = rng.normal(size=(8, SIZE)).astype(np.float32)
    _, result = damped(changes, [rows, rows], np.full(8, 1000), 4)
    along = np.outer(changes @ long, long)
    for some in result:
        np.testing.assert_allclose(some, changes - 0.75 * along, atol=1e-3)


def test_damping_then_as_by_all_directions():
    rng = np.random.default_rng(4)
    frequencies = np.array([10**6, 10**4, 100, 1])
    vectors, contexts = (rng.normal(size=(2, 4, SIZE)) * 0.3).astype(np.float32)  # of rank 4
    changes = rng.normal(size=(4, SIZE)).astype(np.float32)
    updates, result = damped(changes, [vectors, contexts], frequencies, 3)
    weights = updates.contexts / updates.contexts.sum()
    lengths, basis = np.linalg.eigh((contexts * weights[:, None]).T.astype(np.float64) @ contexts)
    h = np.outer(updates.vectors * 1000 * 0.025 / 4, lengths)
    expected = ((changes @ basis) * (1 + h / 2) / (1 + 3 * h / 2)) @ basis.T
    np.testing.assert_allclose(result[0], expected, atol=0.02)
    assert np.linalg.norm(result[0][0]) < 0.95 * np.linalg.norm(changes[0])
    np.testing.assert_allclose(result[0][3], changes[3], atol=1e-3)


@pytest.mark.parametrize(
    ("loss", "has"), [(0.1, False), (4.16, False), (41.0, False), (42.0, True), (3.8e11, True), (math.inf, True)]
)
def test_loss_when_over_ten_times_zero_loss_then_diverged(loss, has):
    assert plan_with(negative=5).has_diverged(loss) is has
    assert PLAN.has_diverged(math.nan)


@pytest.mark.parametrize(
    "wrong",
    [{"vectorSize": 0}, {"vocabulary": 0}, {"windowSize": 0}, {"architecture": "bag"}, {"order": 1}, {"via": "tables"}],
)
def test_settings_when_wrong_then_named(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        plan_with(**wrong)
