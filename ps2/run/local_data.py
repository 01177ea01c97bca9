"""Data of the driver's own memory as the rows of a run: lists, tuples, ranges and pandas DataFrames.

The driver serializes one part for each worker. A worker reads its part alone.
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import cloudpickle

from ps2.errors import InputError, UsageError
from ps2.run.driver_data import LocalData

ACCEPTED = "a DataFrame or an RDD of Spark, a list, a tuple, a range, or a pandas DataFrame"


def local_data(data: Any) -> LocalData | None:
    """Return the rows of data in the driver's memory; None if the data are of another kind."""
    pandas = sys.modules.get("pandas")
    if isinstance(data, (list, tuple, range)):
        kind: type[LocalData] = _Elements
    elif pandas is not None and isinstance(data, pandas.DataFrame):
        from ps2.run.pandas_rows import PandasRows

        kind = PandasRows
    else:
        return None
    if not len(data):
        raise InputError(f"run: the data, a {type(data).__name__}, are empty: each worker needs a row")
    return kind(data)


class _Elements(LocalData):
    """The elements of a sequence, pickled."""

    def __init__(self, elements: Sequence[Any]) -> None:
        self._elements = elements

    def __len__(self) -> int:
        return len(self._elements)

    def serialized(self, begin: int, end: int) -> bytes:
        try:
            pickled: bytes = cloudpickle.dumps(self._elements[begin:end])
            return pickled
        except Exception as error:  # an element may be any object, which may raise anything
            raise self._pickle_error(begin, end) or UsageError(f"run: the data cannot be pickled: {error}") from error

    @staticmethod
    def read(part: bytes) -> Iterable[Any]:
        elements: Sequence[Any] = cloudpickle.loads(part)
        return elements

    def _pickle_error(self, begin: int, end: int) -> UsageError | None:
        """Return an error that names the first element that cannot be pickled."""
        for index in range(begin, end):
            element = self._elements[index]
            try:
                cloudpickle.dumps(element)
            except Exception as error:
                return UsageError(
                    f"run: element {index} of the data, {reprlib.repr(element)}, cannot be pickled: {error}"
                )
        return None
