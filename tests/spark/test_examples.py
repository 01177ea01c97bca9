"""The examples run as their first lines say: one through spark-submit, with Spark's own settings, others right here."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pyspark
import pytest
from faults.sparks import DAEMON, submit_options

from ps2 import PS2Context

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def run_example(spark):
    """``run_example(name, *arguments)``: run it as a program, on the shared session; return what it printed."""

    def run(name, *arguments):
        with (
            mock.patch.object(type(spark), "stop"),  # others need it
            mock.patch.object(sys, "argv", [name, *map(str, arguments)]),
            contextlib.redirect_stdout(io.StringIO()) as printed,
        ):
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return printed.getvalue()

    yield run
    if (active := PS2Context.getActive()) is not None:
        active.stop()


def losses_of(printed):
    return [float(loss) for loss in re.findall(r"loss (\S+)", printed)]


@pytest.mark.nightly
def test_lr_adam_when_submitted_then_the_loss_goes_down(run_program, environment, mllib):
    """Figure 3."""
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = ["--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    data = [mllib / "sample_libsvm_data.txt", 20]
    own = {**environment, "SPARK_SUBMIT_OPTS": submit_options(DAEMON)}
    finished = run_program(submit, *settings, EXAMPLES / "lr_adam.py", *data, env=own)
    assert finished.returncode == 0, finished.stderr
    losses = losses_of(finished.stdout)
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("negative", ["0", "-1"])
def test_lr_adam_run_when_run_then_the_loss_goes_down(run_example, mllib, tmp_path, negative):
    text = (mllib / "sample_libsvm_data.txt").read_text()
    (tmp_path / "rows.txt").write_text(re.sub("^0 ", f"{negative} ", text, flags=re.MULTILINE))
    losses = losses_of(run_example("lr_adam_run.py", tmp_path / "rows.txt", 20))
    assert 0 <= losses[-1] < losses[0] / 2


def test_dot_when_run_then_both_ways_print_the_product(run_example):
    printed = run_example("dot.py")
    assert re.findall(r"co-located: +(\d{2,})", printed) == ["6000000", "6000000"]


def test_recommend_when_run_then_best_items_are_well_rated(run_example, tmp_path):
    pairs = [(user, item) for user in range(20) for item in range(16) if (user + item) % 7]
    rows = [(user, item, 5 if user % 2 == item % 2 else 1) for user, item in pairs]
    (tmp_path / "ratings.txt").write_text(
        "".join(f"{user}\t{item}\t{rating}\t881250949\n" for user, item, rating in rows)
    )
    printed = run_example("recommend.py", tmp_path / "ratings.txt", 15)
    first, *_, last = (float(rmse) for rmse in re.findall(r"iteration .* RMSE (\S+)", printed))
    assert last < first
    for user, best in re.findall(r"user (\d+): (\d+) ", printed):
        assert int(user) % 2 == int(best) % 2


def test_deepwalk_when_run_then_loss_falls_and_neighbours_exist(run_example, tmp_path):
    groups = [range(4), range(4, 8)]
    edges = [(a, b) for group in groups for a in group for b in group if a < b]
    (tmp_path / "edges.txt").write_text("".join(f"{a} {b}\n" for a, b in [*edges, (0, 4)]))
    printed = run_example("deepwalk.py", tmp_path / "edges.txt", 2)
    first, last = losses_of(printed)
    assert last < first
    assert len(re.findall(r"nearest to \d: \d \d \d", printed)) == 8


def test_gbdt_when_run_then_the_loss_goes_down(run_example, tmp_path):
    values = np.random.default_rng(0).normal(size=(200, 4))
    lines = (
        f"{int(x[0] * x[2] > 0)} " + " ".join(f"{column + 1}:{value:.4f}" for column, value in enumerate(x)) + "\n"
        for x in values
    )
    (tmp_path / "rows.txt").write_text("".join(lines))
    losses = losses_of(run_example("gbdt.py", tmp_path / "rows.txt", 2))
    assert len(losses) == 2
    assert losses[1] < losses[0] < np.log(2)
