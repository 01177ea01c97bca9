"""``ps2 train gbt`` on files: what it prints and draws, what it leaves behind, and what was wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess

import numpy as np
import pytest

from ps2.algorithms import GBTModel
from tests.commands import assert_one_line, newest_clock

pty = pytest.importorskip("pty")

FEATURES = 4
PNG = b"\x89PNG"
LIVE = r"tree \d/8, loss 0\.\d+, validation 0\.\d+, \d+ leaves, [\d.]+ [mu]?s a tree"
BEGUN = 15  # a clock when trees have been grown
# What no file can be called.
LONG_NAME = 300 * "x"
NO_SPARK = "there is no such Spark"


def rows(label, count=300, seed=5):
    """LIBSVM text; ``label(x)`` of the features x."""
    x = np.random.default_rng(seed).normal(size=(count, FEATURES)).round(3)
    return "".join(f"{label(row):g} " + " ".join(f"{i + 1}:{v:g}" for i, v in enumerate(row)) + "\n" for row in x)


def of_two(x):
    return 1 if x[0] * x[1] > 0 else -1


def of_three(x):
    return 10 * (1 + (x[0] > -0.4) + (x[0] > 0.4))


def count_of(x):
    return np.floor(np.exp(x[0]))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of rows, by what their labels are."""
    folder = tmp_path_factory.mktemp("rows")
    kinds = {
        "two": rows(of_two),
        "two, others": rows(of_two, seed=6),
        "three": rows(of_three),
        "counts": rows(count_of),
        "one": rows(lambda x: 1),
        "negative": rows(lambda x: -1 - x[0] ** 2),
    }
    for name, text in kinds.items():
        (folder / name).write_text(text)
    return {name: folder / name for name in kinds}


@pytest.fixture
def train(run_train, tmp_path):
    """``train(*options)``: run the command; see ``run_train``."""

    def run(*options, **elsewhere):
        return run_train("gbt", "--output", tmp_path / "model", *options, **elsewhere)

    return run


# -- one training, as a person in a terminal sees it -------------------------------------------------------------------


@pytest.fixture(scope="module")
def seen(ps2_command, environment, files, tmp_path_factory):
    """The command in a terminal of 80 columns: its folder, exit code, stdout, and what lived on stderr."""
    folder = tmp_path_factory.mktemp("seen")
    options = ["--trees", "8", "--depth", "3", "--lr", "0.5", "--validation", "0.25", "--tolerance", "0"]
    positions = ["--output", folder / "model", "--plots", folder / "plots", "--save-xgboost", folder / "x.json"]
    command = [
        ps2_command,
        "train",
        "gbt",
        "--input",
        files["two"],
        "--test",
        files["two, others"],
        *options,
        *positions,
    ]
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=follower,
        text=True,
        env={**environment, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
    ) as program:
        os.close(follower)
        live = b""
        while part := _read(leader):
            live += part
        stdout = program.stdout.read()
    os.close(leader)
    return folder, program.returncode, stdout, live.decode()


