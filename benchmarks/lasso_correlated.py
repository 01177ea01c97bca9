"""Generated rows whose features come in blocks of correlation .9: one lasso."""

from __future__ import annotations

from benchmarks.frame import Part, answer
from benchmarks.lasso_data import correlated
from benchmarks.lasso_models import compare
from benchmarks.lasso_part import Asked, spark_and_servers


def measure(asked: Asked) -> Part:
    with spark_and_servers(asked, "correlated") as (spark, ps):
        data = correlated(spark, asked.rows, asked.features)
        return compare(asked, ps, data, "correlated")


if __name__ == "__main__":
    answer(Asked, measure)
