"""Vectors written for Faiss, Milvus and pgvector are read again as they were."""

from __future__ import annotations

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ps2.algorithms import Embedding, MatrixFactors
from ps2.algorithms.frame import vector_files
from ps2.errors import ConfigError, InputError

WORDS = ["oak", 'a "b", c', "two\nlines", "Ö"]
VECTORS = np.array([[0.1, -1e-30], [3e38, 0], [1 / 3, 2], [-0.0, 7]], np.float32)


def read(path, form):
    """Return ids and vectors of a file."""
    if form == "npy":
        return np.load(path / "ids.npy").tolist(), np.load(path / "vectors.npy")
    if form == "parquet":
        table = pq.read_table(path)
        assert table.schema.field("vector").type == pa.list_(pa.float32())
        return table["id"].to_pylist(), np.array(table["vector"].to_pylist(), np.float32)
    with open(path, newline="") as file:
        rows = list(csv.reader(file))
    return [row[0] for row in rows], np.array([json.loads(row[1]) for row in rows], np.float32)


@pytest.mark.parametrize("form", ["npy", "parquet", "pgvector"])
@pytest.mark.parametrize("block", [1, 3, 4096])
def test_vectors_when_exported_then_read_to_the_bit(tmp_path, monkeypatch, form, block):
    monkeypatch.setattr(vector_files, "BLOCK_ROWS", block)
    Embedding(WORDS, VECTORS).exportVectors(str(tmp_path / "out"), form)
    ids, vectors = read(tmp_path / "out", form)
    assert ids == WORDS
    np.testing.assert_array_equal(vectors, VECTORS)


@pytest.mark.parametrize("form", ["npy", "parquet", "pgvector"])
def test_factors_when_exported_then_products_are_predictions(tmp_path, form):
    rng = np.random.default_rng(1)
    arrays = rng.normal(size=(2, 3)), rng.normal(size=(4, 3)), rng.normal(size=2), rng.normal(size=4)
    factors = MatrixFactors([5, 9], [2, 4, 6, 8], *arrays, 3.5)
    for side in ("user", "item"):
        factors.exportVectors(str(tmp_path / side), form, side=side)
    (users, p), (items, q) = (read(tmp_path / side, form) for side in ("user", "item"))
    assert ([int(id) for id in users], [int(id) for id in items]) == ([5, 9], [2, 4, 6, 8])
    predicted = factors.predict(np.repeat([5, 9], 4), np.tile([2, 4, 6, 8], 2)).reshape(2, 4)
    np.testing.assert_allclose(p @ q.T, predicted, rtol=1e-5)


def test_export_when_arguments_are_wrong_then_error(tmp_path):
    with pytest.raises(ConfigError, match="form: expected one of npy, parquet, pgvector, got 'csv'"):
        Embedding(WORDS, VECTORS).exportVectors(str(tmp_path / "x"), "csv")
    with pytest.raises(ConfigError, match="side: expected user or item, got 'films'"):
        MatrixFactors([1], [2], [[1.0]], [[1.0]]).exportVectors(str(tmp_path / "x"), side="films")
    with pytest.raises(InputError, match="expected ids without NUL"):
        Embedding(["a\0b"], [[1.0]]).exportVectors(str(tmp_path / "x"), "pgvector")
    assert not list(tmp_path.iterdir())
