"""Tables whose columns are cut among servers: as many parts as columns, and another number of servers than before."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ps2.algorithms.embeddings.settings import EmbeddingSettings
from ps2.algorithms.embeddings.sliced_table import SlicedTable, make_row, recut
from ps2.matrix.partition import partition_bounds

WORDS, SIZE = 7, 5


@pytest.mark.parametrize("before", [1, 2, 3])
def test_recut_when_row_was_on_other_servers_then_vectors_match(ps, before):
    settings, name = EmbeddingSettings(WORDS, SIZE, total=1), f"cut/{before}"
    vectors = np.random.default_rng(0).normal(size=(WORDS, SIZE)).astype(np.float32)
    row = make_row(settings, before, name)
    widths = np.diff(partition_bounds(row._spec, before)) // WORDS - 1
    columns = pairwise([0, *np.cumsum(widths)])
    row.push(np.concatenate([np.append(vectors[:, b:e].reshape(-1), np.ones(WORDS, np.float32)) for b, e in columns]))
    slices = SlicedTable(settings, recut(settings, row, len(ps.servers), name).matrix())
    assert slices.parts == len(ps.servers)
    np.testing.assert_array_equal(slices.pull(), vectors)
    slices.free()


def test_slices_when_servers_exceed_columns_then_some_are_empty(ps):
    settings = EmbeddingSettings(WORDS, 1, total=1)
    slices = SlicedTable(settings, make_row(settings, len(ps.servers), None).matrix())
    slices.fill(1)
    assert (slices.parts, slices.pull().shape) == (1, (WORDS, 1))
    slices.free()
