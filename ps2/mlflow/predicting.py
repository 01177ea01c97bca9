"""The pyfunc flavour: scores pandas DataFrames without Spark and servers. MLflow calls ``_load_pyfunc``.

The folder of a model contains ``scoring.json``, which describes ``transform``, and the files of the Spark-free model
(``model``) or those for ``ps2.serving.Scorer`` (``export``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy.sparse as sp

from ps2.algorithms.frame.heads import ClusterHead, predict_all
from ps2.algorithms.frame.row_matrices import as_rows, finite_rows
from ps2.algorithms.frame.scoring import (
    FeatureScoring,
    KeyScoring,
    PairScoring,
    Scoring,
    WordScoring,
    from_json,
    to_json,
)
from ps2.data.columns import VECTOR, VECTORS, as_arrow, join_names, read_features, read_numbers
from ps2.data.ids import are_strings
from ps2.data.plain_arrays import as_array, as_numbers
from ps2.errors import CheckpointCorruptError, InputError, LimitError, UsageError
from ps2.server.memory import available_bytes

# The Arrow type of pyspark.ml's vectors in Spark's DataFrames; ``type`` is DENSE or 0 (sparse).
_VECTOR_TYPE = pa.struct(
    [
        ("type", pa.int8()),
        ("size", pa.int32()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)
DENSE = 1


def check_columns(frame: Any, names: Sequence[str]) -> None:
    """Raise InputError unless ``frame`` is a pandas DataFrame with these columns, each once."""
    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"expected a pandas DataFrame with columns {join_names(names)}, got {type(frame).__name__}")
    counts = Counter(map(str, frame.columns))
    for name in names:
        if name not in counts:
            raise InputError(f"there is no column {name!r}; there are: {join_names(list(map(str, frame.columns)))}")
        if counts[name] > 1:
            raise InputError(f"column {name!r}: expected one column of that name, got {counts[name]}")


def _column(frame: pd.DataFrame, name: str) -> pd.Series:
    """Return the column whose name as a string is ``name``. In pandas, names can be numbers."""
    if name in frame.columns:
        return frame[name]
    return frame.iloc[:, list(map(str, frame.columns)).index(name)]


def vector_column(frame: pd.DataFrame, name: str) -> pa.Array:
    """Return a column of dense or sparse vectors as Arrow lists of float64, or as structs; a missing vector is null."""
    cells = [
        None if cell is pd.NA or (isinstance(cell, float) and cell != cell) else cell for cell in _column(frame, name)
    ]
    try:
        if any(hasattr(cell, "indices") or sp.issparse(cell) or isinstance(cell, dict) for cell in cells):
            return pa.array([None if cell is None else _as_struct(cell) for cell in cells], _VECTOR_TYPE)
        return pa.array([None if cell is None else _as_array(cell) for cell in cells], pa.list_(pa.float64()))
    except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
        row = next(number for number, cell in enumerate(cells) if not _is_vector(cell))
        raise InputError(f"column {name!r}, row {row}: expected {VECTORS}, got {cells[row]!r:.80}") from error


def plain_column(frame: pd.DataFrame, name: str, kind: pa.DataType | None = None) -> pa.Array:
    """Return a column as an Arrow array of type ``kind`` (None: inferred). A missing value becomes null or NaN."""
    values = _column(frame, name)
    if kind is not None and pa.types.is_list(kind):  # Arrow would convert a string to a list of characters
        for row, cell in enumerate(values):
            if isinstance(cell, (str, bytes)):
                raise InputError(f"column {name!r}, row {row}: expected a list, got {cell!r:.80}")
    try:
        array = as_arrow(values, kind, from_pandas=values.dtype.kind != "f")
    except (pa.ArrowException, TypeError, ValueError) as error:
        expected = "values of one type" if kind is None else f"values of type {kind}"
        raise InputError(f"column {name!r}: expected {expected}: {error}") from error
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def without_nulls(column: pa.Array, name: str, expected: str) -> pa.Array:
    """Return the column; raise InputError if a value is null. ``expected`` describes a value."""
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise InputError(f"column {name!r}, row {row}: expected {expected}, got null")
    return column


def _as_array(cell: Any) -> Any:
    values = as_array("features", cell.toArray() if hasattr(cell, "toArray") else cell)
    if values.ndim != 1 or isinstance(cell, (str, bytes)):
        raise TypeError("expected a vector")
    if values.dtype == object:  # None in a list is a missing value
        return [None if value != value else value for value in as_numbers(values).tolist()]
    return as_numbers(values).astype(np.float64)


def _as_struct(cell: Any) -> dict[str, Any]:
    if isinstance(cell, dict):
        if set(cell) != VECTOR:
            raise KeyError(f"expected {sorted(VECTOR)}")
        return cell
    if sp.issparse(cell):
        row = as_rows("features", cell.reshape(1, -1))
        return {"type": 0, "size": row.shape[1], "indices": row.indices, "values": row.data}
    if not hasattr(cell, "indices"):
        return {"type": DENSE, "size": None, "indices": None, "values": _as_array(cell)}
    return {"type": 0, "size": cell.size, "indices": np.asarray(cell.indices), "values": np.asarray(cell.values)}


def _is_vector(cell: Any) -> bool:
    if cell is None:
        return True
    try:
        pa.array([_as_struct(cell)], _VECTOR_TYPE)
    except (pa.ArrowException, TypeError, ValueError, KeyError):
        return False
    return True


if TYPE_CHECKING:
    from ps2.algorithms.embeddings.model import Embedding
    from ps2.algorithms.factors.model import MatrixFactors
    from ps2.serving.scorer import Scorer

# Files and folders of a model.
SCORING, MODEL, EXPORT = "scoring.json", "model", "export"
FLOAT64 = np.dtype(np.float64)


class Predictor(Protocol):
    """A model of MLflow's pyfunc flavour."""

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return the columns that ``transform`` adds, for the rows of a pandas DataFrame; ``params`` is not used.

        Raises:
            InputError, ShapeError, DTypeError: the input lacks a column, or a value is wrong; the message names it.
        """


def write_scoring(folder: Path, scoring: Scoring) -> None:
    """Write the description of ``transform`` that ``_load_pyfunc`` reads."""
    (folder / SCORING).write_text(json.dumps(to_json(scoring)))


def _load_pyfunc(path: str) -> Predictor:
    """Load a model that ``save_model`` or ``log_model`` wrote; LimitError: the model exceeds the memory."""
    folder = Path(path)
    try:
        scoring = from_json(json.loads((folder / SCORING).read_text()))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointCorruptError(f"{folder / SCORING}: expected a description of transform: {error!r}") from error
    if isinstance(scoring, KeyScoring):
        from ps2.serving.scorer import Scorer

        return KeyPredictor(scoring, Scorer(str(folder / EXPORT)))
    required, available = (
        sum(file.stat().st_size for file in (folder / MODEL).rglob("*") if file.is_file()),
        available_bytes(),
    )
    if required > available:
        raise LimitError(
            f"{folder / MODEL}: the model takes {required:,} bytes of memory, and this process may use {available:,}"
        )
    module, _, name = scoring.loader.partition(":")
    if not module.startswith("ps2."):
        raise CheckpointCorruptError(f"{folder / SCORING}: expected a loader of ps2, got {scoring.loader!r}")
    loaded = getattr(import_module(module), name).load(str(folder / MODEL))
    if isinstance(scoring, WordScoring):
        return WordPredictor(scoring, loaded)
    if isinstance(scoring, PairScoring):
        return (RatingPredictor if name == "MatrixFactors" else PairPredictor)(scoring, loaded)
    return FeaturePredictor(scoring, loaded if scoring.rounds is None else loaded.first(scoring.rounds))


@dataclass(frozen=True, eq=False)
class FeaturePredictor:
    """Scores rows of features with any model of features.

    If the features are in one column, the input can also be a NumPy array or scipy CSR of shape (n, features).
    """

    scoring: FeatureScoring
    fitted: Any

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        scoring = self.scoring
        is_matrix = isinstance(model_input, np.ndarray) or sp.issparse(model_input)
        if is_matrix and isinstance(scoring.features, str) and scoring.margin is None:
            rows = as_rows if scoring.missing else finite_rows
            x = rows(scoring.features, model_input, scoring.dim).astype(np.float64, copy=False)
            return self._outputs(x if scoring.missing else sp.csr_array(x), 0.0, None)
        check_columns(model_input, scoring.inputs)
        base_margins: Any = 0.0
        if scoring.margin is not None:
            batch = pa.record_batch([plain_column(model_input, scoring.margin)], [scoring.margin])
            base_margins = read_numbers(batch, scoring.margin, 0)[:, None]
        return self._outputs(self._rows(model_input), base_margins, model_input.index)

    def _rows(self, frame: pd.DataFrame) -> sp.csr_array:
        scoring, names = self.scoring, self.scoring.features
        if isinstance(names, str):
            batch = pa.record_batch([vector_column(frame, names)], [names])
        else:
            batch = pa.record_batch([plain_column(frame, name) for name in names], list(names))
        features = read_features(batch, names, FLOAT64, 0, scoring.dim, scoring.missing)
        indptr = np.concatenate([[0], np.cumsum(features.lengths)])
        return sp.csr_array((features.values, features.columns, indptr), shape=(len(frame), scoring.dim))

    def _outputs(self, x: Any, base_margins: Any, index: Any) -> pd.DataFrame:
        scoring = self.scoring
        kinds = {kind for _, kind in scoring.outputs}
        predictions = predict_all(self.fitted, scoring.head, x, base_margins, kinds & {"leaf", "contrib"})
        if isinstance(scoring.head, ClusterHead):
            predictions["prediction"] = predictions["prediction"].astype(np.int32)
        values = {name: predictions[kind] for name, kind in scoring.outputs}
        columns = {name: column if column.ndim == 1 else list(column) for name, column in values.items()}
        return pd.DataFrame(columns, index=index)


@dataclass(frozen=True, eq=False)
class WordPredictor:
    """Returns for each row the mean of its words' vectors."""

    scoring: WordScoring
    embedding: Embedding

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        name = self.scoring.column
        check_columns(model_input, [name])
        words = without_nulls(plain_column(model_input, name, pa.list_(pa.string())), name, "a list of strings")
        return pd.DataFrame({self.scoring.output: list(self.embedding.means(words))}, index=model_input.index)