def _read(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # its last writer has gone
        return b""


def test_gbt_when_all_is_fine_then_it_exits_with_0(seen):
    assert seen[1] == 0, seen[3]


def test_gbt_when_it_trains_then_progress_speaks_of_trees(seen):
    assert re.search(LIVE, seen[3]), seen[3]


def test_gbt_when_terminal_is_narrow_then_line_is_not_wrapped(seen):
    frames = [frame.strip() for frame in re.split(r"\r|\x1b\[[0-9;?]*[a-zA-Z]", seen[3]) if re.search(LIVE, frame)]
    assert frames
    assert not [frame for frame in frames if len(frame) > 80 or "\n" in frame]


@pytest.mark.parametrize(
    "told",
    [
        "300 rows, 4 features; label -1 is class 0 and label 1 is class 1",
        "trees in one worker in ",
        "tree    loss  validation  leaves",
        "the model keeps the best ",
        "all rows of  rows    loss  accuracy     AUC",
        "GBTClassificationModel.load(",
        "importances.png",
    ],
)
def test_gbt_when_it_ends_then_tables_tell_how_it_went(seen, told):
    assert told in seen[2]


def test_gbt_when_pictures_are_wanted_then_they_are_png(seen):
    result = {path.name: path.read_bytes()[:4] for path in (seen[0] / "plots").iterdir()}
    assert result == {"loss.png": PNG, "importances.png": PNG}


def test_gbt_when_done_then_saved_model_predicts_other_rows(seen, files):
    labels, x = parsed(files["two, others"])
    assert np.mean(GBTModel.load(str(seen[0] / "model")).predict(x) == (labels > 0)) > 0.8


def test_gbt_when_exported_to_xgboost_then_predicts_the_same(seen, files):
    import xgboost

    _, x = parsed(files["two"])
    theirs = xgboost.Booster(model_file=str(seen[0] / "x.json")).predict(xgboost.DMatrix(x))
    ours = GBTModel.load(str(seen[0] / "model")).predictProbability(x)[:, 1]
    np.testing.assert_allclose(theirs, ours, atol=1e-6)


def parsed(path):
    result = [line.split() for line in path.read_text().splitlines()]
    x = np.array([[float(pair.split(":")[1]) for pair in pairs] for _, *pairs in result], np.float32)
    return np.array([float(label) for label, *_ in result]), x


# -- other tasks -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_classes(run_train, files, tmp_path_factory):
    """What the command says of three classes, as JSON."""
    output = tmp_path_factory.mktemp("three") / "model"
    shape = ["--trees", 3, "--growth", "leaf", "--max-leaves", 4]
    options = [*shape, "--lr", 1, "-o", "json", "--output", output]
    code, stdout, stderr = run_train("gbt", "--input", files["three"], "--task", "multiclass", *options)
    assert (code, stderr) == (0, "")
    return json.loads(stdout)


def test_gbt_when_there_are_three_labels_then_each_is_a_class(of_classes):
    assert (of_classes["classes"], of_classes["num_trees"]) == ([10, 20, 30], 9)


def test_gbt_when_trees_grow_by_leaf_then_leaf_count_is_limited(of_classes):
    assert all(3 < each["leaves"] <= 3 * 4 for each in of_classes["trees"])


def test_gbt_when_three_classes_then_measured_without_auc(of_classes):
    assert set(of_classes["measures"]["train"]) == {"rows", "loss", "accuracy"}
    assert of_classes["measures"]["train"]["accuracy"] > 0.9


def test_gbt_when_rounds_are_logged_then_final_loss_is_total(of_classes):
    assert [each["round"] for each in of_classes["trees"]] == [1, 2, 3]
    assert of_classes["trees"][-1]["loss"] == pytest.approx(of_classes["measures"]["train"]["loss"])


@pytest.fixture(scope="module")
def of_counts(run_train, files, tmp_path_factory):
    """What the command says of counts; its file for xgboost cannot be written, which comes up in the end."""
    folder = tmp_path_factory.mktemp("counts")
    options = ["--task", "regression", "--loss", "poisson", "--trees", 5, "--lr", 0.5, "-o", "json"]
    positions = ["--output", folder / "model", "--save-xgboost", folder / (LONG_NAME + ".json")]
    return folder, *run_train("gbt", "--input", files["counts"], *options, *positions)


def test_gbt_when_labels_are_numbers_then_errors_are_measured(of_counts, files):
    measure = json.loads(of_counts[2])["measures"]["train"]
    assert set(measure) == {"rows", "loss", "rmse", "mae"}
    labels, _ = parsed(files["counts"])
    assert measure["rmse"] < labels.std()


def test_gbt_when_file_cannot_be_written_then_earlier_ones_exist(of_counts):
    folder, code, stdout, stderr = of_counts
    assert_one_line(stderr)
    assert (code, LONG_NAME in stderr) == (1, True), stderr
    assert len(json.loads(stdout)["trees"]) == len(GBTModel.load(str(folder / "model")).forest.trees) == 5


# -- killed in the middle ----------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_gbt_when_driver_was_killed_then_restore_gets_same_trees(
    start_program, ps2_command, train, files, until, tmp_path
):
    folder = tmp_path / "checkpoints"
    options = [
        "--input",
        files["two"],
        "--via",
        "servers",
        "--workers",
        1,
        "--growth",
        "leaf",
        "--max-leaves",
        6,
        "--subsample",
        0.7,
    ]
    often = ["--checkpoint-dir", folder, "--checkpoint-every", 0.1]
    positions = ["--servers", 2, "--output", tmp_path / "killed"]
    program, output = start_program(ps2_command, "train", "gbt", *options, "--trees", 10_000, *often, *positions)

    def has_begun():
        assert program.poll() is None, output.read_text()
        return newest_clock(folder) > BEGUN

    until(has_begun, "there is a checkpoint of the trees", 120)
    program.kill()
    program.wait()
    trees = newest_clock(folder) // 2  # more than there are: each takes three clocks at least
    result = {}
    for name, more in (("again", ["--restore", folder]), ("whole", [])):
        inputs = ["--trees", trees, "--save-xgboost", tmp_path / name, "-o", "json", "--overwrite"]
        code, stdout, stderr = train(*options, *inputs, *more)
        assert code == 0, stderr
        result[name] = json.loads(stdout)
    assert (tmp_path / "again").read_text() == (tmp_path / "whole").read_text()
    assert result["whole"]["trees"][-1]["leaves"] > 1
    code, _, stderr = train(*options, "--depth", 5, "--trees", trees, "--restore", folder, "--overwrite")
    assert_one_line(stderr)
    message = "'ps2 train gbt' in the checkpoint is another one: maxDepth was 6, and is 5"
    assert (code, message in stderr) == (2, True), stderr
    assert len(result["again"]["trees"]) == len(result["whole"]["trees"]) == trees


