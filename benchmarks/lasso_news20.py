"""news20-bigram: far more features than rows: one lasso."""

from __future__ import annotations

from benchmarks.frame import Part, answer
from benchmarks.lasso_data import news20
from benchmarks.lasso_models import compare
from benchmarks.lasso_part import Asked, spark_and_servers


def measure(asked: Asked) -> Part:
    with spark_and_servers(asked, "news20") as (spark, ps):
        data = news20(spark, asked.data_dir)
        return compare(asked, ps, data, "news20-bigram")


if __name__ == "__main__":
    answer(Asked, measure)
