"""Online models in tasks, which pull weights, predict rows, learn from them and push changes; and on servers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.online import kernels
from ps2.algorithms.online.plan import INTERCEPT, OnlinePlan
from ps2.algorithms.online.scoring import BIAS
from ps2.algorithms.training.streams.labelled_rows import LabelledRows
from ps2.algorithms.training.streams.task import advance_keys
from ps2.array_types import Float32s, Float64s, Int32s, Int64s
from ps2.client.embedding_settings import MAX_GRADIENT
from ps2.client.embedding_table import EmbeddingTable
from ps2.client.matrix import DCVMatrix, own
from ps2.data.hashing import FieldHasher
from ps2.data.key_rows import KeyRows, check_margins
from ps2.errors import InputError
from ps2.ops.guards import readable


@dataclass(frozen=True)
class NumberedRows:
    """Rows of (key, value) pairs in CSR form; each key occurs once in a row.

    Attributes:
        indptr: int64 of shape (n + 1,): pairs indptr[i] to indptr[i + 1] - 1 are those of row i.
        inverse: int32 of shape (pairs,): the index of each pair's key in ``keys``.
        values: float32 of shape (pairs,).
        keys: the distinct keys, with the intercept's at the end if there is one.
    """

    indptr: Int64s
    inverse: Int32s
    values: Float32s
    keys: Int64s


@dataclass(frozen=True)
class OnlineProgram:
    """Predicts rows and learns from them in tasks; picklable."""

    settings: OnlinePlan
    table: EmbeddingTable

    def learn(self, labelled: LabelledRows) -> Float64s:
        """Predict each row, then learn from it; return the margins before learning, float64 of shape (n,).

        Raise InputError, and push nothing, if a margin is not finite or a gradient is too large.
        """
        rows = number_rows(labelled.rows, self.settings.intercept)
        entries = rows.indptr, rows.inverse, rows.values, readable(labelled.labels), readable(labelled.weights)
        margins = np.empty(len(labelled.labels))
        k, tail = self.settings.k, int(self.settings.intercept)
        if not self.settings.local_steps:
            gradients = np.zeros((len(rows.keys), k), np.float32)
            kernels.sum_gradients(entries, readable(self.table.pullDistinct(rows.keys)), gradients, tail, margins)
            check_margins(margins)
            self.table.pushDistinct(rows.keys, gradients, wait=False)
            return margins
        blocks = self.table.pullBlocks(rows.keys)
        changes = np.zeros((len(rows.keys), 2 * k), np.float32)
        is_ftrl = self.settings.is_ftrl
        kernels.learn_rows(entries, readable(blocks), changes, tail, is_ftrl, self.settings.rates, margins)
        check_margins(margins)
        check_changes(changes, rows.keys)
        ftrl_params = {name: getattr(self.settings, name) for name in ("alpha", "beta", "l1", "l2")}
        arguments = {"slots": rows.keys, "changes": changes, "ftrl": is_ftrl, **ftrl_params}
        self.table.matrix.apply("online.add_changes", wait=False, **arguments)
        return margins

    def advance(self, now_s: float) -> None:
        """Advance the table's clock of managed keys (``advance_keys``)."""
        advance_keys(self.table, now_s)

    def margins(self, key_rows: KeyRows) -> Float64s:
        """Return the margins of rows, float64 of shape (n,), without learning from them."""
        rows = number_rows(key_rows, self.settings.intercept)
        margins = np.empty(len(key_rows))
        pulled = readable(self.table.pullDistinct(rows.keys))
        kernels.predict_rows(rows.indptr, rows.inverse, rows.values, pulled, int(self.settings.intercept), margins)
        return margins


def check_changes(changes: Float32s, keys: Int64s) -> None:
    """Raise InputError if sums of squared gradients would overflow."""
    is_usable = np.abs(changes) <= MAX_GRADIENT**2
    if not is_usable.all():
        key = keys[np.argmin(is_usable.all(axis=1))]
        raise InputError(
            f"values: expected gradients of at most {MAX_GRADIENT:g}, whose squares are added up, got a larger one "
            f"for key {key}: scale the values"
        )


def number_rows(rows: KeyRows, intercept: bool) -> NumberedRows:
    """Replace the keys of rows by indices of distinct keys; if a row has a key several times, add up its values.

    With an intercept, each row gets one more pair at its end. Raise InputError if a row has the key of the intercept.
    """
    keys, inverse = rows.numbered()
    if (keys == INTERCEPT).any():
        raise InputError(f"keys: expected keys below 2**63 - 1, the key of the intercept, got {INTERCEPT}")
    entries = readable(rows.indptr), readable(inverse), readable(rows.values)
    indptr, indices, values = kernels.merge_pairs(*entries, len(keys), intercept)
    all_keys = np.append(keys, INTERCEPT) if intercept else keys
    return NumberedRows(readable(indptr), readable(indices), readable(values), all_keys)


# The name of the table's folder inside the folder of a saved model.
TABLE = "table"


@dataclass(frozen=True, eq=False)
class LiveModel:
    """An online model on the servers; ``name`` is the name of its table's matrix there."""

    name: str
    settings: OnlinePlan
    table: EmbeddingTable
    hasher: FieldHasher

    def predictor(self) -> OnlineProgram:
        """Return the object with which tasks predict and learn."""
        return OnlineProgram(self.settings, self.table)

    @property
    def matrices(self) -> tuple[DCVMatrix, ...]:
        """The matrices on the servers."""
        return (self.table.matrix,)

    def own(self) -> LiveModel:
        """Free the weights when the last handle to them is garbage-collected; return the model."""
        own(self.table.matrix)
        return self

    @property
    def intercept(self) -> float:
        """The intercept; 0 for a model without an intercept."""
        return float(self.table.pull(np.array([INTERCEPT]))[0, 0]) if self.settings.intercept else 0.0

    def export(self, path: str, since: Any = None) -> Any:
        """Write the weights for ``ps2.serving.Scorer``; see ``EmbeddingTable.export``."""
        kind, dense = self.settings.kind, {BIAS: np.array([self.intercept])}
        hasher = self.hasher.to_json()
        return self.table.export(path, since, kind=kind, config={"kind": kind}, hasher=hasher, dense=dense)

    def free(self) -> None:
        """Free the weights on the servers."""
        self.table.free()

    def write(self, url: str) -> dict[str, Any]:
        """Write the weights with their optimizer's state; return PS2's part of the metadata."""
        self.table.save(f"{url}/{TABLE}")
        return {**self.settings.to_json(), "hasher": self.hasher.to_json()}

    @staticmethod
    def read(path: str, url: str, content: Mapping[str, Any]) -> LiveModel:
        """Create a model on the servers of the active context from the files of ``write``."""
        settings = dict(content)
        hasher = FieldHasher.from_json(settings.pop("hasher"))
        name = new_name()
        table = EmbeddingTable.load(f"{url}/{TABLE}", name)
        return LiveModel(name, OnlinePlan.from_json(settings), table, hasher).own()


def new_name() -> str:
    """Return a new unique name."""
    return f"online-{uuid.uuid4().hex[:12]}"
