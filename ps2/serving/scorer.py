"""``Scorer``: scores rows with an exported model while it loads newer exports."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from fsspec.implementations.local import LocalFileSystem

from ps2.algorithms.frame.name_files import VECTORS, vectors_from_arrays
from ps2.array_types import Float32s
from ps2.data.key_rows import KeyRows
from ps2.data.plain_arrays import as_array
from ps2.errors import (
    CheckpointCorruptError,
    ConfigError,
    DTypeError,
    InputError,
    OutOfRangeError,
    PS2Error,
    RecoveryError,
    ShapeError,
    UsageError,
)
from ps2.matrix.key_policy import Initial
from ps2.name_hints import hints_keywords
from ps2.number_checks import is_number
from ps2.ops.guards import readable
from ps2.ops.initial import fill_initial
from ps2.serving.key_table import PRESENT, warm
from ps2.serving.loading import FACTORS, LoadedExport, Score, load, scoring_function, short_switch_interval
from ps2.serving.recommending import (
    EXACT,
    IdLists,
    IndexName,
    KnownUsers,
    Recommendations,
    Recommender,
    Users,
    UserVectors,
    index_class,
)
from ps2.storage.exports import ExportManifest, read_manifest
from ps2.storage.files import resolve_url

if TYPE_CHECKING:
    from ps2.data.hashing import Field, FieldHasher

log = logging.getLogger(__name__)

# Maximum number of attempts to load an export, if newer exports replace it during the load.
MAX_ATTEMPTS = 10


@dataclass(frozen=True, eq=False)
class _Model:
    """A loaded model; a refresh replaces the whole object, so that a call of ``score`` uses one export."""

    loaded: LoadedExport
    score: Score | None
    hasher: FieldHasher | None
    initial: Initial | None
    recommender: Recommender | None = None


class Scorer:
    """Scores rows with an exported model. Thread-safe, also during a refresh; each call uses one export.

    A pickled scorer contains only its path and settings. A Spark task that unpickles a scorer loads the export again.

    Attributes:
        path: the folder of the export.
        failure: the error of the refresh thread's last check; None: the check succeeded.
    """

    @hints_keywords
    def __init__(
        self, path: str, refreshS: float | None = None, cacheDir: str | None = None, index: IndexName = EXACT
    ) -> None:
        """Load an export.

        Args:
            path: the folder that ``export`` wrote to, as a path or fsspec URL.
            refreshS: seconds between two checks for a newer export, in a thread; None: only ``refresh()`` checks.
            cacheDir: local folder for unnamed copies of remote files, which take no space after the scorer's end. None:
                the system's temporary folder.
            index: "exact": ``recommend`` selects the best items; "approximate": nearly the best ones, which is faster
                where there are many items, and needs the extra ``ann``.

        Raises:
            ConfigError: a setting is invalid, or the index needs a package that is not installed.
            CheckpointMissingError: there is no export at this path.
            CheckpointCorruptError: a file differs from the manifest.
            RecoveryError: the file system fails.
            UsageError: this version of PS2 does not know the kind of model.
        """
        if refreshS is not None and (not is_number(refreshS) or not 0 < refreshS <= threading.TIMEOUT_MAX):
            raise ConfigError(
                f"refreshS: expected a number of seconds above 0, at most {threading.TIMEOUT_MAX:.0f}, got {refreshS!r}"
            )
        self.path = path
        self._cache, self._index, self._new_index = cacheDir, index, index_class(index)
        self._refresh_s = refreshS
        self._refresh_lock = threading.Lock()
        warm()
        self._model = self._load(None)
        self._end_event = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: PS2Error | None = None
        if refreshS is not None:
            # The thread has a weak reference, so a scorer that a task has unpickled is collected after the task.
            weakref.finalize(self, self._end_event.set)
            arguments = (weakref.ref(self), self._end_event, refreshS)
            self._thread = threading.Thread(target=_refresh_every, args=arguments, name="ps2-refresh", daemon=True)
            self._thread.start()

    @property
    def number(self) -> int:
        """The number of the export in use."""
        return self._model.loaded.manifest.number

    @property
    def manifest(self) -> ExportManifest:
        """The manifest of the export in use."""
        return self._model.loaded.manifest

    @property
    def writtenS(self) -> float:
        """The Unix time, in seconds, at which the export in use was written."""
        return self.manifest.newest.created_s

    @property
    def keysCount(self) -> int:
        """The number of keys in the base of the export in use, plus the number of keys in its merged deltas."""
        loaded = self._model.loaded
        return sum(map(len, (*loaded.base, *loaded.changes)))

    def score(self, rows: Any) -> npt.NDArray[Any]:
        """Return the score of each row, float64 of shape (n,): the probability of label 1, or the two towers' cosine.

        Args:
            rows: columns, as a list of dicts or an Arrow batch or table; or ``KeyRows``; or keys, as a list of lists or
                int64 of shape (n, keys of a row). Each of these keys has value 1. Its field is its position in the row
                if the model has ``keysPerRow`` or no columns; otherwise all keys have field 0.

        Raises:
            UsageError: the export is a table, which has no scores; or the model expects keys and got columns; or it
                expects columns, or keys with values, and got keys.
            InputError: a row lacks a column of the model, or has another number of keys; or a value is invalid; or a
                score is not finite.
            DTypeError, OutOfRangeError: a key is not an integer, or not in [0, 2**63); a value is not finite.
        """
        return self.scoreAt(rows)[0]

    def scoreAt(self, rows: Any) -> tuple[npt.NDArray[Any], int]:
        """Return the scores as ``score`` does, and the number of the export used."""
        model = self._model
        if model.score is None:
            content = "a table, which has no scores; vectors(keys) reads it"
            if model.recommender is not None:
                content = "of users' and items' vectors, without scores of rows; recommend(users) reads it"
            raise UsageError(f"{self.path}: this export is {content}")
        return _scores(model, _to_key_rows(rows, model.hasher, self.path)), model.loaded.manifest.number

    def recommend(
        self, users: Sequence[Any], k: int = 10, exclude: IdLists = None, items: IdLists = None
    ) -> Recommendations:
        """Return the k best items for each user, from an export of ``MatrixFactorization``, or ``TwoTower`` with items.

        Args:
            users: ids; for two towers dicts with the columns of the users' tower. A user who is not in the export gets
                the items with the largest mean score over all users; for two towers, the score of ``transform``.
            k: the number of items, at least 1; a list is shorter where fewer items are left.
            exclude: ids of items that are not recommended: a list for all users, or a list for each user. Unknown items
                are ignored.
            items: ids of the only items that may be recommended, in the same form; None: all items.

        Raises:
            UsageError: the export has no vectors of items.
            ConfigError: k is not an integer above 0.
            ShapeError: there is not a list of items for each user.
            InputError: an id is of another type, or a row lacks a column of the users' tower.
        """
        model = self._model
        if model.recommender is None:
            raise UsageError(
                f"{self.path}: this export has no vectors of items to recommend; MatrixFactorizationModel.export and "
                "TwoTowerModel.export(path, items=...) write them"
            )
        return model.recommender.recommend(users, k, exclude, items, model.loaded.manifest.number)

    def vectors(self, keys: Any) -> Float32s:
        """Return the values of keys, float32 of shape ``keys.shape + (width,)``.

        A key that is not in the export has its initial values, as on the servers.

        Args:
            keys: integers of any shape.

        Raises:
            DTypeError: the keys are not integers.
            OutOfRangeError: a key is not in [0, 2**63).
            UsageError: the keys are a masked array.
        """
        return self.lookUp(keys)[0]

    def lookUp(self, keys: Any) -> tuple[Float32s, npt.NDArray[np.bool_]]:
        """Return the values as ``vectors`` does, and a mask of the keys in the export, bool of shape ``keys.shape``."""
        array = _keys(keys)
        values, present = _vectors(model := self._model, readable(array.reshape(-1)))
        return values.reshape(*array.shape, model.loaded.description.width), present.reshape(array.shape)

    def refresh(self) -> bool:
        """Load and use the newest export; return False if it is already in use.

        During the load, other threads score with the previous export.

        Raises:
            PS2Error: an error of the constructor; the previous export stays in use.
        """
        with self._refresh_lock, short_switch_interval():
            current = self._model.loaded.manifest
            newest = read_manifest(self.path)
            if [entry.folder for entry in newest.entries] == [entry.folder for entry in current.entries]:
                return False
            self._model = self._load(self._model.loaded)
            return True

    def close(self) -> None:
        """End the refresh thread. Files are closed when the scorer is garbage-collected."""
        self._end_event.set()
        if self._thread is not None:
            self._thread.join()

    def __reduce__(self) -> tuple[Any, ...]:
        file_system, path = resolve_url(self.path)  # a task has another working folder
        cache = None if self._cache is None else os.path.abspath(self._cache)
        path = path if isinstance(file_system, LocalFileSystem) else self.path
        return type(self), (path, self._refresh_s, cache, self._index)

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        description = self._model.loaded.description
        return f"Scorer({self.path!r}, kind={description.kind}, width={description.width}, export={self.number})"

    def _load(self, previous: LoadedExport | None) -> _Model:
        """Load the newest export; try again if a still newer export has removed its files."""
        for attempt in range(MAX_ATTEMPTS):
            manifest = read_manifest(self.path)
            description = manifest.description
            score = scoring_function(description.kind)
            try:
                loaded = load(self.path, manifest, previous, self._cache)
            except RecoveryError:
                if attempt + 1 < MAX_ATTEMPTS and read_manifest(self.path).number != manifest.number:
                    continue
                raise
            try:
                initial = None if description.initial is None else Initial(**description.initial)
                model = _Model(loaded, score, hasher := _hasher(description.hasher), initial)
                # Score one row without values now: this compiles the kernels, and fails if the model is unusable.
                _scores(model, _to_key_rows([_empty_row(hasher)] if hasher else [[]], hasher, self.path))
                if recommender := self._recommender(model):
                    model = replace(model, recommender=recommender)
            except (LookupError, TypeError, ValueError) as error:  # UsageError is a ValueError
                raise CheckpointCorruptError(
                    f"{self.path}: export {manifest.number} does not describe a model of kind {description.kind!r}: "
                    f"{error if isinstance(error, PS2Error) else repr(error)}"
                ) from error
            return model
        raise AssertionError("the last attempt returns or raises")

    def _recommender(self, model: _Model) -> Recommender | None:
        """Return what recommends the items of a loaded export; None if it has none."""
        loaded = model.loaded
        if f"item_{VECTORS}" not in loaded.dense:
            return None
        items, item_vectors = vectors_from_arrays("item", loaded.dense)
        if loaded.description.kind == FACTORS:
            users: Users = KnownUsers(*vectors_from_arrays("user", loaded.dense))
        else:
            from ps2.algorithms.deep.scoring import tower_fields, user_vectors

            assert model.hasher is not None
            config = loaded.description.config
            hasher = tower_fields(model.hasher, config["architecture"]["deep"], right=False)

            def encode(rows: Sequence[Any]) -> UserVectors:
                if rows and not all(isinstance(row, Mapping) for row in rows):
                    raise InputError(f"users: expected dicts with the columns {', '.join(hasher.columns)}")
                key_rows = hasher.rows_of_dicts(list(rows))
                values, present = _vectors(model, readable(_keys(key_rows.keys)))
                vectors = user_vectors(config, key_rows, values, loaded.dense)
                owners = np.repeat(np.arange(len(rows)), np.diff(key_rows.indptr))
                return UserVectors(vectors, np.bincount(owners[present], minlength=len(rows)) > 0)

            users = encode
        return Recommender(items, item_vectors, users, self._new_index)

    def _try_refresh(self) -> None:
        """Refresh; store an error in ``failure`` instead of raising it."""
        try:
            self.refresh()
            self.failure = None
        except PS2Error as error:
            if str(error) != str(self.failure):
                log.warning("%s: export %d stays in use: %s", self.path, self.number, error)
            self.failure = error
        except Exception as error:  # a bug, or out of memory; this thread must not end, because nobody would notice
            log.exception("%s: export %d stays in use", self.path, self.number)
            self.failure = RecoveryError(f"{self.path}: a newer export cannot be loaded: {error!r}")


def _refresh_every(scorer: weakref.ref[Scorer], ended: threading.Event, seconds: float) -> None:
    while not ended.wait(seconds) and (current := scorer()) is not None:
        current._try_refresh()
        del current


def _scores(model: _Model, rows: KeyRows) -> npt.NDArray[Any]:
    if model.score is None or not len(rows):
        return np.empty(0)
    embeddings = _vectors(model, readable(_keys(rows.keys)))[0]
    scores: npt.NDArray[Any] = model.score(model.loaded.description.config, rows, embeddings, model.loaded.dense)
    return scores


def _vectors(model: _Model, keys: npt.NDArray[np.int64]) -> tuple[Float32s, npt.NDArray[np.bool_]]:
    values, states = model.loaded.look_up(keys)
    present = states == PRESENT
    if model.initial is not None and not present.all():
        absent, width = np.flatnonzero(~present), values.shape[1]
        columns = np.arange(width)
        fill_initial(values.reshape(-1), model.initial, keys[absent], absent * width, columns, columns)
    return values, present


def _hasher(content: Any) -> FieldHasher | None:
    if content is None:
        return None
    from ps2.data.hashing import FieldHasher

    return FieldHasher.from_json(content)


def _empty_row(hasher: FieldHasher) -> dict[str, Any]:
    """Return a row without values; if the model has a fixed number of keys in each row, the keys are 0."""
    key_fields = [field for field in hasher.fields if field.kind == "keys"]
    keys = {column: [0] * (field.width or 0) for field in key_fields for column in field.columns}
    return {**dict.fromkeys(hasher.columns), **keys}


def _to_key_rows(rows: Any, hasher: FieldHasher | None, path: str) -> KeyRows:
    """Convert rows to KeyRows, from any form that ``Scorer.score`` accepts."""
    if isinstance(rows, KeyRows):
        rows.check()
        return rows
    if isinstance(rows, np.ndarray):
        if rows.ndim != 2:
            raise ShapeError(f"rows: expected keys of shape (n, keys of a row), got shape {rows.shape}")
        field = _list_field(hasher, len(rows), path)
        return _key_rows(_keys(rows).reshape(-1), np.full(len(rows), rows.shape[1]), field)
    if isinstance(rows, Sequence) and not (rows and isinstance(rows[0], Mapping)):
        if not all(issubclass(kind, (list, tuple)) for kind in set(map(type, rows))):
            row = next(row for row in rows if not isinstance(row, (list, tuple)))
            raise DTypeError(f"rows: expected dicts of columns, or lists of keys, got {row!r:.80}")
        field = _list_field(hasher, len(rows), path)
        keys = _keys(list(chain.from_iterable(rows)))
        if keys.ndim != 1:
            raise DTypeError(f"rows: expected lists of keys, got lists of arrays of shape {keys.shape[1:]}")
        return _key_rows(keys, np.array([len(row) for row in rows], np.int64), field)
    if hasher is None:
        raise UsageError(f"{path}: this model takes keys, not columns: KeyRows, or int64 of shape (n, keys of a row)")
    if isinstance(rows, Sequence):
        return hasher.rows_of_dicts(list(rows))
    import pyarrow as pa

    if isinstance(rows, pa.RecordBatch):
        return hasher.rows(rows)
    if isinstance(rows, pa.Table):
        parts = [hasher.rows(batch) for batch in rows.to_batches()]
        return KeyRows.concatenate(parts) if parts else hasher.rows_of_dicts([])
    hint = "; to_dict('records') converts it to dicts" if hasattr(rows, "columns") else ""
    raise DTypeError(f"rows: expected dicts, keys, KeyRows or an Arrow batch, got {type(rows).__name__}{hint}")


def _list_field(hasher: FieldHasher | None, rows: int, path: str) -> Field | None:
    """Return the field of keys in lists; None without a hasher or rows. UsageError: the model expects columns."""
    if hasher is None or not rows:
        return None
    first, *others = hasher.fields
    if others or first.kind != "keys" or len(first.columns) > 1:
        from ps2.data.columns import join_names

        raise UsageError(
            f"{path}: expected columns ({join_names(hasher.columns)}), as dicts or an Arrow batch, or KeyRows of "
            "hashed keys, got lists of keys"
        )
    return first


def _key_rows(keys: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], field: Field | None) -> KeyRows:
    """Return KeyRows with values 1 and ``counts[i]`` keys in row i. Without ``field``, a key's field is its place."""
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    if field is not None and field.width is None:
        fields = np.zeros(len(keys), np.int32)
    else:
        fields = (np.arange(len(keys)) - np.repeat(indptr[:-1], counts)).astype(np.int32)
    if field is not None and field.width is not None and (counts != field.width).any():
        row = int(np.argmax(counts != field.width))
        raise InputError(f"rows: row {row}: expected {field.width} keys, as in the training rows, got {counts[row]}")
    width = int(counts[0]) if len(counts) and (counts == counts[0]).all() else None
    return KeyRows(indptr, keys, np.ones(len(keys), np.float32), fields, width)


