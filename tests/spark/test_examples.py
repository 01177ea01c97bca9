"""The examples run as their first lines say, with Spark's own settings."""

from __future__ import annotations

import re
import sys
from functools import partial

import numpy as np
import pytest
from faults.sparks import DAEMON, submit_options


@pytest.fixture(scope="module")
def run_example(run_program, environment):
    """``run_example(*command)``: as ``run_program``, without the settings that make Spark quick in tests."""
    return partial(run_program, env={**environment, "SPARK_SUBMIT_OPTS": submit_options(DAEMON)})


@pytest.fixture(scope="module", params=["lr_adam.py", "lr_adam_run.py"])
def adam(request, run_example, mllib):
    """Figure 3 through spark-submit."""
    from pathlib import Path

    import pyspark

    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = ["--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    return run_example(submit, *settings, f"examples/{request.param}", mllib / "sample_libsvm_data.txt", 20)


def test_lr_adam_when_submitted_then_it_exits_with_0(adam):
    assert adam.returncode == 0, adam.stderr


def test_lr_adam_when_submitted_then_the_loss_goes_down(adam):
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", adam.stdout)]
    assert losses[-1] < losses[0] / 2


def test_dot_when_run_then_both_ways_print_the_product(run_example):
    done = run_example(sys.executable, "examples/dot.py")
    assert re.findall(r"co-located: +(\d{2,})", done.stdout) == ["6000000", "6000000"], done.stderr


def test_recommend_when_run_then_best_items_are_well_rated(run_example, tmp_path):
    pairs = [(user, item) for user in range(20) for item in range(16) if (user + item) % 7]
    rows = [(user, item, 5 if user % 2 == item % 2 else 1) for user, item in pairs]
    (tmp_path / "ratings.txt").write_text("".join(f"{user} {item} {rating}\n" for user, item, rating in rows))
    done = run_example(sys.executable, "examples/recommend.py", tmp_path / "ratings.txt", 15)
    assert done.returncode == 0, done.stderr
    first, *_, last = (float(rmse) for rmse in re.findall(r"iteration .* RMSE (\S+)", done.stdout))
    assert last < first
    for user, best in re.findall(r"user (\d+): (\d+) ", done.stdout):
        assert int(user) % 2 == int(best) % 2


def test_deepwalk_when_run_then_loss_falls_and_neighbours_exist(run_example, tmp_path):
    groups = [range(4), range(4, 8)]
    edges = [(a, b) for group in groups for a in group for b in group if a < b]
    (tmp_path / "edges.txt").write_text("".join(f"{a} {b}\n" for a, b in [*edges, (0, 4)]))
    done = run_example(sys.executable, "examples/deepwalk.py", tmp_path / "edges.txt", 2)
    assert done.returncode == 0, done.stderr
    first, last = (float(loss) for loss in re.findall(r"loss (\S+)", done.stdout))
    assert last < first
    assert len(re.findall(r"nearest to \d: \d \d \d", done.stdout)) == 8


def test_gbdt_when_run_then_the_loss_goes_down(run_example, tmp_path):
    values = np.random.default_rng(0).normal(size=(200, 4))
    lines = (
        f"{int(x[0] * x[2] > 0)} " + " ".join(f"{column + 1}:{value:.4f}" for column, value in enumerate(x)) + "\n"
        for x in values
    )
    (tmp_path / "rows.txt").write_text("".join(lines))
    done = run_example(sys.executable, "examples/gbdt.py", tmp_path / "rows.txt", 2)
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)]
    assert len(losses) == 2, done.stderr
    assert losses[1] < losses[0] < np.log(2)