# -- what is wrong -----------------------------------------------------------------------------------------------------

WRONG_ROWS = {
    "one": ([], "expected two different values, got 1"),
    "three": ([], "expected two different values, got 10, 20, 30; --task multiclass and --task regression accept more"),
    "negative": (["--task", "regression", "--loss", "poisson"], "expected counts for loss 'poisson'"),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_gbt_when_labels_do_not_fit_task_then_says_so(train, files, name):
    options, messages = WRONG_ROWS[name]
    code, _, stderr = train("--input", files[name], *options)
    assert_one_line(stderr)
    assert (code, messages in stderr) == (1, True), stderr


WRONG_OPTIONS = {
    "no file": (["--input", "nowhere.libsvm"], 1, "nowhere.libsvm: there is no such file"),
    "depth": (["--depth", "99"], 2, "'--depth': expected a number in [0, 30], got 99"),
    "bins": (["--bins", "1"], 2, "'--bins': expected"),
    "leaves": (["--max-leaves", "1"], 2, "'--max-leaves': expected"),
    "lambda": (["--lambda", "nan"], 2, "'--lambda': expected"),
    "trees": (["--trees", "0"], 2, "--trees"),
    "validation": (["--validation", "1"], 2, "--validation"),
    "loss of classes": (["--loss", "huber"], 2, "--loss: expected --task regression, got binary"),
    "shape": (["--task", "regression", "--loss", "quantile", "--loss-shape", "2"], 2, "--loss-shape: expected"),
    "plots": (["--plots", "{two}"], 2, "--plots: expected a folder that exists or can be created"),
    "plots elsewhere": (["--plots", "hdfs://host/plots"], 2, "--plots: expected a folder of this machine"),
    "no place for checkpoints": (["--checkpoint-every", "5"], 2, "--checkpoint-every needs --checkpoint-dir"),
    "xgboost": (["--save-xgboost", "{two}"], 2, "--save-xgboost: expected no such file without --overwrite"),
}


@pytest.mark.parametrize("name", WRONG_OPTIONS)
def test_gbt_when_option_is_invalid_then_named_before_spark(train, files, name):
    options, code, messages = WRONG_OPTIONS[name]
    inputs = [option.format(two=files["two"]) for option in options]
    result, _, stderr = train("--input", files["two"], *inputs, master=NO_SPARK)
    assert (result, messages in stderr.splitlines()[-1]) == (code, True), stderr


def test_gbt_when_matplotlib_is_missing_then_says_how_to_install(train, files, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    code, _, stderr = train("--input", files["two"], "--plots", tmp_path / "plots", master=NO_SPARK)
    assert_one_line(stderr)
    assert (code, "--plots: matplotlib is not installed; pip install 'ps2-spark[plot]'" in stderr) == (2, True)


def test_gbt_when_there_is_something_in_the_folder_then_it_stays(train, files, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").touch()
    code, _, stderr = train("--input", files["two"])
    assert (code, "which only --overwrite replaces" in stderr) == (2, True), stderr
    assert (tmp_path / "model" / "mine").exists()
