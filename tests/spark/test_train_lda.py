"""``ps2 train lda`` on files: what it prints and draws, what it leaves behind, and what was wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ps2.algorithms import LDATopics
from tests.commands import assert_one_line, newest_clock

TREES, BEASTS = ("oak", "elm", "yew"), ("cat", "dog", "cow")
PNG = b"\x89PNG"
BEGUN = 10  # a clock when iterations have been made


def bag(documents, seed=0):
    """A file's text: documents of trees and documents of beasts."""
    counts = np.random.default_rng(seed).poisson(3, (documents, 6)) + 1
    counts[::2, :3], counts[1::2, 3:] = 0, 0
    lines = [f"{d + 1} {w + 1} {counts[d, w]}" for d, w in zip(*np.nonzero(counts), strict=True)]
    return "\n".join([str(documents), "6", str(len(lines)), *lines, ""])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bags")
    for name, text in {
        "docword": bag(30),
        "others": bag(10, seed=1),
        "vocab": "\n".join([*TREES, *BEASTS]),
        "short": "oak\nelm\n",
        "malformed": "1\n6\n2\n1 1 1\n1 7 1\n",
        "smaller": "1\n5\n1\n1 1 1\n",
    }.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def train(run_train, tmp_path):
    """``train(*options)``: run the command; see ``run_train``."""

    def run(*options, **elsewhere):
        return run_train("lda", "--output", tmp_path / "model", *options, **elsewhere)

    return run


@pytest.fixture(scope="module")
def sampled(run_train, files, tmp_path_factory):
    """The folder of a training by sampling, and what it said, as JSON."""
    folder = tmp_path_factory.mktemp("sampled")
    positions = ["--output", folder / "model", "--plots", folder / "plots"]
    options = ["--k", 2, "--iterations", 20, "--top-words", 3, "-o", "json", "--vocab", files / "vocab"]
    code, stdout, stderr = run_train(
        "lda", "--input", files / "docword", "--test", files / "others", *options, *positions
    )
    assert (code, stderr) == (0, "")
    return folder, json.loads(stdout)


def test_lda_when_it_samples_then_topics_are_told_by_their_words(sampled):
    _, messages = sampled
    assert {frozenset(topic["words"]) for topic in messages["topics"]} == {frozenset(TREES), frozenset(BEASTS)}
    assert [topic["share"] for topic in messages["topics"]] == sorted(
        (t["share"] for t in messages["topics"]), reverse=True
    )


def test_lda_when_it_samples_then_reports_perplexity(sampled, files):
    _, messages = sampled
    assert [each["iteration"] for each in messages["iterations"]] == list(range(1, 21))
    assert messages["iterations"][-1]["loss"] < messages["iterations"][0]["loss"]
    # A document has three words, and nothing of the others.
    assert 2.5 < messages["perplexity"] < 3.5
    assert (messages["documents"], messages["words"]) == (30, 6)
    lines = (files / "docword").read_text().split()[3:]
    assert messages["tokens"] == sum(map(int, lines[2::3]))


def test_lda_when_it_ends_then_model_and_picture_are_there(sampled):
    folder, messages = sampled
    topics = LDATopics.load(str(folder / "model"))
    assert topics.counts.sum() == messages["tokens"]
    assert [(path.name, path.read_bytes()[:4]) for path in (folder / "plots").iterdir()] == [("likelihood.png", PNG)]


def test_lda_when_it_is_online_then_tables_tell_how_it_went(train, files):
    options = ["--optimizer", "online", "--k", 2, "--batch", 1, "--iterations", 15, "--offset", 1, "--seed", 3]
    code, stdout, stderr = train("--input", files / "docword", "--test", files / "others", *options)
    assert (code, stderr) == (0, "")
    for messages in (
        "topic  tokens  likeliest words",
        "30 documents, ",
        "15 iterations of online",
        "perplexity of the 10 held-out documents: ",
        "LDAModel.load(",
    ):
        assert messages in stdout
    # Without a vocabulary words have the numbers that they have in the file.
    assert " 1 " in stdout.splitlines()[1] + stdout.splitlines()[2]


WRONG_FILES = {
    "malformed": (
        ["--input", "{}/malformed"],
        "/malformed: line 5: word: expected a whole number from 1 to",
    ),
    "vocabulary": (
        ["--input", "{}/docword", "--vocab", "{}/short"],
        "/short: expected the 6 words of the documents, one per line",
    ),
    "other vocabulary": (
        ["--input", "{}/docword", "--test", "{}/smaller"],
        "expected a vocabulary of 6 words",
    ),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_lda_when_a_file_is_wrong_then_it_says_so(train, files, name):
    options, messages = WRONG_FILES[name]
    code, _, stderr = train(*(option.format(files) for option in options))
    assert_one_line(stderr)
    assert (code, messages in stderr) == (1, True), stderr


@pytest.mark.nightly
def test_lda_when_driver_was_killed_then_restore_keeps_tokens(
    start_program, ps2_command, train, files, until, tmp_path
):
    folder = tmp_path / "checkpoints"
    options = ["--input", files / "docword", "--k", 2, "--seed", 5, "--workers", 1]
    often = ["--checkpoint-dir", folder, "--checkpoint-every", 0.1, "--servers", 2, "--output", tmp_path / "killed"]
    program, output = start_program(ps2_command, "train", "lda", *options, "--iterations", 100_000, *often)

    def has_begun():
        assert program.poll() is None, output.read_text()
        return newest_clock(folder) > BEGUN

    until(has_begun, "there is a checkpoint of some iterations", 120)
    program.kill()
    program.wait()
    iterations = newest_clock(folder) + 3
    code, stdout, stderr = train(*options, "--iterations", iterations, "--restore", folder, "-o", "json")
    assert code == 0, stderr
    messages = json.loads(stdout)
    assert len(messages["iterations"]) == iterations
    assert LDATopics.load(str(tmp_path / "model")).counts.sum() == messages["tokens"]
