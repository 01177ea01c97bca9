"""Tables whose columns are cut among servers: as many parts as columns, and another number of servers than before."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from embedding_training import make_plan

from ps2.algorithms.embeddings.tables import ServerTables, SlicedTable, make_row, repartition
from ps2.matrix.partition import partition_bounds

WORDS, SIZE = 7, 5


@pytest.mark.parametrize("before", [1, 2, 3])
def test_repartition_when_on_other_servers_then_vectors_match(ps, before):
    plan, name = make_plan(WORDS, 1, vectorSize=SIZE), f"cut/{before}"
    vectors = np.random.default_rng(0).normal(size=(WORDS, SIZE)).astype(np.float32)
    row = make_row(plan, before, name)
    widths = np.diff(partition_bounds(row._spec, before)) // WORDS - 1
    columns = pairwise([0, *np.cumsum(widths)])
    row.push(np.concatenate([np.append(vectors[:, b:e].reshape(-1), np.ones(WORDS, np.float32)) for b, e in columns]))
    slices = SlicedTable(plan, repartition(plan, row, len(ps.servers), name).matrix())
    assert slices.num_slices == len(ps.servers)
    np.testing.assert_array_equal(slices.pull(), vectors)
    slices.free()


def test_slices_when_servers_exceed_columns_then_some_are_empty(ps):
    plan = make_plan(WORDS, 1, vectorSize=1)
    slices = SlicedTable(plan, make_row(plan, len(ps.servers), None).matrix())
    ServerTables(slices, None).initialize(plan)
    assert (slices.num_slices, slices.pull().shape) == (1, (WORDS, 1))
    slices.free()
