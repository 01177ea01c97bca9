"""Few dense features: seconds of ``fit`` on many rows like those of HIGGS, and AUC on held-out rows."""

from __future__ import annotations

from functools import partial

from benchmarks import trees_data
from benchmarks.frame import Part, answer
from benchmarks.trees_fit import Settings, compared, fit, take_turns
from benchmarks.trees_part import Asked, spark_and_servers
from benchmarks.trees_peers import peers

SETTINGS = Settings(trees=50, depth=6, bins=256)
GOALS = {"xgboost.spark": 1.0}
HELD_OUT = 200_000


def measure(asked: Asked) -> Part:
    with spark_and_servers(asked, "dense") as spark:
        rows = trees_data.dense(spark, asked.rows)
        found = take_turns(partial(fit, rows, SETTINGS), peers(asked.peers, rows, SETTINGS), asked.rounds)
        test = trees_data.generated(HELD_OUT, seed=0, number=trees_data.PARTITIONS)
        facts = {"rows": f"{len(rows.y):,}", "features": rows.x.shape[1]}
        return Part(compared("dense", found, test, GOALS), facts=facts)


if __name__ == "__main__":
    answer(Asked, measure)
