"""A look at a table of documents before training."""

from __future__ import annotations

import pytest
from pyspark.ml.linalg import Vectors

from ps2.algorithms.estimators.dealing import deal
from ps2.algorithms.estimators.documents import survey_documents
from ps2.algorithms.estimators.tables import check_columns
from ps2.algorithms.training.faults import ColumnNames
from ps2.errors import InputError

COLUMNS = ColumnNames("counts", label=None)
DOCUMENTS = [(Vectors.sparse(3, {0: 2.0, 2: 1.0}),), (Vectors.dense([0, 4, 0]),), (Vectors.sparse(3, {}),)]


def test_survey_when_rows_are_documents_then_counts_tokens(spark):
    frame = spark.createDataFrame(DOCUMENTS, ["counts"])
    check_columns(frame, COLUMNS)
    found = survey_documents(frame, COLUMNS)
    assert (found.rows, found.tokens, found.dim) == (3, 7, 3)
    table = deal(frame, COLUMNS, found, 2)
    assert (table.frame.columns, table.workers) == (["counts"], 2)


def test_survey_when_documents_are_arrays_then_counts_tokens_too(spark):
    found = survey_documents(spark.createDataFrame([([1, 0],), ([0, 5],)], "counts array<int>"), COLUMNS)
    assert (found.tokens, found.dim) == (6, 2)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([([0, 0],), ([0, 0],)], "counts: expected counts of words, but all of 2 documents are empty"),
        ([([],), ([1],)], "'counts': expected features, got a vector of size 0 in the first row"),
        ([(None,), ([1],)], "'counts': expected vectors or arrays, got null in 1 rows"),
        ([], "expected rows to train on, got an empty DataFrame"),
    ],
)
def test_survey_when_no_word_to_train_on_then_error_says_so(spark, rows, message):
    with pytest.raises(InputError, match=message):
        survey_documents(spark.createDataFrame(rows, "counts array<int>"), COLUMNS)