@dataclass(frozen=True, eq=False)
class PairPredictor:
    """Scores pairs of vertices; the score is NaN if a vertex has no vector."""

    scoring: PairScoring
    embedding: Embedding

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        scoring, names = self.scoring, self.embedding.names
        check_columns(model_input, (scoring.first, scoring.second))
        id_columns = [_id_column(model_input, name, names.are_integers) for name in (scoring.first, scoring.second)]
        null_id = 0 if names.are_integers else ""
        first, second = (names.positions(ids.fill_null(null_id)) for ids in id_columns)
        is_known = (first >= 0) & (second >= 0)
        for ids in id_columns:
            is_known &= ids.is_valid().to_numpy(zero_copy_only=False)
        scores = np.full(len(is_known), np.nan)
        scores[is_known] = self.embedding.expected(first[is_known], second[is_known], scoring.directed)
        return pd.DataFrame({scoring.output: scores}, index=model_input.index)


@dataclass(frozen=True, eq=False)
class RatingPredictor:
    """Predicts float32 ratings of pairs of users and items; the rating is NaN if the user or the item is unknown."""

    scoring: PairScoring
    factors: MatrixFactors

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        scoring, factors = self.scoring, self.factors
        check_columns(model_input, (scoring.first, scoring.second))
        id_columns = []
        for name, side in ((scoring.first, factors.user), (scoring.second, factors.item)):
            id_columns.append(without_nulls(_id_column(model_input, name, side.names.are_integers), name, "ids"))
        return pd.DataFrame({scoring.output: factors.predict(*id_columns)}, index=model_input.index)


