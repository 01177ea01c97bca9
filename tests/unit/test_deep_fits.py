"""Deep models trained by workers and servers in this process: unfit numbers, limits, and keys that wait."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.model import DeepModel
from ps2.algorithms.deep.plan import DeepPlan
from ps2.algorithms.deep.program import DeepTable, train
from ps2.algorithms.deep.settings import ClickSettings, TowerSettings
from ps2.data.hashing import Field, FieldHasher
from ps2.errors import DivergedError, InputError, LimitError
from tests.in_process import training_context

USER, AD, X = Field.categorical("user"), Field.categorical("ad"), Field.numeric("x")


@pytest.fixture
def ps():
    with training_context() as ps:
        yield ps


def rows(n=600):
    rng = np.random.default_rng(0)
    columns = {"user": rng.integers(0, 40, n), "ad": rng.integers(0, 25, n), "x": rng.normal(size=n)}
    margins = np.sin(columns["user"]) + np.cos(columns["ad"]) + columns["x"]
    return {**columns, "label": (rng.random(n) < 1 / (1 + np.exp(-margins))).astype(float)}


def model_of(*fields, kind="deepfm", optimizer="ftrl+adagrad", **settings):
    architecture = Architecture(kind, 4, len(fields), 1 if kind == "two-tower" else len(fields), (16, 8))
    table = {"k": architecture.width, "optimizer": optimizer, "zeroColumns": architecture.num_linear, "init": "normal"}
    return DeepModel.new(architecture, FieldHasher(fields), {**table, "initScale": 0.01, **settings}, seed=0)


def learn(ps, model, columns, workers=2, cls=ClickSettings, **settings):
    table = pa.table(columns)
    shards = [table.take(np.arange(rank, len(table), workers)).to_batches() for rank in range(workers)]
    dealt_rows = DeepTable(shards, model.hasher, "label", None, workers, len(table), float(len(table)))
    plan = DeepPlan(settings=cls(**{"maxIter": 1, "batchSize": 200, "stepSize": 0.01, **settings}))
    return train(ps, dealt_rows, model, plan)


def test_training_when_it_fails_then_the_next_is_sound(ps):
    """A number that overflows ends the training before its step, and leaves no part of a step behind."""
    model, columns = model_of(USER, AD, X), rows()
    learn(ps, model, columns)
    with pytest.raises(DivergedError, match="in epoch 1 the loss is nan"):
        learn(ps, model, {**columns, "x": np.where(columns["x"] > 2, 1e30, columns["x"])})
    before = model.layers.pull()
    learn(ps, model, columns, stepSize=1e-12)
    for now, then in zip(model.layers.pull(), before, strict=True):
        np.testing.assert_allclose(now, then, atol=1e-6)


def test_training_when_a_number_is_large_then_error_names_limit(ps):
    columns = rows()
    columns["x"][columns["user"] == 3] = 1e19
    with pytest.raises(InputError, match=r"^(layer|gradients).* expected .*at most 1e\+15"):
        learn(ps, model_of(USER, AD, X), columns)


def test_training_when_batch_has_more_keys_then_max_keys_says_so(ps):
    """A limit below the keys of one step is refused by the server; the other errors of a limit are those of a table."""
    with pytest.raises(LimitError, match=r"maxKeys: expected a limit of at least \d+ keys"):
        learn(ps, model_of(USER, AD, X, maxKeys=10), rows())


def test_two_towers_when_keys_wait_then_the_third_step_admits(ps):
    """Each pass over 100 rows is one step, and a step is one touch of each of its keys."""
    columns = {**rows(100), "label": np.ones(100)}
    model = model_of(USER, AD, kind="two-tower", optimizer="adagrad", admitAfter=3)
    learn(ps, model, columns, workers=1, cls=TowerSettings, maxIter=2, loss="softmax")
    assert model.table.keysCount() == 0
    learn(ps, model, columns, workers=1, cls=TowerSettings, loss="softmax")
    assert model.table.keysCount() == len(np.unique(columns["user"])) + len(np.unique(columns["ad"]))
