"""``ps2 train dictionary`` on a file: what it says, and what it leaves behind."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ps2.algorithms import SparseCoder

ROWS, DIM = 30, 4


def test_train_dictionary_when_run_then_model_is_saved(run_train, tmp_path):
    rows = np.random.default_rng(0).random((ROWS, DIM)).round(4)
    lines = ["0 " + " ".join(f"{at + 1}:{value}" for at, value in enumerate(row)) for row in rows]
    (tmp_path / "rows").write_text("\n".join(lines) + "\n")
    options = ["--k", 3, "--alpha", 0.1, "--iterations", 4, "--tol", 0, "--output", tmp_path / "model", "-o", "json"]
    code, stdout, stderr = run_train("dictionary", "--input", tmp_path / "rows", *options)
    assert (code, stderr) == (0, "")
    messages = json.loads(stdout)
    assert (messages["rows"], messages["features"], len(messages["steps"])) == (ROWS, DIM, 4)
    coder = SparseCoder.load(str(tmp_path / "model"))
    assert coder.dictionary.shape == (3, DIM)
    assert coder.objective(rows) == pytest.approx(messages["steps"][-1]["loss"])
