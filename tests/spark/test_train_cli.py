"""``ps2 train lr`` on files: what it prints, what it leaves behind, and how it ends."""

from __future__ import annotations

import gzip
import json
import os
import signal
import time

import numpy as np
import psutil
import pytest
from faults.processes import command_of

from ps2.algorithms import LogisticRegressionModel
from ps2.config import write_token
from tests import certificates
from tests.commands import TRACES, assert_one_line, newest_clock
from tests.ports import free_port

FEATURES = 12
END_S = 20.0  # beside other work; alone it is one
BEGUN = 10  # a clock when steps have been taken
# What the JVM itself says when Spark starts it.
JVM_LINE = "WARNING: Using incubator modules: jdk.incubator.vector\n"


def make_lines(rows=400, seed=5):
    """Rows whose label is the sign of a sum of features, as libsvm text."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        x = rng.normal(size=FEATURES)
        pairs = " ".join(f"{i + 1}:{value:.4f}" for i, value in enumerate(x))
        lines.append(f"{'+1' if x[:6].sum() > x[6:].sum() else '-1'} {pairs}\n")
    return lines


@pytest.fixture
def write(tmp_path):
    """``write(lines)``: the path of a new file with these lines."""

    def to_file(lines):
        path = tmp_path / "rows.libsvm"
        path.write_text("".join(lines))
        return path

    return to_file


@pytest.fixture
def train(run_train, tmp_path):
    """``train(*options)``: run the command; see ``run_train``."""

    def run(*options, **elsewhere):
        return run_train("lr", "--output", tmp_path / "model", *options, **elsewhere)

    return run


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "rows.libsvm"
    path.write_text("".join(make_lines()))
    return path


@pytest.fixture(scope="module")
def as_json(run_program, ps2_command, tmp_path_factory, plain):
    """The command in a process and a Spark of its own, printing JSON, and its model's folder."""
    folder = tmp_path_factory.mktemp("json") / "model"
    options = ["--steps", 20, "--fraction", 0.5, "--lr", 0.2, "--workers", 1, "-o", "json"]
    return run_program(ps2_command, "train", "lr", "--input", plain, "--output", folder, *options), folder


def load(folder):
    return LogisticRegressionModel.load(str(folder))


def accuracy(model, path):
    rows = [line.split() for line in path.read_text().splitlines()]
    x = np.array([[float(pair.split(":")[1]) for pair in pairs] for _, *pairs in rows])
    labels = np.array([label == "+1" for label, *_ in rows])
    return float(np.mean((x @ model.coefficients.toArray()[:FEATURES] + model.intercept > 0) == labels))


def test_train_when_the_file_is_fine_then_it_exits_with_0(as_json):
    assert as_json[0].returncode == 0, as_json[0].stderr


@pytest.mark.usefixtures("spark")
def test_train_when_done_then_saved_model_predicts_rows(as_json, plain):
    assert accuracy(load(as_json[1]), plain) > 0.9


def test_train_when_asked_for_json_then_stdout_is_one_object(as_json):
    message = json.loads(as_json[0].stdout)
    assert (message["rows"], message["features"], len(message["steps"])) == (400, FEATURES, 20)


@pytest.mark.usefixtures("spark")
def test_train_when_it_measures_then_score_is_of_saved_model(as_json, plain):
    measured = json.loads(as_json[0].stdout)["measures"]["train"]["accuracy"]
    assert measured == pytest.approx(accuracy(load(as_json[1]), plain))


@pytest.mark.nightly
def test_train_when_seed_repeats_with_one_worker_then_same_model(as_json, train, plain, tmp_path):
    train("--input", plain, "--steps", 20, "--fraction", 0.5, "--lr", 0.2, "--workers", 1)
    first, second = (LogisticRegressionModel.load(str(path)) for path in (as_json[1], tmp_path / "model"))
    assert (first.coefficients, first.intercept) == (second.coefficients, second.intercept)


@pytest.fixture(scope="module")
def tested(run_train, plain, tmp_path_factory):
    """The command on a gzipped file and a test file with more features: its exit code, JSON, errors and model."""
    folder = tmp_path_factory.mktemp("tested")
    packed, other = folder / "rows.libsvm.gz", folder / "test.libsvm"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    other.write_text("".join([*make_lines(100, seed=6), f"-1 1:-1 {FEATURES + 3}:1\n"]))
    options = ["--steps", 20, "--fraction", 0.5, "--lr", 0.2, "-o", "json"]
    finished = run_train("lr", "--input", packed, "--test", other, "--output", folder / "model", *options)
    return *finished, LogisticRegressionModel.load(str(folder / "model"))


