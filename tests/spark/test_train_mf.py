"""``ps2 train mf`` on files: what it prints, draws and saves, and what was wrong."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from ps2.algorithms import MatrixFactors
from tests.commands import assert_one_line, newest_clock

PNG = b"\x89PNG"
BEGUN = 10  # a clock when iterations have been made
USERS, ITEMS = 30, 20
SMALL = ["--rank", 2, "--iterations", 8, "--reg", 0.02]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Ratings of planted rank as text and as CSV, clicks, and what is malformed."""
    folder = tmp_path_factory.mktemp("ratings")
    rng = np.random.default_rng(1)
    ratings = rng.normal(size=(USERS, 2)) @ rng.normal(size=(2, ITEMS)) + 3
    cells = [(u, i, round(float(ratings[u, i]), 3)) for u in range(USERS) for i in range(ITEMS)]
    train = [cell for cell in cells if (cell[0] + 2 * cell[1]) % 5]
    lines = [f"{u} {i} {r}\n" if u else f"  {u}  {i}   {r} \n" for u, i, r in train]
    (folder / "ratings").write_text(" # a comment\n \t\n" + "".join(lines))
    (folder / "test").write_text("".join(f"{u} {i} {r}\n" for u, i, r in cells if not (u + 2 * i) % 5) + "99 3 1\n")
    with gzip.open(folder / "named.csv.gz", "wt") as file:
        file.write("time,movieId,userId,rating\n")
        file.write("".join(f'9,"film, {i}",u{u},{r}\n' for u, i, r in train))
    (folder / "clicks").write_text("".join(f"{u} {i}\n" for u, i, _ in train if u % 2 == i % 2))
    (folder / "malformed").write_text("1 2 3\n2 3 1\n\n3 4\n")
    (folder / "number.csv").write_text("user,item,rating\n1,2,3\n1,3,\n")
    (folder / "columns.csv").write_text("user,movie,rating\n1,2,3\n")
    (folder / "comments").write_text("# nothing\n")
    return folder


@pytest.fixture
def train(run_train, tmp_path):
    """``train(*options)``: run the command; see ``run_train``."""

    def run(*options, **elsewhere):
        return run_train("mf", "--output", tmp_path / "model", *options, **elsewhere)

    return run


def test_mf_when_done_then_reports_and_writes_model(train, files, tmp_path):
    positions = ["--test", files / "test", "--plots", tmp_path / "plots", "-o", "json", "--shown", 2, "--held-out", 0.1]
    code, stdout, stderr = train("--input", files / "ratings", *positions, *SMALL)
    assert (code, stderr) == (0, "")
    messages = json.loads(stdout)
    assert (messages["ratings"], messages["users"], messages["items"]) == (480, USERS, ITEMS)
    assert messages["iterations"][0]["loss"] > messages["iterations"][-1]["loss"]
    assert {"validation", "ratings_per_s", "seconds"} <= set(messages["iterations"][-1])
    assert (messages["test"]["ratings"], messages["test"]["known"]) == (121, 120)
    assert messages["test"]["rmse"] < 1.5
    factors = MatrixFactors.load(str(tmp_path / "model"))
    expected = [{"item": item, "rating": rating} for item, rating in factors.recommend(0, 5)]
    assert (messages["recommended"][0], len(messages["recommended"])) == ({"user": 0, "items": expected}, 2)
    assert [(path.name, path.read_bytes()[:4]) for path in (tmp_path / "plots").iterdir()] == [("rmse.png", PNG)]


def test_mf_when_columns_are_named_then_table_tells(train, files, tmp_path):
    columns = ["--user", "userId", "--item", "movieId", "--biases"]
    code, stdout, stderr = train("--input", files / "named.csv.gz", *columns, *SMALL)
    assert (code, stderr) == (0, "")
    for messages in ("user  recommended items", "u0 ", "480 ratings, 30 users, 20 items", "RMSE", "Model.load("):
        assert messages in stdout
    factors = MatrixFactors.load(str(tmp_path / "model"))
    assert ("film, 7" in factors.items, factors.hasBiases) == (True, True)


def test_mf_when_feedback_is_implicit_then_needs_no_ratings(train, files, tmp_path):
    code, stdout, stderr = train("--input", files / "clicks", "--implicit", "--alpha", 10, "-o", "json", "--rank", 2)
    assert (code, stderr) == (0, "")
    assert json.loads(stdout)["test"] is None
    assert {item % 2 for item, _ in MatrixFactors.load(str(tmp_path / "model")).recommend(3, 4)} == {1}


WRONG_FILES = {
    "malformed": "/malformed: line 4: expected 3 fields, as the first line has, got 2: '3 4'",
    "number.csv": "/number.csv: line 3: rating: expected a number, got ''",
    "columns.csv": "/columns.csv: line 1: expected a column 'item' of items, got 'user', 'movie', 'rating'",
    "comments": "/comments: expected lines 'user item' or 'user item rating', got none",
    "clicks": "/clicks: expected lines with ratings, which are optional only with --implicit",
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_mf_when_a_file_is_wrong_then_it_says_so(train, files, name):
    code, _, stderr = train("--input", files / name)
    assert_one_line(stderr)
    assert (code, WRONG_FILES[name] in stderr) == (1, True), stderr


def test_mf_when_ids_of_the_test_differ_in_type_then_it_says_so(train, files):
    options = ["--test", files / "named.csv.gz", "--user", "userId", "--item", "movieId", "--format", "csv"]
    (files / "numbers.csv").write_text("userId,movieId,rating\n1,2,3\n")
    code, _, stderr = train("--input", files / "numbers.csv", *options)
    assert (code, "expected ids of users and items of types bigint and bigint" in stderr) == (1, True), stderr


@pytest.mark.nightly
def test_mf_when_driver_was_killed_then_restore_goes_on(start_program, ps2_command, train, files, until, tmp_path):
    folder = tmp_path / "checkpoints"
    options = ["--input", files / "ratings", "--solver", "ccd", "--rank", 2, "--workers", 1]
    often = ["--checkpoint-dir", folder, "--checkpoint-every", 0.1, "--servers", 2, "--output", tmp_path / "killed"]
    program, output = start_program(ps2_command, "train", "mf", *options, "--iterations", 100_000, *often)

    def has_begun():
        assert program.poll() is None, output.read_text()
        return newest_clock(folder) > BEGUN

    until(has_begun, "there is a checkpoint of some iterations", 120)
    program.kill()
    program.wait()
    code, _, stderr = train(*options, "--reg", 0.5, "--restore", folder)
    assert (code, "regParam was 0.1, and is 0.5" in stderr) == (2, True), stderr
    iterations = newest_clock(folder) + 3
    code, stdout, stderr = train(*options, "--iterations", iterations, "--restore", folder, "-o", "json")
    assert code == 0, stderr
    assert len(json.loads(stdout)["iterations"]) == iterations
    assert len(MatrixFactors.load(str(tmp_path / "model")).users) == USERS