def _keys(keys: Any) -> npt.NDArray[np.int64]:
    if isinstance(keys, (list, tuple)):
        _check_types(keys)
    try:
        array = as_array("keys", keys)
    except ShapeError as error:
        raise DTypeError(f"keys: expected integers, in lists of equal lengths: {error}") from error
    if array.dtype.kind not in "iu" and array.size:
        raise DTypeError(f"keys: expected int64, got {array.dtype}")
    if array.size and (array.min() < 0 or array.max() > 2**63 - 1):
        key = array.min() if array.min() < 0 else array.max()
        raise OutOfRangeError(f"keys: expected keys in [0, 2**63), got {key}")
    return np.ascontiguousarray(array, np.int64)


def _check_types(keys: Sequence[Any]) -> None:
    """Raise an error for lists that NumPy would convert silently: True to 1, and 2**63 together with -1 to floats."""
    types = set(map(type, keys))
    if bool in types or np.bool_ in types:
        raise DTypeError("keys: expected int64, got bool")
    if types == {int} and (invalid := next((key for key in (min(keys), max(keys)) if not 0 <= key < 2**63), None)):
        raise OutOfRangeError(f"keys: expected keys in [0, 2**63), got {invalid}")
    for nested in keys if types & {list, tuple} else ():
        if isinstance(nested, (list, tuple)):
            _check_types(nested)
