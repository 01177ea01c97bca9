"""Compute numbers from topics for the documents of a DataFrame, in Spark's tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy.sparse as sp
from pyspark.sql import DataFrame

from ps2.algorithms.frame.tables import check_columns, column, known_dim, names_of
from ps2.algorithms.topics.model import LDATopics
from ps2.algorithms.training.faults import ColumnNames, Form, error_of
from ps2.algorithms.training.reading import read
from ps2.errors import InputError
from ps2.ops.kernels import Float64s
from ps2.run.spark.backend_lookup import with_python
from ps2.run.spark.frames import map_in_arrow

Numbers = Mapping[str, npt.ArrayLike]
Compute = Callable[[LDATopics, sp.csr_array], Numbers]


def over_documents(
    frame: DataFrame, columns: ColumnNames, vocabulary: int, share: Callable[[], LDATopics], compute: Compute
) -> list[dict[str, Float64s]]:
    """Compute numbers of all documents, in batches of some thousands.

    Args:
        vocabulary: the required number of words.
        share: gives a task the topics.
        compute: returns 1-D arrays by name, one number per document.

    Returns:
        The arrays of each batch of documents, in the documents' order.

    Raises:
        InputError: there is no such column, or its known size differs. Faults within rows raise an error of Spark.
    """
    check_columns(frame, columns)
    dim = known_dim(frame, columns.features)
    if dim not in (None, vocabulary):
        raise InputError(f"column {columns.shown('features')}: expected {vocabulary} words as in training, got {dim}")

    def computed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        topics, form = share(), Form(vocabulary, counts=True)
        for batch in batches:
            reading = read([batch], columns, form)
            if error := error_of(reading.faults[None], columns, form):
                raise error
            rows = reading.training
            indices = rows.keys.astype(np.int32)[rows.x.indices]
            x = sp.csr_array((rows.x.data, indices, rows.x.indptr), shape=(len(rows), vocabulary))
            arrays = {name: np.atleast_1d(numbers).tolist() for name, numbers in compute(topics, x).items()}
            yield pa.RecordBatch.from_pydict({"names": [list(arrays)], "numbers": [list(arrays.values())]})

    chosen = frame.select(*map(column, names_of(columns)))
    rows = map_in_arrow(with_python(chosen), computed, "names array<string>, numbers array<array<double>>").collect()
    return [dict(zip(row["names"], map(np.array, row["numbers"]), strict=True)) for row in rows]
