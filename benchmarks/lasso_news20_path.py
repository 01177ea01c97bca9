"""The documents of news20-bigram: a path of lassos."""

from __future__ import annotations

from benchmarks.frame import Part, answer
from benchmarks.lasso_data import news20
from benchmarks.lasso_part import Asked, spark_and_servers
from benchmarks.lasso_path import compare


def measure(asked: Asked) -> Part:
    with spark_and_servers(asked, "news20_path") as (spark, ps):
        return compare(asked, ps, news20(spark, asked.data_dir), "news20-bigram")


if __name__ == "__main__":
    answer(Asked, measure)