@dataclass(frozen=True, eq=False)
class KeyPredictor:
    """Scores rows of hashed keys with an exported model."""

    scoring: KeyScoring
    scorer: Scorer

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        scoring = self.scoring
        check_columns(model_input, scoring.columns)
        names = list(scoring.columns)
        batch = pa.record_batch([plain_column(model_input, name) for name in names], names)
        scores = self.scorer.score(batch)
        columns: dict[str, Any] = {}
        if scoring.prediction:
            has_threshold = scoring.threshold is not None
            columns[scoring.prediction] = (scores > scoring.threshold).astype(np.float64) if has_threshold else scores
        if scoring.probability:
            columns[scoring.probability] = list(np.column_stack([1.0 - scores, scores]))
        return pd.DataFrame(columns, index=model_input.index)


def _id_column(frame: pd.DataFrame, name: str, are_integers: bool) -> pa.Array:
    ids = plain_column(frame, name)
    if pa.types.is_null(ids.type):
        return ids.cast(pa.int64() if are_integers else pa.string())
    is_expected = pa.types.is_integer(ids.type) if are_integers else are_strings(ids.type)
    if not is_expected:
        expected = "integers" if are_integers else "strings"
        raise InputError(f"column {name!r}: expected ids, {expected}, got {ids.type}")
    return ids


def output_types(scoring: Scoring) -> dict[str, str]:
    """Return the type of each column that ``predict`` returns: "double", "float", "integer" or "vector"."""
    if isinstance(scoring, WordScoring):
        return {scoring.output: "vector"}
    if isinstance(scoring, PairScoring):
        return {scoring.output: "float" if scoring.loader.endswith(":MatrixFactors") else "double"}
    if isinstance(scoring, KeyScoring):
        kinds = {scoring.prediction: "double", scoring.probability: "vector"}
        return {name: kind for name, kind in kinds.items() if name}
    prediction_type = "integer" if isinstance(scoring.head, ClusterHead) else "double"
    if not scoring.outputs:
        raise UsageError("expected a name of at least one column of predictions, but all are empty")
    return {name: prediction_type if kind == "prediction" else "vector" for name, kind in scoring.outputs}
