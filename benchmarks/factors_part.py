"""What the parts of ``benchmarks.factors`` are asked for, and how they factorize."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.local_spark import local_spark
from ps2 import PS2Context
from ps2.algorithms.factors.dealing import Deal, deal_ratings
from ps2.algorithms.factors.options import FactorOptions, FittedFactors
from ps2.algorithms.factors.ratings import RatingColumns, survey_ratings
from ps2.algorithms.factors.sgd import SgdSettings
from ps2.algorithms.factors.trainer import train

WORKERS = SERVERS = 2
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        rounds: turns that the medians are of.
        data_dir: folder of the data set; empty: no part needs it.
        ratings: of the part generated.
        memory: of Spark's JVM, as Spark writes it.
    """

    rounds: int
    data_dir: str
    ratings: int
    memory: str


@dataclass(frozen=True, eq=False)
class Ratings:
    """Ratings as arrays, and which are held out."""

    users: Array
    items: Array
    values: Array
    held: Array

    def frame(self, spark: Any) -> Any:
        """Return the ratings that are not held out as a cached DataFrame."""
        import pandas as pd

        used = ~self.held
        table = pd.DataFrame({"user": self.users[used], "item": self.items[used], "rating": self.values[used]})
        frame = spark.createDataFrame(table).repartition(WORKERS).cache()
        frame.count()
        return frame


@contextmanager
def spark_and_servers(asked: Asked, part: str) -> Iterator[tuple[Any, PS2Context]]:
    """Start Spark with a task slot a worker, and servers."""
    settings = {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": str(WORKERS),
        "spark.python.daemon.module": "ps2.run.daemon",
    }
    with (
        local_spark(f"factors_{part}", WORKERS, asked.memory, settings) as spark,
        PS2Context.getOrCreate(spark, servers=SERVERS) as ps,
    ):
        yield spark, ps


def fit(ps: Any, frame: Any, options: FactorOptions) -> tuple[FittedFactors, float]:
    """Factorize; return the result, and the seconds that all took, from cached rows to vectors in the driver."""
    began_s = time.monotonic()
    survey = survey_ratings(frame, RatingColumns(), options)
    deal = Deal.of(survey, WORKERS, 1, 4 * SgdSettings(options, 1.0).width)
    found = train(ps, deal_ratings(frame, survey, deal, options), survey, options)
    return found, time.monotonic() - began_s


def rmse_of(found: FittedFactors, ratings: Ratings) -> float:
    """Return the RMSE of the held-out ratings of known users and items."""
    held = ratings.held
    users, items = found.users.find(pa.array(ratings.users[held])), found.items.find(pa.array(ratings.items[held]))
    known = (users >= 0) & (items >= 0)
    users, items = users[known], items[known]
    predicted = found.mean + np.einsum("nk,nk->n", found.user_factors[users], found.item_factors[items])
    if found.user_bias is not None and found.item_bias is not None:
        predicted = predicted + found.user_bias[users] + found.item_bias[items]
    return float(np.sqrt(np.mean((predicted - ratings.values[held][known]) ** 2)))
