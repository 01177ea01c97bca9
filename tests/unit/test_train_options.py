"""What ``ps2 train`` may be asked is what estimators take."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from types import SimpleNamespace
from typing import ClassVar

import click
import pytest
from click.testing import CliRunner

from ps2 import algorithms
from ps2.algorithms import (
    LDA,
    LINE,
    DictionaryLearning,
    GBTClassifier,
    GBTRanker,
    GBTRegressor,
    KMeans,
    LogisticRegression,
    MatrixFactorization,
    MetricLearning,
    Node2Vec,
    RandomForestClassifier,
    RandomForestRegressor,
)
from ps2.algorithms.frame.settings import Setting, param
from ps2.algorithms.text.libsvm import LabelledRows
from ps2.algorithms.training.record import TrainingHistory
from ps2.algorithms.trees.settings import GBTRegressorSettings
from ps2.cli.main import cli, train
from ps2.cli.training.command import Variant
from ps2.cli.training.options import RunOptions, name_options, naming_options
from ps2.cli.training.rows import DictionaryCommand, KMeansCommand, LRCommand, MetricCommand, Rows
from ps2.cli.training.trees import GBTCommand
from ps2.errors import ConfigError, InputError, PS2Error
from tests.commands import assert_one_line, ps2

SHARED = {
    "input",
    "test",
    "format",
    "columns",
    "features",
    "label",
    "weight",
    *(field.name for field in fields(RunOptions)),
}
# Not of an estimator.
OWN = {"task", "categories", "group", "validation", "xgboost"}


@pytest.mark.parametrize(
    ("command", "estimators"),
    [
        ("lr", [LogisticRegression]),
        ("gbt", [GBTClassifier, GBTRegressor, GBTRanker]),
        ("forest", [RandomForestClassifier, RandomForestRegressor]),
    ],
)
def test_options_when_not_shared_then_are_estimator_params(command, estimators):
    names = {option.name for option in train.commands[command].params}
    assert names >= SHARED
    params = {param.name for estimator in estimators for param in estimator().params}
    assert names - SHARED - OWN <= params


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("train", "lr", "--maxiter", "3"), "--steps"),  # of the param maxIter
        (("train", "lr", "--max-iter=3"), "--steps"),
        (("train", "lr", "--LocalSteps", "3"), "--local-steps"),
        (("train", "lr", "--nointercept"), "--no-intercept"),
        (("train", "lr", "--step_size", "1"), "--lr"),
        (("train", "lr", "--checkpoint_dir", "x"), "--checkpoint-dir"),
        (("launch", "--server", "2"), "--servers"),
    ],
)
def test_option_when_misspelt_then_error_has_nearest(words, near):
    finished = ps2(*words)
    assert (finished.returncode, finished.stderr.splitlines()[-1].endswith(f". Did you mean {near}?")) == (2, True), (
        finished.stderr
    )


def test_option_when_no_option_is_similar_then_no_hint():
    assert ps2("train", "lr", "--zzzz").stderr.endswith("No such option '--zzzz'.\n")


def options_of(command):
    if not isinstance(command, click.Group):
        return command.params
    context = click.Context(command)
    commands = [command.get_command(context, name) for name in command.list_commands(context)]
    return [option for each in commands for option in options_of(each)]


def test_options_when_they_have_a_range_then_nan_is_outside():
    """NaN is below and above no bound, so that click takes it; a wait until then would never end."""
    ranges = [option for option in options_of(cli) if isinstance(option.type, click.FloatRange)]
    assert {"start_timeout", "drain", "refresh", "validation"} <= {option.name for option in ranges}
    for option in ranges:
        for text in ("nan", "inf", "-inf"):
            with pytest.raises(click.BadParameter, match=text):
                option.type.convert(text, option, None)


ESTIMATORS = (
    *(DictionaryLearning, GBTClassifier, GBTRegressor, KMeans, LDA, LINE, LogisticRegression, MatrixFactorization),
    *(MetricLearning, Node2Vec, RandomForestClassifier, RandomForestRegressor),
)
PARAMS = {param.name for cls in ESTIMATORS for param in cls().params}


@pytest.mark.parametrize("command", train.commands.values(), ids=lambda command: command.name)
def test_help_when_it_names_another_option_then_command_has_it(command):
    """Descriptions of params name params; the command's help names its options instead."""
    flags = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    for option in command.params:
        assert set(re.findall(r"(?<!\w)--[a-z][\w-]*", option.help)) <= flags, option.help
        words = re.findall(r"(?<![\w.])[a-z]+[A-Z]\w*", option.help.replace("the estimator's ", "."))
        assert not PARAMS & set(words), option.help


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("with validationIndicatorCol: stop", "with --validation: stop"),
        ("needs via='rows' or 'auto'", "needs --via 'rows' or 'auto'"),
        ("the growth of via, and summary.oobScore", "the growth of via, and summary.oobScore"),
        ("without otherCol", "without the estimator's otherCol"),
    ],
)
def test_name_options_when_params_are_named_then_options_are(text, expected):
    names = {"validationIndicatorCol": "--validation", "via": "--via", "oobScore": "--oob-score"}
    assert name_options(text, {**names, "otherCol": "the estimator's otherCol"}) == expected