def test_train_when_file_is_gzipped_then_model_predicts_rows(tested, plain):
    code, _, stderr, model = tested
    assert (code, accuracy(model, plain) > 0.9) == (0, True), stderr


def test_train_when_there_is_a_test_file_then_it_is_measured_too(tested):
    assert json.loads(tested[1])["measures"]["test"]["rows"] == 101


def test_train_when_test_file_has_more_features_then_model_too(tested):
    assert (json.loads(tested[1])["features"], tested[3].numFeatures) == (FEATURES + 3, FEATURES + 3)


def test_train_when_model_cannot_be_saved_then_fails_early(train, plain, tmp_path):
    (tmp_path / "file").touch()
    code, stdout, stderr = train("--input", plain, "--steps", 3, "--output", tmp_path / "file" / "model")
    assert (code, stdout, "no model can be saved here" in stderr) == (2, "", True)


@pytest.fixture(scope="module")
def replaced(run_train, plain, tmp_path_factory):
    """What the command says where something is in the folder, and whether that stays; the same with --overwrite."""
    folder = tmp_path_factory.mktemp("replaced")
    (folder / "model").mkdir()
    (folder / "model" / "mine").touch()
    options = ["--input", plain, "--steps", 3, "--output", folder / "model", "--plots", folder / "plots"]
    refused = run_train("lr", *options)
    return refused, (folder / "model" / "mine").exists(), run_train("lr", *options, "--overwrite"), folder


def test_train_when_folder_is_not_empty_then_kept_unless_allowed(replaced, plain):
    (code, _, stderr), stays, _, folder = replaced
    assert (code, "which only --overwrite replaces" in stderr, stays) == (2, True, True)
    assert accuracy(load(folder / "model"), plain) > 0.5


def test_train_when_printing_a_table_then_it_shows_the_losses(replaced):
    _, _, (code, stdout, _), folder = replaced
    assert [path.name for path in (folder / "plots").iterdir()] == ["loss.png"]
    messages = ("label -1 is class 0 and label 1 is class 1", "ms a step", "accuracy", "LogisticRegressionModel.load(")
    assert (code, [words for words in messages if words not in stdout]) == (0, []), stdout


def test_train_when_workers_exceed_slots_then_names_both_numbers(train, plain):
    code, _, stderr = train("--input", plain, "--workers", 7)
    assert_one_line(stderr)
    assert (code, "7 workers" in stderr, " has 2" in stderr) == (1, True, True), stderr


def test_train_when_learning_rate_is_too_large_then_names_option(train, plain):
    code, _, stderr = train("--input", plain, "--steps", 2, "--lr", 1e12)
    assert (code, "--lr 1e+12 is too large" in stderr) == (1, True), stderr


# -- what is wrong with the input --------------------------------------------------------------------------------------


def test_train_when_line_is_malformed_then_names_file_and_line(train, write, tmp_path):
    write(make_lines(100))
    lines = make_lines(3000)
    lines[2345] = "+1 3:oops\n"
    path = tmp_path / "one more.libsvm"
    path.write_text("".join(lines))
    code, _, stderr = train("--input", tmp_path / "*.libsvm")
    assert_one_line(stderr)
    assert (code, f"{path}: line 2346: value: " in stderr) == (1, True), stderr


def test_train_when_two_lines_are_malformed_then_names_first(train, write):
    lines = make_lines(3000)
    lines[2900], lines[17] = "+1 3:oops\n", "what\n"
    _, _, stderr = train("--input", write(lines))
    assert "line 18: label: " in stderr


@pytest.mark.nightly
def test_train_when_line_is_malformed_then_shell_sees_one_line(run_program, ps2_command, write, tmp_path):
    path = write([*make_lines(5), "1 2:3 2:4\n"])
    finished = run_program(ps2_command, "train", "lr", "--input", path, "--output", tmp_path / "model")
    assert_one_line(finished.stderr.removeprefix(JVM_LINE))
    assert (finished.returncode, "line 6" in finished.stderr, finished.stdout) == (1, True, "")


