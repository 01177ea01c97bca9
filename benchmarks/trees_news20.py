"""Many sparse features: seconds of ``fit`` on news20-bigram, and AUC on its test set."""

from __future__ import annotations

from functools import partial

from benchmarks import trees_data
from benchmarks.frame import Part, answer
from benchmarks.trees_fit import OURS, Settings, compared, fit, take_turns
from benchmarks.trees_part import Asked, spark_and_servers
from benchmarks.trees_peers import peers

SETTINGS = Settings(trees=10, depth=7, bins=100)
GOALS = {"xgboost": 3.3, "xgboost.spark": 1.3, "lightgbm": 1.3, OURS: 0.888}


def measure(asked: Asked) -> Part:
    with spark_and_servers(asked, "news20") as spark:
        rows, *test = trees_data.news20(spark, asked.data_dir)
        found = take_turns(partial(fit, rows, SETTINGS), peers(asked.peers, rows, SETTINGS), asked.rounds)
        facts = {"rows": f"{len(rows.y):,}", "features": f"{rows.x.shape[1]:,}", "entries": f"{rows.x.nnz:,}"}
        return Part(compared("news20-bigram", found, (test[0], test[1]), GOALS), facts=facts)


if __name__ == "__main__":
    answer(Asked, measure)
