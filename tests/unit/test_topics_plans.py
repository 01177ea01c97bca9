"""What all who train topics agree on without asking: blocks of words, rows of clocks, fits of alpha."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammaln

from ps2.algorithms.topics.alpha import AlphaSchedule, fit_alpha, histogram_keys
from ps2.algorithms.topics.corpus import Corpus, corpus_hash
from ps2.algorithms.topics.plan import SamplingPlan
from ps2.algorithms.topics.sampling_worker import word_groups
from ps2.algorithms.topics.settings import LDASettings
from ps2.algorithms.topics.shared_counts import PAGE, ClockRows, SavedTopics
from ps2.algorithms.training.checkpoint_names import UNNAMED
from ps2.algorithms.training.table import deal_by_cost
from tests.fakes import FleetInProcess, installed, session_over


def test_words_when_dealt_to_blocks_then_tokens_are_about_equal():
    frequencies = (10_000 / np.arange(1, 1001)).astype(np.int64)
    blocks = deal_by_cost(np.random.default_rng(0).permutation(frequencies), 6)
    assert np.bincount(blocks).max() <= -(-1000 // 6)
    tokens = np.bincount(deal_by_cost(frequencies, 6), frequencies)
    assert tokens.max() < 1.05 * tokens.mean()


@pytest.mark.parametrize(("width", "blocks"), [(1000, 6), (150, 12), (10, 102)])
def test_blocks_when_words_are_many_then_each_fits_worker(width, blocks):
    ring = SamplingPlan(settings=LDASettings(k=2), vocabulary=1000, slice_words=width).ring(3)
    assert (ring.blocks, ring.turns) == (blocks, blocks)


@pytest.mark.parametrize("each", [1, 4])
def test_groups_when_workers_traverse_then_words_never_overlap(each):
    plan = SamplingPlan(settings=LDASettings(k=2), vocabulary=100, slice_words=5)
    rng = np.random.default_rng(0)
    taken = []
    for rank in range(3):
        words = np.sort(rng.choice(100, 70, replace=False))
        corpus = Corpus(words, np.arange(71), np.zeros(70, np.int32), np.zeros(1, np.int64))
        groups = word_groups(corpus, plan, each, rank, 3)
        assert max(end - begin for group in groups for begin, end in group) <= 5
        taken.append([{*words[[at for bounds in group for at in range(*bounds)]].tolist()} for group in groups])
        assert set.union(*taken[-1]) == set(words.tolist())
    for at_once in zip(*taken, strict=True):
        assert sum(map(len, at_once)) == len(set.union(*at_once))


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_rows_when_others_are_ahead_then_no_read_row_is_written(staleness):
    ring = ClockRows(2, staleness)
    for clock in range(20):
        read = ring.row(1, clock - staleness - 1)
        assert read not in [ring.row(1, ahead) for ahead in range(clock - staleness, clock + staleness + 1)]
    assert sorted(ring.clock_rows(3) + ring.clock_rows(4)) == sorted({*ring.clock_rows(3), *ring.clock_rows(4)})


@pytest.mark.parametrize("staleness", [0, 1, 8])
def test_fits_when_used_then_are_made_and_still_own_their_row(staleness):
    fits = AlphaSchedule(True, staleness)
    made_after = {fits.fit_after(i): i for i in range(1, 200) if fits.fit_after(i) is not None}
    for iteration in range(1, 200):
        used = fits.fit_used_in(iteration)
        if used in made_after:
            # Who is in the clock before t + staleness + 1 may not have heard of what is decided after clock t.
            assert made_after[used] + staleness + 1 <= iteration
            assert iteration + staleness < made_after.get(used + 2, 1000)
        else:
            assert used == fits.first - 1
            assert iteration <= made_after[fits.first] + staleness


def test_alpha_when_fitted_then_beats_nearby_values():
    rng = np.random.default_rng(0)
    true = np.array([0.2, 1.5, 0.05, 0.6])
    counts = np.stack([rng.multinomial(60, share) for share in rng.dirichlet(true, 800)])
    _, topics = np.nonzero(counts)
    pairs, documents = np.unique(np.stack([topics, counts[counts > 0]]), axis=1, return_counts=True)
    keys = np.append(histogram_keys(*pairs), histogram_keys(np.array([4]), np.array([60])))

    def likelihood(alpha):
        whole = alpha.sum()
        return 800 * (gammaln(whole) - gammaln(whole + 60)) + (gammaln(counts + alpha) - gammaln(alpha)).sum()

    result = np.full(4, 0.5)
    for _ in range(5):
        result = fit_alpha(result, keys, np.append(documents, 800))
    np.testing.assert_allclose(result, true, rtol=0.2)
    for change in np.eye(4) * 0.02:
        assert likelihood(result) > max(likelihood(result * (1 + change)), likelihood(result * (1 - change)))


def test_alpha_when_no_document_has_topic_then_stays_above_0():
    keys = np.append(histogram_keys(np.array([0]), np.array([5])), histogram_keys(np.array([2]), np.array([5])))
    assert (fit_alpha(np.full(2, 0.1), keys, np.array([9, 9])) > 0).all()


def corpus_of(tokens, number):
    zeros = np.zeros(tokens, np.int32)
    return Corpus(np.array([3]), np.array([0, tokens]), zeros, np.array([number]))


def test_saved_topics_when_loaded_then_match_only_same_tokens():
    with installed(session_over(FleetInProcess(2))):
        corpora = [corpus_of(2 * PAGE + 1, 7), corpus_of(5, 8)]
        saved = SavedTopics.make(300, sum(corpus.size for corpus in corpora), 2, UNNAMED)
        topics = [np.arange(corpus.size, dtype=np.uint16) + rank for rank, corpus in enumerate(corpora)]
        for rank, corpus in enumerate(corpora):
            saved.announce_size(rank, corpus.size)
        assert saved.load(0, corpus_hash(corpora[0]), corpora[0].size) is None
        for rank, corpus in enumerate(corpora):
            saved.save(rank, corpus_hash(corpus), topics[rank])
        for rank, corpus in enumerate(corpora):
            np.testing.assert_array_equal(saved.load(rank, corpus_hash(corpus), corpus.size), topics[rank])
        assert saved.load(1, corpus_hash(corpus_of(5, 9)), 9) is None
