"""``ps2 train metric`` on a file: what it says, and what it leaves behind."""

from __future__ import annotations

import json

import numpy as np

from ps2.algorithms import Metric

ROWS, DIM = 30, 4


def test_train_metric_when_run_then_model_is_saved(run_train, tmp_path):
    rows = np.random.default_rng(0).normal(size=(ROWS, DIM))
    lines = [
        f"{2 * (number % 2) - 1} " + " ".join(f"{at + 1}:{value:.6g}" for at, value in enumerate(row))
        for number, row in enumerate(rows)
    ]
    (tmp_path / "rows").write_text("\n".join(lines) + "\n")
    options = ["--rank", 2, "--steps", 5, "--output", tmp_path / "model", "-o", "json"]
    code, stdout, stderr = run_train("metric", "--input", tmp_path / "rows", *options)
    assert (code, stderr) == (0, "")
    messages = json.loads(stdout)
    assert (messages["rows"], messages["classes"], len(messages["steps"])) == (ROWS, [-1.0, 1.0], 5)
    assert Metric.load(str(tmp_path / "model")).components.shape == (2, DIM)
