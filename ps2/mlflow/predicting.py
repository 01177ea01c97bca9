"""The pyfunc flavour: scores pandas DataFrames without Spark and servers. MLflow calls ``_load_pyfunc``.

A folder of a model holds ``scoring.json``, which describes ``transform``, and ``model`` or ``export``, the files for
the Spark-free model or ``ps2.serving.Scorer``.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy.sparse as sp

from ps2.algorithms.frame.given_rows import finite_rows, given_rows
from ps2.algorithms.frame.heads import ClusterHead
from ps2.algorithms.frame.predictions import predicted
from ps2.algorithms.frame.scoring import (
    FeatureScoring,
    KeyScoring,
    PairScoring,
    Scoring,
    WordScoring,
    from_json,
    to_json,
)
from ps2.data.columns import read_features, read_numbers
from ps2.data.ids import are_strings
from ps2.errors import CheckpointCorruptError, InputError, LimitError, UsageError
from ps2.mlflow.columns import check_columns, no_nulls, plain_column, vector_column
from ps2.server.memory import available_bytes

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
        """Return the columns that ``transform`` adds, for each row of a pandas DataFrame."""


def write_scoring(folder: Path, scoring: Scoring) -> None:
    """Write the file that ``_load_pyfunc`` reads beside the model's own files."""
    (folder / SCORING).write_text(json.dumps(to_json(scoring)))