def test_errors_when_they_begin_with_param_then_name_option():
    with (
        click.Context(train.commands["gbt"]),
        pytest.raises(ConfigError, match=r"^--depth: expected 1, got 2$"),
        naming_options(),
    ):
        raise ConfigError("maxDepth: expected 1, got 2")


def test_errors_when_they_begin_otherwise_then_they_stay():
    with click.Context(train.commands["gbt"]), pytest.raises(ConfigError, match=r"^numWorkers: no$"), naming_options():
        raise ConfigError("numWorkers: no")


FAULTS = {
    "a folder of folders": (["--input", "/"], "/: expected a file or a folder of files, got a folder with the folder"),
    "no file of a pattern": (["--input", "nowhere*"], "nowhere*: there is no such file"),
    "a model is there": (["--input", __file__, "--output", "{full}"], "there is something already, which only"),
    "nothing to go on from": (["--input", __file__, "--restore", "{full}/none"], "expected a folder with a checkpoint"),
    "an address": (["--input", __file__, "--fleet", "host,b"], "fleet: expected HOST:PORT,HOST:PORT"),
    "a fleet": (["--input", __file__, "--fleet", "unknown"], "no fleet named 'unknown' was launched here"),
    "a namespace": (["--input", __file__, "--namespace", "ads"], "namespace needs fleet"),
    "a token": (["--input", __file__, "--fleet", "h:1", "--token-file", "{full}/none"], "none: No such file"),
    "seconds": (["--input", __file__, "--checkpoint-every", "-1", "--checkpoint-dir", "d"], "checkpointEveryS: expect"),
}


@pytest.mark.parametrize("family", list(train.commands))
@pytest.mark.parametrize("fault", FAULTS)
def test_train_when_asked_what_cannot_be_then_spark_starts_not(family, fault, tmp_path):
    (tmp_path / "file").touch()
    options, messages = FAULTS[fault]
    inputs = [option.format(full=tmp_path) for option in options]
    defaults = ["--output", str(tmp_path / "model"), "--master", "there is no such Spark"]
    if family == "ctr":
        defaults += ["--model", "deepfm"]  # the default model learns online and takes no checkpoint
    result = CliRunner().invoke(train, [family, *defaults, *inputs])
    assert isinstance(result.exception, PS2Error)
    assert messages in str(result.exception)


