"""The margins of rows before the first new tree: the base, plus a margin of the row's own or an earlier model's."""

from __future__ import annotations

import hashlib
from dataclasses import fields

import numpy as np

from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.rows import with_all_columns
from ps2.algorithms.trees.tree import LEAF, Forest
from ps2.array_types import Float64s
from ps2.data.rows import LocalRows


def starting_margins(rows: LocalRows, base: tuple[float, ...], initial: Forest | None) -> Float64s:
    """Return rows' margins before the first new tree, shape (n, width): those of a base or an initial forest."""
    if initial is None:
        margins = np.tile(np.array(base), (len(rows), 1))
    else:
        margins = Predictor(initial).margins(with_all_columns(rows, initial.features))
    return margins if rows.margins is None else margins + rows.margins[:, None]


def reach_of(forest: Forest) -> tuple[float, float]:
    """Return by how much the trees of a forest with one output can move a margin down, and up."""
    leaves = [tree.value[tree.feature == LEAF] for tree in forest.trees]
    return sum(float(one.min()) for one in leaves), sum(float(one.max()) for one in leaves)


def fingerprint(forest: Forest) -> str:
    """Return a hash of a forest."""
    hashed = hashlib.sha256(np.ascontiguousarray(forest.base).tobytes())
    for tree in forest.trees:
        for field in fields(tree):
            hashed.update(np.ascontiguousarray(getattr(tree, field.name)).tobytes())
    return hashed.hexdigest()