WRONG_INPUTS = {
    "empty": ([], r"no row"),
    "comments only": (["# nothing\n", "\n"], r"no row"),
    "three labels": (["1 1:1\n", "2 1:2\n", "3 1:3\n"], r"expected two different values, got 1, 2, 3"),
    "one label": (["1 1:1\n", "1 1:2\n"], r"expected two different values, got 1$"),
}


@pytest.mark.parametrize("name", WRONG_INPUTS)
def test_train_when_the_rows_cannot_be_used_then_it_says_why(train, write, name):
    import re

    lines, message = WRONG_INPUTS[name]
    path = write(lines)
    code, _, stderr = train("--input", path)
    assert_one_line(stderr)
    assert (code, str(path) in stderr, bool(re.search(message, stderr))) == (1, True, True), stderr


@pytest.mark.parametrize("option", ["--input", "--test"])
def test_train_when_file_is_missing_then_names_it_before_spark(train, plain, tmp_path, option):
    code, _, stderr = train("--input", plain, option, tmp_path / "nowhere.libsvm", master="there is no such Spark")
    assert_one_line(stderr)
    assert (code, "nowhere.libsvm: there is no such file" in stderr) == (1, True), stderr


def test_train_when_no_file_is_of_the_pattern_then_it_names_it(train, tmp_path):
    code, _, stderr = train("--input", tmp_path / "nowhere-*")
    assert_one_line(stderr)
    assert (code, "nowhere-*: there is no such file" in stderr) == (1, True), stderr


def test_train_when_file_system_is_unknown_then_one_line_error(train):
    code, _, stderr = train("--input", "nosuch://host/file")
    assert_one_line(stderr)
    assert (code, "nosuch" in stderr) == (1, True), stderr


def test_train_when_test_row_has_new_label_then_names_test_file(train, plain, write):
    path = write(["7 1:1\n"])
    code, _, stderr = train("--input", plain, "--test", path)
    assert_one_line(stderr)
    assert (code, f"{path}: expected labels -1 and 1, got 7" in stderr) == (1, True), stderr


def test_train_when_features_is_too_small_then_names_largest(train, plain):
    code, _, stderr = train("--input", plain, "--features", FEATURES - 1)
    assert_one_line(stderr)
    assert (code, f"line 1: index: expected an integer above {FEATURES - 1}" in stderr) == (1, True), stderr


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("--fraction", "0", "--fraction"),
        ("--fraction", "1.5", "--fraction"),
        ("--lr", "0", "--lr"),
        ("--lr", "nan", "'--lr'"),
    ],
)
def test_train_when_setting_is_out_of_range_then_named_early(train, plain, name, value, told):
    code, _, stderr = train("--input", plain, name, value, master="there is no such Spark")
    assert (code, told in stderr.splitlines()[-1]) == (2, True), stderr


# -- what is wrong with the surroundings -------------------------------------------------------------------------------


def test_train_when_no_server_at_address_then_exits_4(train, plain):
    address = f"127.0.0.1:{free_port()}"
    code, _, stderr = train("--input", plain, fleet=address)
    assert_one_line(stderr)
    assert (code, address in stderr) == (4, True), stderr


def test_train_when_the_token_is_another_then_it_exits_with_6(train, plain, tmp_path):
    other = tmp_path / "other-token"
    write_token(other, "not-the-token-of-it")
    code, _, stderr = train("--input", plain, token=other)
    assert_one_line(stderr)
    assert (code, "token" in stderr) == (6, True), stderr


@pytest.mark.parametrize(
    "variables", [{"PATH": ""}, pytest.param({"JAVA_HOME": "/nonexistent"}, marks=pytest.mark.nightly)]
)
def test_train_when_java_is_missing_then_says_what_to_install(
    run_program, ps2_command, environment, plain, tmp_path, variables
):
    kept = {name: value for name, value in environment.items() if name != "JAVA_HOME"}
    command = [ps2_command, "train", "lr", "--input", plain, "--output", tmp_path / "model"]
    finished = run_program(*command, env={**kept, **variables})
    assert_one_line(finished.stderr)
    assert (finished.returncode, "Java 17" in finished.stderr) == (2, True)