# The deep models of ``ps2 train ctr``.
DEEP = "deepfm, wide-deep, dcn, xdeepfm, autoint, din"
WRONG = {
    "lr": [
        (["--input", "nowhere.libsvm"], 1, "nowhere.libsvm: there is no such file"),
        (["--test", "nowhere.libsvm"], 1, "nowhere.libsvm: there is no such file"),
        (["--fraction", "0"], 2, "--fraction"),
        (["--fraction", "1.5"], 2, "--fraction"),
        (["--fraction", "nan"], 2, "'--fraction': expected a number in (0, 1]"),
        (["--lr", "0"], 2, "--lr"),
        (["--lr", "nan"], 2, "'--lr': expected a finite positive number"),
    ],
    "gbt": [
        (["--input", "nowhere.libsvm"], 1, "nowhere.libsvm: there is no such file"),
        (["--depth", "99"], 2, "'--depth': expected a number in [0, 30], got 99"),
        (["--bins", "1"], 2, "'--bins': expected"),
        (["--max-leaves", "1"], 2, "'--max-leaves': expected"),
        (["--lambda", "nan"], 2, "'--lambda': expected"),
        (["--trees", "0"], 2, "--trees"),
        (["--validation", "1"], 2, "--validation"),
        (["--validation", "nan"], 2, "'--validation': 'nan' is not a finite number"),
        (["--loss", "huber"], 2, "--loss: expected --task regression, got binary"),
        (["--task", "regression", "--loss", "quantile", "--loss-shape", "2"], 2, "--loss-shape: expected"),
        (["--plots", "{rows}"], 2, "--plots: expected a folder that exists or can be created"),
        (["--plots", "hdfs://host/plots"], 2, "--plots: expected a folder of this machine"),
        (["--checkpoint-every", "5"], 2, "--checkpoint-every needs --checkpoint-dir"),
        (["--save-xgboost", "{rows}"], 2, "--save-xgboost: expected no such file without --overwrite"),
    ],
    "lda": [
        (["--vocab", "nowhere"], 1, "nowhere: there is no such file"),
        (["--k", "0"], 2, "'--k': expected a number in [1, "),
        (["--alpha", "-1"], 2, "'--alpha': expected"),
        (["--beta", "0"], 2, "'--beta': expected"),
        (["--optimizer", "online", "--batch", "2"], 2, "'--batch': expected a number in (0, 1], got 2.0"),
        (["--staleness", "-1"], 2, "'--staleness': expected"),
        (["--iterations", "-1"], 2, "'--iterations': expected"),
        (["--sync", "none"], 2, "--sync"),
        (["--top-words", "0"], 2, "--top-words"),
    ],
    "mf": [
        (["--test", "nowhere"], 1, "nowhere: there is no such file"),
        (["--rank", "0"], 2, "'--rank': expected a number in [1, 4096], got 0"),
        (["--iterations", "0"], 2, "'--iterations': expected at least 1, got 0"),
        (["--reg", "-1"], 2, "'--reg': expected a number in [0, 1e+18], got -1.0"),
        (["--lr", "0"], 2, "'--lr': expected a finite positive number"),
        (["--budget", "soon"], 2, "'--budget': expected a finite positive number of seconds, or 'auto', got 'soon'"),
        (["--budget", "1", "--solver", "ccd"], 2, "--budget: solver 'ccd' does not use it"),
        (["--alpha", "2"], 2, "--alpha needs --implicit"),
        (["--patience", "2"], 2, "--patience needs --held-out"),
        (["--held-out", "1"], 2, "--held-out"),
        (["--held-out", "nan"], 2, "'--held-out': 'nan' is not a finite number"),
        (["--solver", "als"], 2, "--solver"),
        (["--user", "u"], 2, "--user: expected a CSV file, got the text file"),
        (["--implicit", "--solver", "sgd"], 2, "solver: expected 'ccd' for implicit feedback"),
    ],
    "node2vec": [
        (["--labels", "nowhere"], 1, "nowhere: there is no such file"),
        (["--size", "0"], 2, "'--size': expected at least 1, got 0"),
        (["--length", "1"], 2, "'--length': expected at least 2"),
        (["--window", "0"], 2, "'--window': expected at least 1, got 0"),
        (["--p", "0"], 2, "'--p': expected a finite positive number, got 0.0"),
        (["--lr", "-1"], 2, "'--lr': expected a finite positive number"),
        (["--via", "moon"], 2, "--via"),
    ],
    "ctr": [
        (
            ["--rank", "3"],
            2,
            f"--rank: expected --model fm or {DEEP.replace(', ', ' or ')}, got lr",
        ),
        (
            ["--plots", "here"],
            2,
            f"--plots: expected --model {DEEP.replace(', ', ' or ')}, got lr",
        ),
        (["--model", "din"], 2, "--histories: expected with --model din and no other, got --model din"),
        (["--model", "din", "--histories", "a"], 2, "--histories: expected columns such as clicked:item, got 'a'"),
        (["--columns", "a,b", "--format", "parquet"], 2, "--columns: expected CSV or TSV files, got Parquet"),
    ],
}


@pytest.mark.parametrize(
    ("family", "options", "code", "told"), [(family, *case) for family, cases in WRONG.items() for case in cases]
)
def test_train_when_option_is_invalid_then_named_before_spark(family, options, code, told, tmp_path):
    (tmp_path / "rows").touch()
    inputs = [option.format(rows=tmp_path / "rows") for option in options]
    positions = ["--input", tmp_path / "rows", "--output", tmp_path / "model", "--master", "there is no such Spark"]
    if family == "ctr":
        positions += ["--categories", "site"]
    finished = ps2("train", family, *positions, *inputs)
    assert (finished.returncode, told in finished.stderr.splitlines()[-1]) == (code, True), finished.stderr


def test_train_when_matplotlib_is_missing_then_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / "rows").touch()
    positions = ["--input", tmp_path / "rows", "--output", tmp_path / "model", "--plots", tmp_path / "plots"]
    finished = ps2("train", "gbt", *positions)
    assert_one_line(finished.stderr)
    assert "--plots: matplotlib is not installed; pip install 'ps2-spark[plot]'" in finished.stderr
    assert finished.returncode == 2


@pytest.mark.parametrize("variables", [{"PATH": ""}, {"JAVA_HOME": "/nonexistent"}])
def test_train_when_java_is_missing_then_says_what_to_install(variables, tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "rows").touch()
    finished = ps2("train", "lr", "--input", tmp_path / "rows", "--output", tmp_path / "model", **variables)
    assert_one_line(finished.stderr)
    assert (finished.returncode, "Java 17" in finished.stderr) == (2, True)


