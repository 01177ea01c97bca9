"""The DataFrame that an estimator or a model is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame

from ps2.errors import InputError
from ps2.run.spark.backend_lookup import backend_of, is_connect
from ps2.run.spark.errors import plain_job_errors


def check_frame(dataset: Any) -> None:
    """Raise InputError unless ``dataset`` is a DataFrame of Spark, not one of pandas or polars."""
    if isinstance(dataset, DataFrame) or is_connect(dataset):
        return
    kind = type(dataset)
    home = "" if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]}."
    mend = "; spark.createDataFrame(...) makes one of it" if home == "pandas." else ""
    raise InputError(f"dataset: expected a DataFrame of Spark, got {home}{kind.__qualname__}{mend}")


@contextmanager
def spark_calls(dataset: Any) -> Iterator[None]:
    """Raise plain errors of PS2 for what Spark's jobs fail of: StoppedError if the DataFrame's application is over."""
    if not (isinstance(dataset, DataFrame) or is_connect(dataset)):
        yield
        return
    with backend_of(dataset).calling(), plain_job_errors():
        yield
