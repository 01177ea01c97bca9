"""What a training of vectors needs is told before it begins, with the params that make it so much."""

from __future__ import annotations

import pytest
from embedding_training import make_plan

from ps2.algorithms.embeddings.settings import BiasedWalkSettings
from ps2.algorithms.embeddings.work import check_memory, check_walks
from ps2.errors import LimitError

WORDS, TOKENS, DRIVER = 1000, 10**6, 16 << 30
MAX_SIZE = 2**31 - 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"vectorSize": 10**9},
            r"vectorSize=1,000,000,000: vectors of 1,000 words in 2 tables take 8,000,000,000,000 bytes",
        ),
        (
            {"vectorSize": 10**9, "architecture": "edges", "order": 1},
            "in 1 table take 4,000,000,000,000 bytes, and the driver",
        ),
        (
            {"windowSize": MAX_SIZE},
            "windowSize=2,147,483,647 and negative=5, .* a worker needs [0-9,]+ bytes .* of 4,294,967,296",
        ),
        ({"windowSize": 10**6, "via": "local"}, "windowSize=1,000,000 and negative=5"),
        ({"negative": MAX_SIZE}, "windowSize=5 and negative=2,147,483,647"),
        ({"negative": MAX_SIZE, "via": "servers"}, "negative=2,147,483,647"),
        ({"negative": 10**8, "architecture": "edges", "via": "rows"}, "^negative=100,000,000, of vectorSize=100"),
    ],
)
def test_training_when_it_cannot_fit_then_params_are_named(given, message):
    plan = make_plan(**{"vocabulary": WORDS, "vectorSize": 100, "total": TOKENS, **given})
    with pytest.raises(LimitError, match=message):
        check_memory(plan, 1000, DRIVER)


@pytest.mark.parametrize("via", ["auto", "local", "rows", "servers"])
def test_training_when_sizes_are_usual_then_it_fits(via):
    check_memory(make_plan(WORDS, TOKENS, vectorSize=1000, windowSize=40, negative=25, via=via), 1000, DRIVER)
    check_memory(make_plan(2, 5, vectorSize=10_000, via=via), 2**31 - 1, DRIVER)


def test_walks_when_they_cannot_be_then_params_are_named():
    with pytest.raises(LimitError, match="walkLength=2,147,483,647: a walk takes 17,179,869,176 bytes"):
        check_walks(BiasedWalkSettings(numWalks=1, walkLength=MAX_SIZE), 10)
    with pytest.raises(LimitError, match="numWalks=2,147,483,647: from 1,000,000,000 vertices they are"):
        check_walks(BiasedWalkSettings(numWalks=MAX_SIZE, walkLength=80), 10**9)
    check_walks(BiasedWalkSettings(numWalks=1000, walkLength=10_000), 10**9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "windowSize=5 and negative=20,000, of vectorSize=100: a word takes about 20,001,000 multiplications"),
        (
            {"architecture": "cbow", "negative": 200_000},
            "^negative=200,000, of vectorSize=100: a word takes about 20,000,100",
        ),
        ({"architecture": "edges", "negative": 200_000}, "an edge takes about 20,000,100 .* the training about 2e"),
    ],
)
def test_training_when_words_take_much_work_then_it_warns(given, message):
    plan = make_plan(**{"vocabulary": WORDS, "vectorSize": 100, "total": 1000, "negative": 20_000, **given})
    with pytest.warns(UserWarning, match=message):
        check_memory(plan, 1000, DRIVER)


def test_walks_when_they_have_many_steps_then_it_warns():
    with pytest.warns(UserWarning, match="numWalks=1,000,000 and walkLength=80: from 10 vertices .* 800,000,000 steps"):
        check_walks(BiasedWalkSettings(numWalks=10**6, walkLength=80), 10)
