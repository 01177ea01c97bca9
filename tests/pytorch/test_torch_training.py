"""Workers and servers in this process train a module: rows held out, buffers, and rollbacks of the fleet."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from ps2 import EmbeddingTable
from ps2.algorithms.training.record import TrainingHistory
from ps2.client.embedding_reads import PendingReads
from ps2.errors import InputError, UsageError
from ps2.torch import RemoteEmbedding, RemoteOptimizer
from ps2.torch.training import ModuleProgram, TorchOptions, train
from tests.in_process import training_context

KEYS, K, ROWS = 40, 4, 600
LOSS = torch.nn.BCEWithLogitsLoss()


@pytest.fixture
def ps():
    with training_context() as ps:
        yield ps


class Net(torch.nn.Module):
    """Bags and numbers; ``norm`` is a layer that has buffers."""

    def __init__(self, norm):
        super().__init__()
        torch.manual_seed(5)
        self.bag = RemoteEmbedding(EmbeddingTable(K, "adagrad", lr=0.5, withCopy=True), mode="sum")
        self.norm = norm
        self.dense = torch.nn.Linear(K + 1, 1)

    def forward(self, keys, numbers):
        return self.dense(self.norm(torch.cat([self.bag(keys), numbers[:, None]], dim=1))).squeeze(1)


def rows():
    """Return rows of which a model learns few by heart after some epochs; two thirds are held out."""
    rng = np.random.default_rng(1)
    keys, numbers, effect = rng.integers(0, KEYS, (ROWS, 3)), rng.normal(size=ROWS), rng.normal(size=KEYS)
    labels = (rng.random(ROWS) < 1 / (1 + np.exp(-effect[keys].sum(axis=1) - numbers))).astype(float)
    columns = {"keys": pa.array(keys.tolist()), "number": numbers, "label": labels}
    return pa.table({**columns, "held": np.arange(ROWS) % 3 > 0})


def learn(ps, table, workers=1, norm=None, **options) -> tuple[torch.nn.Module, TrainingHistory]:
    """Train a new module; ``table`` has the rows of all workers."""
    net = Net(norm or torch.nn.BatchNorm1d(K + 1, affine=False))
    settings = {"held_out": "held", "staleness": 0, "patience": 0, "epochs": 1, "batch": 20, **options}
    optimizer = RemoteOptimizer(net.dense.parameters(), "adam", lr=0.05, withCopy=True)
    common = {"inputs": ("keys", "number"), "ragged": (), "label": "label", "seed": 3, "threads": 1}
    program = ModuleProgram(net, optimizer, LOSS, TorchOptions(**common, **settings))
    table = table.set_column(3, "held", table["held"].cast(pa.int32()).fill_null(-1))
    shards = [table.take(np.arange(rank, len(table), workers)).to_batches() for rank in range(workers)]
    trained = train(ps, shards, workers, program, lambda step: None)
    return trained.module, trained.history


def all_values(module):
    """Return all values of a module: parameters, buffers, and the table with its optimizer's state."""
    return [*module.state_dict().values(), torch.from_numpy(module.bag.table.pullBlocks(np.arange(KEYS)))]


def test_module_when_rows_are_held_out_then_best_epoch_stays(ps):
    """It stops, and the model with buffers and the state of the table is that of so many epochs."""
    stopped, history = learn(ps, rows(), patience=2, epochs=30)
    best = history.best // 10
    assert best > 1
    assert history.steps == history.best + 20 < 300
    expected, other = learn(ps, rows(), epochs=best)
    assert history.validation[: len(other.validation)] == other.validation
    for mine, theirs in zip(all_values(stopped), all_values(expected), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_module_when_rows_are_held_out_then_loss_is_theirs(ps):
    module, history = learn(ps, rows(), epochs=2)
    held = rows().filter(pa.compute.field("held"))
    keys, numbers, labels = (torch.tensor(held[name].to_pylist()) for name in ("keys", "number", "label"))
    with torch.no_grad():
        assert history.validation[-1] == pytest.approx(LOSS(module.eval()(keys, numbers), labels).item(), rel=1e-6)
    assert len(history.validation) == 11  # after the first epoch, and after each step of the second one
    assert len(set(history.validation)) == 2


def test_module_when_fleet_rolls_back_then_best_is_alike(ps):
    """Copies of epochs that are rolled back are forgotten. Buffers do not roll back, so there are none here."""
    options = {"norm": torch.nn.Identity(), "patience": 2, "epochs": 9, "batch": 100}
    expected, history = learn(ps, rows(), **options)
    assert 2 < history.best < history.steps
    ps.rollback_seed = 4
    result, again = learn(ps, rows(), **options)
    assert (again.best, again.steps, again.validation) == (history.best, history.steps, history.validation)
    for mine, theirs in zip(all_values(result), all_values(expected), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@pytest.mark.parametrize(("staleness", "ahead"), [(0, 0), (1, 19)])
def test_module_when_stale_then_next_keys_are_pulled_ahead(ps, monkeypatch, staleness, ahead):
    results, take = [], PendingReads.take
    monkeypatch.setattr(PendingReads, "take", lambda reads, keys: results.append(take(reads, keys)) or results[-1])
    learn(ps, rows(), held_out="", staleness=staleness, epochs=2, batch=60)
    assert len(results) == 20
    assert results[0] is None
    assert sum(read is not None for read in results) == ahead


def test_module_when_all_rows_are_held_out_then_says_so(ps):
    table = rows().set_column(3, "held", pa.array([True] * ROWS))
    with pytest.raises(InputError, match="column 'held': expected rows to train on, but all are held out"):
        learn(ps, table)


def test_module_when_indicator_is_null_then_names_the_row(ps):
    table = rows().set_column(3, "held", pa.array([True, False, None] * (ROWS // 3)))
    with pytest.raises(InputError, match="column 'held', row 2: expected true or false, got null"):
        learn(ps, table)


def test_optimizer_when_it_has_no_room_then_error_says_so(ps):
    with pytest.raises(UsageError, match="make it with withCopy=True"):
        RemoteOptimizer(torch.nn.Linear(2, 1).parameters()).storeCopy()
