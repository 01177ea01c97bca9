"""Tables of vectors whose words are keys: room for those that were touched, wherever their ids are."""

from __future__ import annotations

import numpy as np
import pytest
from embedding_training import make_plan

from ps2.algorithms.embeddings.tables import ServerTables
from ps2.algorithms.training.checkpoint_names import UNNAMED

WORDS, SIZE = 3_000, 16
NUMBERS = 2 * WORDS * SIZE * 4


@pytest.fixture
def taken(ps, statuses):
    """``taken(keys)``: what each server has for the tables of words that are these keys, in bytes."""

    def measured(keys):
        plan = make_plan(1, 1, vectorSize=SIZE, architecture="edges", via="rows", hashed=True)
        before = np.array([status.memory_bytes for status in statuses()])
        fleet = ServerTables.make(plan, len(ps.servers), UNNAMED).for_keys(keys)
        empty = np.array([status.memory_bytes for status in statuses()]) - before
        fleet.count_keys(np.ones(WORDS, np.int64))
        for table in (fleet.vectors, fleet.contexts):
            table.add(np.arange(WORDS), np.ones((WORDS, SIZE), np.float32))
        assert (fleet.keys_and_counts()[0] == np.sort(keys)).all()
        assert (fleet.contexts.pull() == 1).all()
        result = np.array([status.memory_bytes for status in statuses()]) - before
        fleet.free()
        return empty, result

    return measured


def test_key_tables_when_ids_are_scattered_then_memory_is_same(taken):
    keys = np.arange(WORDS)
    empty, near = taken(keys)
    _, far = taken(keys * (2**63 // WORDS))
    assert empty.sum() < NUMBERS / 10
    assert NUMBERS < near.sum() < 4 * NUMBERS
    assert far.sum() < 1.5 * near.sum()
    # Both servers have their part, of ids that are near each other too.
    assert near.min() > near.max() / 3
