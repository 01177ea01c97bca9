"""Exports of a table whose fleet rolled back to a checkpoint: what the fleet has lost leaves the export too."""

from __future__ import annotations

import numpy as np

from ps2 import EmbeddingTable, PS2Context
from ps2.serving import Scorer

KEYS = np.arange(400) * 10**15
EVERY = np.arange(3)[:, None] * 1000 + KEYS


def step(table, part):
    table.push(EVERY[part], np.random.default_rng(part).normal(size=(len(KEYS), 4)).astype(np.float32))


def check_as_pulled(folder, table, present):
    result, there = Scorer(folder).lookUp(EVERY)
    np.testing.assert_array_equal(result, table.pull(EVERY))
    assert there.all(1).tolist() == there.any(1).tolist() == present


def test_delta_when_the_fleet_rolled_back_then_all_keys(tmp_path):
    folder = str(tmp_path / "export")
    with PS2Context.getOrCreate(servers=2, checkpointDir=str(tmp_path / "checkpoints")) as ps:
        table = EmbeddingTable(4)
        step(table, 0)
        ps.checkpoint()
        step(table, 1)
        table.export(folder)
        check_as_pulled(folder, table, [True, True, False])
        ps.rollBack()
        step(table, 2)
        export = table.export(folder, since="last")
        assert (export.full, export.keys) == (True, 800)
        assert "rolled back to a checkpoint" in export.reason
        check_as_pulled(folder, table, [True, False, True])
        step(table, 2)
        delta = table.export(folder, since=export)
        assert (delta.full, delta.keys) == (False, 400)
        check_as_pulled(folder, table, [True, False, True])


def test_delta_when_another_driver_restored_then_all_keys(tmp_path):
    folder, checkpoints = str(tmp_path / "export"), str(tmp_path / "checkpoints")
    with PS2Context.getOrCreate(servers=2, checkpointDir=checkpoints) as ps:
        table = EmbeddingTable(4, name="items")
        step(table, 0)
        ps.checkpoint()
        step(table, 1)
        table.export(folder)
        settings = table.settings
    with PS2Context.getOrCreate(servers=1, restore=checkpoints) as ps:
        table = EmbeddingTable.existing(ps.vector("items").matrix(), settings)
        export = table.export(folder, since="last")
        assert (export.full, export.keys) == (True, 400)
        check_as_pulled(folder, table, [True, False, False])