# -- ended in the middle -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def start_training(start_program, ps2_command, plain, tmp_path_factory, family_of, until):
    """``start_training()``: the command in the middle of its steps, all of its processes, and its output.

    Or as soon as it has children whose commands hold other words.
    """

    def start(commands=(*["ps2.cli.forking"] * 3, *["ps2.run.daemon"] * 2), options=()):
        folder = tmp_path_factory.mktemp("running")
        options = ["--steps", 100_000, "--servers", 2, "--output", folder / "model", *options]
        program, output = start_program(ps2_command, "train", "lr", "--input", plain, *options)

        def works():
            assert program.poll() is None, output.read_text()
            result = [command_of(process) for process in family_of(program.pid)[1:]]
            return all(sum(part in command for command in result) >= commands.count(part) for part in commands)

        until(works, f"{commands} run", 60)
        return program, family_of(program.pid), output

    return start


def alive(processes):
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


EARLY = [
    pytest.param((name,), marks=pytest.mark.nightly) for name in ("spark-class", "org.apache.spark.deploy.SparkSubmit")
]


@pytest.fixture(scope="module", params=[*EARLY, None])
def interrupted(request, start_training):
    """What Ctrl-C came to: exit code, what was printed, which processes lived on.

    It comes when the JVM is about to start, when that has started, and in the middle of the steps.
    """
    program, family, output = start_training() if request.param is None else start_training(request.param)
    os.killpg(program.pid, signal.SIGINT)  # as a terminal does
    deadline_s = time.monotonic() + END_S
    code = program.wait(END_S)
    while alive(family) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return code, output.read_text(), [command_of(process) for process in alive(family)]


def test_train_when_interrupted_then_it_exits_with_130(interrupted):
    assert interrupted[0] == 130


def test_train_when_interrupted_then_it_prints_no_traceback(interrupted):
    assert not [trace for trace in TRACES if trace in interrupted[1]], interrupted[1]


def test_train_when_interrupted_then_nothing_is_left_running(interrupted):
    assert interrupted[2] == []


@pytest.fixture(scope="module")
def killed(start_training, until, tmp_path_factory):
    """A driver was killed in the middle of the steps: its servers, its checkpoints, and the clock of the last one."""
    folder = tmp_path_factory.mktemp("checkpoints")
    options = ["--workers", 1, "--checkpoint-dir", folder, "--checkpoint-every", 0.1]
    program, family, _ = start_training(options=options)
    servers = [process for process in family if "ps2.cli.forking" in command_of(process)]
    until(lambda: newest_clock(folder) > BEGUN, "there is a checkpoint of the steps", 60)
    program.kill()
    program.wait()
    return servers, folder, newest_clock(folder)


@pytest.mark.nightly
def test_train_when_its_driver_is_killed_then_its_servers_end(killed, until):
    until(lambda: not alive(killed[0]), "servers end", END_S)


@pytest.mark.nightly
def test_train_when_resumed_from_checkpoint_then_same_weights(killed, train, plain, tmp_path):
    _, folder, clock = killed
    options = ["--input", plain, "--steps", clock, "--workers", 1, "-o", "json", "--output"]
    code, stdout, stderr = train(*options, tmp_path / "again", "--restore", folder)
    assert code == 0, stderr
    assert len(json.loads(stdout)["steps"]) == clock  # the earlier driver's too
    train(*options, tmp_path / "whole")
    again, whole = (LogisticRegressionModel.load(str(tmp_path / name)) for name in ("again", "whole"))
    assert (again.coefficients, again.intercept) == (whole.coefficients, whole.intercept)


@pytest.mark.nightly
def test_train_when_checkpoint_features_differ_then_says_so(killed, train, plain, tmp_path):
    other = tmp_path / "other.libsvm"
    other.write_text(f"+1 1:1\n-1 1:-1 {FEATURES + 3}:1\n")
    code, _, stderr = train("--input", other, "--steps", 3, "--workers", 1, "--restore", killed[1])
    assert code != 0
    assert_one_line(stderr)
    assert f"in the checkpoint is another one: dim was {FEATURES}, and is {FEATURES + 3}" in stderr


@pytest.mark.nightly
def test_train_when_fleet_has_tls_then_uses_its_certificates(train, serving, token_file, write, tmp_path):
    files = certificates.write(tmp_path / "certificates")
    messages = ["--input", write(make_lines()), "--steps", "2"]
    with serving(token_file, *files.arguments()) as address:
        code, _, stderr = train(*messages, fleet=address)
        assert code != 0
        assert "TLS" in stderr
        assert_one_line(stderr)
        code, stdout, stderr = train(*messages, *files.arguments(), fleet=address)
    assert code == 0, stderr
    assert "accuracy" in stdout