def test_gbt_when_binary_task_has_three_labels_then_says_tasks():
    rows = LabelledRows("rows", None, {10.0: 1, 20.0: 1, 30.0: 1})
    with pytest.raises(InputError, match="got 10, 20, 30; --task multiclass and --task regression accept more"):
        GBTCommand(None, {}, {"task": "binary"}).classes(rows)


class ShrinkingSettings(GBTRegressorSettings):
    shrinkage: Setting[float] = param(0.5, "the shrinkage", above=0)


class ShrinkingRegressor(ShrinkingSettings, GBTRegressor):
    pass


@pytest.fixture
def make_estimator(monkeypatch):
    """``make_estimator(*options)``: the estimator of ``ps2 train gbt``, whose regressor declares one more param."""

    class ShrinkingCommand(GBTCommand):
        """Train."""

        variants: ClassVar = {**GBTCommand.variants, "regression": Variant("ShrinkingRegressor", ShrinkingSettings)}

        def train(self):
            made.append(self.make_estimator())

    made = []
    monkeypatch.setattr(algorithms, "ShrinkingRegressor", ShrinkingRegressor, raising=False)

    def run(*options):
        arguments = ["--input", "rows", "--output", "model", *options]
        CliRunner().invoke(ShrinkingCommand.command(), arguments, catch_exceptions=False)
        return made.pop()

    return run


def test_gbt_when_regressor_declares_a_param_then_has_option(make_estimator):
    estimator = make_estimator("--task", "regression", "--shrinkage", "0.25")
    assert estimator.getOrDefault("shrinkage") == 0.25


def test_gbt_when_chosen_estimator_lacks_param_then_is_left_out(make_estimator):
    assert type(make_estimator()) is GBTClassifier


def test_gbt_when_estimator_lacks_option_then_error_names_task(make_estimator):
    with pytest.raises(ConfigError, match=r"^--shrinkage: expected --task regression, got multiclass$"):
        make_estimator("--task", "multiclass", "--shrinkage", "0.25")


def test_gbt_when_defaults_are_set_then_other_options_follow(make_estimator):
    estimator = make_estimator("--defaults", "lightgbm", "--trees", "7")
    values = (estimator.getMaxIter(), estimator.getStepSize(), estimator.getMinInstancesPerNode())
    assert values == (7, 0.1, 20)
    assert not estimator.isSet("minInstancesPerNode")
    assert make_estimator("--defaults", "xgboost").getStepSize() == 0.3


def test_ctr_when_models_differ_then_help_tells_models():
    options = {option.name: option for option in train.commands["ctr"].params}
    assert options["maxIter"].help.endswith(f"at most 8 ({DEEP}).  [default: 1 (lr, fm). 0 ({DEEP})]")
    assert options["factorSize"].help.startswith(f"The size of a key's vector (fm, {DEEP}).")
    assert options["seed"].help == "The seed of all random numbers."


MODEL = SimpleNamespace(
    summary=SimpleNamespace(
        history=TrainingHistory([0.5], [0.1], [], 1, 9, 8, ""), plot=None, trainingCost=1.0, clusterSizes=[9]
    )
)


@pytest.mark.parametrize("command", [LRCommand, KMeansCommand, DictionaryCommand, MetricCommand])
@pytest.mark.parametrize(("plots", "expected"), [("plots", ["plots/loss.png"]), (None, [])])
def test_record_when_plots_are_drawn_then_lists_them(command, plots, expected):
    run = SimpleNamespace(plots=plots, output="model")
    record = command(run, {}, {}).record(Rows(9, 2, (0.0, 1.0), {}), MODEL, {})
    assert record["plots"] == expected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--momentum", "0.3"], "--momentum: solver 'minibatch' does not take it, only 'ftsgd'"),
        (["--solver", "ftsgd", "--restore", "here"], "--restore: expected --solver minibatch, .* got ftsgd"),
        (["--solver", "ftsgd", "--local-search", "never", "--local-steps", "2"], "--local-steps: localSearch='never' "),
    ],
)
def test_lr_when_options_of_solver_conflict_then_names_them(options, told, tmp_path):
    (tmp_path / "rows").touch()
    inputs = ["--input", str(tmp_path / "rows"), "--output", str(tmp_path / "model"), "--master", "none", *options]
    with pytest.raises(ConfigError, match=told):
        CliRunner().invoke(train, ["lr", *inputs], catch_exceptions=False)


def test_help_when_it_is_asked_for_then_spark_is_not_imported():
    script = "import sys; from ps2.cli.main import main\ntry: main()\nfinally: assert 'pyspark' not in sys.modules"
    finished = subprocess.run(
        [sys.executable, "-c", script, "train", "gbt", "--help"], capture_output=True, text=True, check=False
    )
    assert (finished.returncode, "--save-xgboost" in finished.stdout) == (0, True), finished.stderr
