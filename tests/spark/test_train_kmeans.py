"""``ps2 train kmeans`` on a file: what it says, and what it leaves behind."""

from __future__ import annotations

import json

import numpy as np

from ps2.algorithms import KMeansClusters

ROWS, DIM = 30, 3


def test_train_kmeans_when_run_then_model_is_saved(run_train, tmp_path):
    rows = np.random.default_rng(0).normal(size=(ROWS, DIM)) * 0.1 + 10 * (np.arange(ROWS) % 2)[:, None]
    lines = ["0 " + " ".join(f"{at + 1}:{value:.6g}" for at, value in enumerate(row)) for row in rows]
    (tmp_path / "rows").write_text("\n".join(lines) + "\n")
    options = ["--k", 2, "--iterations", 5, "--output", tmp_path / "model", "-o", "json"]
    code, stdout, stderr = run_train("kmeans", "--input", tmp_path / "rows", *options)
    assert (code, stderr) == (0, "")
    messages = json.loads(stdout)
    assert (messages["rows"], messages["sizes"]) == (ROWS, [ROWS // 2, ROWS // 2])
    clusters = KMeansClusters.load(str(tmp_path / "model")).predict(rows)
    assert len(set(clusters[::2])) == len(set(clusters[1::2])) == 1
    assert clusters[0] != clusters[1]