def _load_pyfunc(path: str) -> Predictor:
    """Load a model that ``save_model`` or ``log_model`` wrote; raise LimitError if it is larger than the memory."""
    folder = Path(path)
    try:
        scoring = from_json(json.loads((folder / SCORING).read_text()))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointCorruptError(f"{folder / SCORING}: it does not say how rows are scored: {error!r}") from error
    if isinstance(scoring, KeyScoring):
        from ps2.serving.scorer import Scorer

        return KeyPredictor(scoring, Scorer(str(folder / EXPORT)))
    needed, available = (
        sum(file.stat().st_size for file in (folder / MODEL).rglob("*") if file.is_file()),
        available_bytes(),
    )
    if needed > available:
        raise LimitError(
            f"{folder / MODEL}: the model takes {needed:,} bytes of memory, and this process may use {available:,}"
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


class FeaturePredictor:
    """Scores vectors of features: linear models, factorization machines, trees, clusters, topics, metrics and codes."""

    def __init__(self, scoring: FeatureScoring, fitted: Any) -> None:
        self._scoring = scoring
        self._fitted = fitted

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return the columns that ``transform`` adds.

        Args:
            model_input: a pandas DataFrame with the columns of features; or, if the features are one column, rows as an
                array or scipy CSR, shape (n, features).
            params: not used.

        Raises:
            InputError, ShapeError, DTypeError: the input lacks a column, or a value is wrong; the message names it.
        """
        scoring = self._scoring
        is_matrix = isinstance(model_input, np.ndarray) or sp.issparse(model_input)
        if is_matrix and isinstance(scoring.features, str) and scoring.margin is None:
            rows = given_rows if scoring.missing else finite_rows
            x = rows(scoring.features, model_input, scoring.dim).astype(np.float64, copy=False)
            return self._outputs(x if scoring.missing else sp.csr_array(x), 0.0, None)
        check_columns(model_input, scoring.inputs)
        starts: Any = 0.0
        if scoring.margin is not None:
            batch = pa.record_batch([plain_column(model_input, scoring.margin)], [scoring.margin])
            starts = read_numbers(batch, scoring.margin, 0)[:, None]
        return self._outputs(self._rows(model_input), starts, model_input.index)

    def _rows(self, frame: pd.DataFrame) -> sp.csr_array:
        scoring, names = self._scoring, self._scoring.features
        if isinstance(names, str):
            batch = pa.record_batch([vector_column(frame, names)], [names])
        else:
            batch = pa.record_batch([plain_column(frame, name) for name in names], list(names))
        features = read_features(batch, names, FLOAT64, 0, scoring.dim, scoring.missing)
        indptr = np.concatenate([[0], np.cumsum(features.lengths)])
        return sp.csr_array((features.values, features.columns, indptr), shape=(len(frame), scoring.dim))

    def _outputs(self, x: Any, starts: Any, index: Any) -> pd.DataFrame:
        scoring = self._scoring
        kinds = {kind for _, kind in scoring.outputs}
        predictions = predicted(self._fitted, scoring.head, x, starts, kinds & {"leaf", "contrib"})
        if isinstance(scoring.head, ClusterHead):
            predictions["prediction"] = predictions["prediction"].astype(np.int32)
        columns = {name: _cells(predictions[kind]) for name, kind in scoring.outputs}
        return pd.DataFrame(columns, index=index)


class WordPredictor:
    """Means of the vectors of words."""

    def __init__(self, scoring: WordScoring, embedding: Embedding) -> None:
        self._scoring = scoring
        self._embedding = embedding

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return the mean vector of each list of words; InputError names a column that is missing or wrong."""
        name = self._scoring.column
        check_columns(model_input, [name])
        words = no_nulls(plain_column(model_input, name, pa.list_(pa.string())), name, "a list of strings")
        return pd.DataFrame({self._scoring.output: list(self._embedding.means(words))}, index=model_input.index)


class PairPredictor:
    """Scores of pairs of vertices: NaN if one has no vector."""

    def __init__(self, scoring: PairScoring, embedding: Embedding) -> None:
        self._scoring = scoring
        self._embedding = embedding

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return the score of each pair; InputError names a column that is missing or wrong."""
        scoring, names = self._scoring, self._embedding.names
        check_columns(model_input, (scoring.first, scoring.second))
        ends = [_id_column(model_input, name, names.are_integers) for name in (scoring.first, scoring.second)]
        filler = 0 if names.are_integers else ""
        first, second = (names.positions(ids.fill_null(filler)) for ids in ends)
        is_known = (first >= 0) & (second >= 0)
        for ids in ends:
            is_known &= ids.is_valid().to_numpy(zero_copy_only=False)
        scores = np.full(len(is_known), np.nan)
        scores[is_known] = self._embedding.expected(first[is_known], second[is_known], scoring.directed)
        return pd.DataFrame({scoring.output: scores}, index=model_input.index)


class RatingPredictor:
    """Ratings of pairs of users and items: NaN if one is unknown."""

    def __init__(self, scoring: PairScoring, factors: MatrixFactors) -> None:
        self._scoring = scoring
        self._factors = factors

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return the rating of each pair, float32; InputError names a column that is missing or wrong."""
        scoring, factors = self._scoring, self._factors
        check_columns(model_input, (scoring.first, scoring.second))
        ends = []
        for name, side in ((scoring.first, factors.user), (scoring.second, factors.item)):
            ends.append(no_nulls(_id_column(model_input, name, side.names.are_integers), name, "ids"))
        return pd.DataFrame({scoring.output: factors.predict(*ends)}, index=model_input.index)


class KeyPredictor:
    """Scores rows of hashed keys with an export."""

    def __init__(self, scoring: KeyScoring, scorer: Scorer) -> None:
        self._scoring = scoring
        self._scorer = scorer

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return predictions and probabilities; InputError names a column that is missing or wrong."""
        scoring = self._scoring
        check_columns(model_input, scoring.columns)
        names = list(scoring.columns)
        batch = pa.record_batch([plain_column(model_input, name) for name in names], names)
        scores = self._scorer.score(batch)
        columns: dict[str, Any] = {}
        if scoring.prediction:
            is_above = scoring.threshold is not None
            columns[scoring.prediction] = (scores > scoring.threshold).astype(np.float64) if is_above else scores
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


def _cells(values: Any) -> Any:
    return values if values.ndim == 1 else list(values)


def output_types(scoring: Scoring) -> dict[str, str]:
    """Return the kind of each column that ``predict`` returns: "double", "float", "integer" or "vector"."""
    if isinstance(scoring, WordScoring):
        return {scoring.output: "vector"}
    if isinstance(scoring, PairScoring):
        return {scoring.output: "float" if scoring.loader.endswith(":MatrixFactors") else "double"}
    if isinstance(scoring, KeyScoring):
        kinds = {scoring.prediction: "double", scoring.probability: "vector"}
        return {name: kind for name, kind in kinds.items() if name}
    number = "integer" if isinstance(scoring.head, ClusterHead) else "double"
    if not scoring.outputs:
        raise UsageError("expected a model with columns of predictions, and all of their names are empty")
    return {name: number if kind == "prediction" else "vector" for name, kind in scoring.outputs}
