"""Deep models trained by workers and servers in this process: unfit numbers, limits, and keys that wait."""

from __future__ import annotations

import gc

import numpy as np
import pyarrow as pa
import pytest

from ps2.algorithms.deep.architecture import KINDS, Architecture
from ps2.algorithms.deep.model import DeepModel
from ps2.algorithms.deep.plan import DeepPlan
from ps2.algorithms.deep.program import DeepTable, compared_settings, train
from ps2.algorithms.deep.settings import ClickSettings, TowerSettings
from ps2.algorithms.training.streams.labelled_rows import NEVER
from ps2.data.hashing import Field, FieldHasher
from ps2.errors import ConfigError, DivergedError, InputError, LimitError, UsageError
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
    held = columns.get("held", np.zeros(len(table), bool)).sum()
    rows = len(table) - held
    names = "label", None, workers, rows, float(rows), NEVER, "held" if held else None, float(held)
    dealt_rows = DeepTable(shards, model.hasher, *names)
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


def rows_held_out():
    """Return random labels, which a model can only learn by heart, and rows held out."""
    rng = np.random.default_rng(1)
    return {**rows(), "label": rng.integers(0, 2, 600).astype(float), "held": np.arange(600) % 3 == 0}


@pytest.mark.parametrize("kind", KINDS)
def test_training_when_rows_are_held_out_then_best_epoch_stays(ps, kind):
    """It stops, and the model with all optimizers' state is that of so many epochs over the other rows."""
    columns = rows_held_out()
    settings = TowerSettings if kind == "two-tower" else ClickSettings
    optimizer = "adagrad" if kind in ("two-tower", "din") else "ftrl+adagrad"
    form = {"kind": kind, "optimizer": optimizer}
    arguments = {"workers": 1, "cls": settings, "patience": 2, "maxIter": 30}
    stopped = model_of(USER, AD, withCopy=True, **form)
    history = learn(ps, stopped, columns, **arguments)
    assert history.best == 1 + np.argmin(history.validation)
    assert history.steps == history.best + 2 < 30
    expected = model_of(USER, AD, **form)
    training = {name: values[~columns["held"]] for name, values in columns.items()}
    learn(ps, expected, training, **{**arguments, "maxIter": history.best})
    for mine, other in zip(stopped.layers.state(), expected.layers.state(), strict=True):
        np.testing.assert_array_equal(mine, other)
    batch = pa.table(training).to_batches()[0]
    for model in (stopped, expected):  # the optimizers of the table go on alike, too
        learn(ps, model, training, **{**arguments, "maxIter": 1})
    margins = [model.predictor().margins(model.hasher.rows(batch)) for model in (stopped, expected)]
    np.testing.assert_array_equal(*margins)


def test_training_when_patience_is_0_then_all_epochs_run(ps):
    history = learn(ps, model_of(USER, AD), rows_held_out(), patience=0, maxIter=6)
    assert (history.steps, len(history.validation), history.best) == (6, 6, None)


def clicks(n):
    """Return clicks of few popular and many rare users and ads, of which some are held out."""
    rng = np.random.default_rng(5)
    users, ads = np.minimum(rng.zipf(1.2, n), 20_000) - 1, np.minimum(rng.zipf(1.3, n), 2_000) - 1
    p, q = rng.normal(0, 0.5, (20_000, 4)), rng.normal(0, 0.5, (2_000, 4))
    margins = rng.normal(0, 0.7, 20_000)[users] + rng.normal(0, 0.7, 2_000)[ads] + (p[users] * q[ads]).sum(1) - 2.2
    labels = (rng.random(n) < 1 / (1 + np.exp(-margins))).astype(float)
    return {"user": users, "ad": ads, "label": labels, "held": rng.random(n) < 0.2}


@pytest.mark.parametrize("kind", ["deepfm", "wide-deep"])
@pytest.mark.parametrize("n", [6_000, 25_000])
def test_defaults_when_trained_then_last_pass_is_good(ps, kind, n):
    """With the defaults, the loss of held-out clicks after the last pass is at most .002 above that of the best."""
    columns, settings = clicks(n), ClickSettings()
    passes = DeepPlan(settings=settings).with_passes(int((~columns["held"]).sum())).settings.maxIter
    model = model_of(USER, AD, kind=kind, lr=settings.embeddingStepSize, alpha=settings.embeddingStepSize)
    values = {name: getattr(settings, name) for name in ("batchSize", "stepSize")}
    losses = learn(ps, model, columns, workers=1, maxIter=passes, patience=0, **values).validation
    assert losses[-1] < min(losses) + 0.002
    assert len(losses) > 1


@pytest.mark.parametrize(("rows", "passes"), [(1, 8), (5_000, 3), (10_000, 2), (22_223, 1), (10**9, 1)])
def test_passes_when_none_are_set_then_rows_decide(rows, passes):
    assert DeepPlan(settings=ClickSettings()).with_passes(rows).settings.maxIter == passes
    assert DeepPlan(settings=ClickSettings(maxIter=7)).with_passes(rows).settings.maxIter == 7


def test_training_when_rows_are_held_out_then_not_stale(ps):
    with pytest.raises(ConfigError, match="staleness: expected 0 with rows held out, got 1"):
        learn(ps, model_of(USER, AD), rows_held_out(), staleness=1)


def test_settings_when_sums_of_weights_differ_then_same():
    """Their last digits depend on the order of the rows, so another driver may have others."""
    table = DeepTable(None, FieldHasher((USER,)), "label", "w", 1, 600, 1.0)
    plans = [DeepPlan(settings=ClickSettings(), weight=weight, held_weight=weight) for weight in (0.1 + 0.2, 0.3)]
    assert compared_settings(table, plans[0]) == compared_settings(table, plans[1])


def test_copy_when_there_is_no_room_then_error_says_so(ps):
    with pytest.raises(UsageError, match="has no room for a copy: make it with withCopy=True"):
        model_of(USER, AD).table.storeCopy()


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


def used_bytes(ps):
    gc.collect()
    return sum(used for _, used in ps.memory())


def test_models_when_dropped_then_servers_free_them(ps):
    """The model of the next training takes the place of the one before."""
    model = model_of(USER, AD, X)
    learn(ps, model, rows())
    expected = used_bytes(ps)
    for _ in range(3):
        del model
        model = model_of(USER, AD, X)
        learn(ps, model, rows())
        assert used_bytes(ps) == expected


def test_table_when_its_model_is_dropped_then_still_works(ps):
    model = model_of(USER, AD, X)
    learn(ps, model, rows())
    table, weights = model.table, model.table.pull([1, 2])
    del model
    model_of(USER, AD, X)
    np.testing.assert_array_equal(table.pull([1, 2]), weights)
