"""What ``ps2 train`` may be asked is what estimators take."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from typing import get_args

import click
import pytest
from click.testing import CliRunner

from ps2.algorithms import (
    GBTClassifier,
    GBTRegressor,
    LogisticRegression,
    RandomForestClassifier,
    RandomForestRegressor,
)
from ps2.algorithms.trees.ml.regressors import LOSSES as LOSSES_OF_TREES
from ps2.algorithms.trees.problem import GrowthName
from ps2.cli.training.forest import forest
from ps2.cli.training.gbt import GROWTHS, LOSSES, gbt
from ps2.cli.training.group import train
from ps2.cli.training.lr import lr
from ps2.cli.training.options import Files, Setting
from ps2.cli.training.running import options_named
from ps2.errors import ConfigError, PS2Error

SHARED = {field.name for cls in (Files, Setting) for field in fields(cls)}
# Not of an estimator.
OWN = {"task", "validation", "xgboost"}


@pytest.mark.parametrize(
    ("command", "estimators"),
    [
        (lr, [LogisticRegression]),
        (gbt, [GBTClassifier, GBTRegressor]),
        (forest, [RandomForestClassifier, RandomForestRegressor]),
    ],
)
def test_options_when_not_shared_then_are_estimator_params(command, estimators):
    names = {option.name for option in command.params}
    assert names >= SHARED
    params = {param.name for estimator in estimators for param in estimator().params}
    assert names - SHARED - OWN <= params


def test_losses_when_listed_then_are_those_of_regression():
    assert set(LOSSES) == set(LOSSES_OF_TREES) - {"softmax"}


def test_growths_when_listed_then_are_those_of_trees():
    assert set(GROWTHS) == set(get_args(GrowthName))


def test_errors_when_they_begin_with_param_then_name_option():
    with click.Context(gbt), pytest.raises(ConfigError, match=r"^--depth: expected 1, got 2$"), options_named():
        raise ConfigError("maxDepth: expected 1, got 2")


def test_errors_when_they_begin_otherwise_then_they_stay():
    with click.Context(gbt), pytest.raises(ConfigError, match=r"^numWorkers: no$"), options_named():
        raise ConfigError("numWorkers: no")


FAULTS = {
    "a folder of folders": (["--input", "/"], "/: expected a file or a folder of files, got a folder with the folder"),
    "no file of a pattern": (["--input", "nowhere*"], "nowhere*: there is no such file"),
    "a model is there": (["--input", __file__, "--output", "{full}"], "there is something already, which only"),
    "nothing to go on from": (["--input", __file__, "--restore", "{full}/none"], "expected a folder with a checkpoint"),
    "an address": (["--input", __file__, "--fleet", "host"], "fleet: expected HOST:PORT, got 'host'"),
    "a token": (["--input", __file__, "--fleet", "h:1", "--token-file", "{full}/none"], "none: No such file"),
    "seconds": (["--input", __file__, "--checkpoint-every", "-1", "--checkpoint-dir", "d"], "checkpointEveryS: expect"),
}


@pytest.mark.parametrize("family", list(train.commands))
@pytest.mark.parametrize("fault", FAULTS)
def test_train_when_asked_what_cannot_be_then_spark_starts_not(family, fault, tmp_path):
    (tmp_path / "file").touch()
    options, told = FAULTS[fault]
    given = [option.format(full=tmp_path) for option in options]
    defaults = ["--output", str(tmp_path / "model"), "--master", "there is no such Spark"]
    if family == "ctr":
        defaults += ["--model", "deepfm"]  # the default model learns online and takes no checkpoint
    result = CliRunner().invoke(train, [family, *defaults, *given])
    assert isinstance(result.exception, PS2Error)
    assert told in str(result.exception)


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
    given = ["--input", str(tmp_path / "rows"), "--output", str(tmp_path / "model"), "--master", "none", *options]
    with pytest.raises(ConfigError, match=told):
        CliRunner().invoke(train, ["lr", *given], catch_exceptions=False)


def test_help_when_it_is_asked_for_then_spark_is_not_imported():
    script = "import sys; from ps2.cli.main import main\ntry: main()\nfinally: assert 'pyspark' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", script, "train", "gbt", "--help"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "--save-xgboost" in done.stdout) == (0, True), done.stderr
