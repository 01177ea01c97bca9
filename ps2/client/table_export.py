"""Exports embedding tables: this process reads their keys, sorts them, and streams weights to files in that order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ps2.client import embedding_plans, plans
from ps2.client.batch import in_batch, submit
from ps2.client.matrix import DCVMatrix
from ps2.errors import UsageError
from ps2.matrix.partition import Int64Array
from ps2.storage.export_writing import Content, Export, continued, write_export
from ps2.storage.exports import Description, ExportManifest


class Exported(Protocol):
    """A table as far as exports read it."""

    @property
    def k(self) -> int: ...
    @property
    def matrix(self) -> DCVMatrix: ...
    def pull_distinct(self, keys: Int64Array) -> Any: ...


@dataclass(frozen=True)
class ExportedModel:
    """What an export says of the model that a table belongs to.

    Attributes:
        kind: which function scores it (``ps2.serving.kinds``); "table": none.
        config, hasher: JSON data, as in ``Description``.
        dense: the model's other numbers.
    """

    kind: str = "table"
    config: Mapping[str, Any] = field(default_factory=dict)
    hasher: Mapping[str, Any] | None = None
    dense: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Changes:
    """The keys to export.

    Attributes:
        after: the export that the delta goes on from; None: all keys are exported.
        reason: why they are, although a delta was asked for.
    """

    keys: Int64Array
    removed: Int64Array
    after: ExportManifest | None = None
    reason: str | None = None


def export(table: Exported, path: str, since: Export | int | str | None, model: ExportedModel) -> Export:
    """Write a table's weights and what scores rows with them; ``EmbeddingTable.export`` describes it."""
    if in_batch():
        raise UsageError("export cannot be part of a batch: call it before or after")
    matrix = table.matrix
    life = matrix._first._spec.life
    initial = None if life is None or life.initial.is_zero else asdict(life.initial)
    description = Description(model.kind, table.k, model.config, model.hasher, initial)
    after = None if since is None else continued(path, since)
    matrix.flush()
    # First the time, so that what changes while this reads is part of the next delta. Then removed keys, so that
    # one that is removed and made anew meanwhile is there.
    position = _position(matrix)
    found = _changes(matrix, after, position)
    content = Content(found.keys, table.pull_distinct, found.removed, model.dense, position)
    return write_export(path, description, content, found.after, found.reason)


def _position(matrix: DCVMatrix) -> dict[str, Any]:
    return {"fleet": matrix._first._fleet.id, "epoch": matrix._session.epoch, "matrix": f"{matrix.number:x}"}


def _changes(matrix: DCVMatrix, after: ExportManifest | None, position: Mapping[str, Any]) -> _Changes:
    reason = None if after is None else _why_no_delta(after.newest.position, position, after.number)
    return _Changes(_all_keys(matrix), np.empty(0, np.int64), None, reason)


def _why_no_delta(was: Mapping[str, Any], now: Mapping[str, Any], number: int) -> str | None:
    """Return why all keys have to be exported; None if the changed ones suffice.

    Raises:
        UsageError: export ``number`` is of another table.
    """
    if was.get("fleet") != now["fleet"]:
        return f"the fleet is not the one of export {number}, and may have begun from an older state"
    if was.get("matrix") != now["matrix"]:
        raise UsageError(f"since: export {number} is of another table of this fleet; leave out since= for this one")
    if was.get("epoch") != now["epoch"]:
        return f"the fleet has gone back to a checkpoint since export {number}"
    if "stamp" not in was or "stamp" not in now:
        return "keys of this table have no time of their last change"
    return None


def _all_keys(matrix: DCVMatrix) -> Int64Array:
    target = replace(matrix._target(), rows=(0,))
    counts: Any = submit(matrix._session, plans.count_active(target))
    keys: Any = submit(matrix._session, embedding_plans.keys(target, counts))
    return np.asarray(keys)
