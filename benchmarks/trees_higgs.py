"""LightGBM's own example, without its sampling: AUC on its test set."""

from __future__ import annotations

from functools import partial

from benchmarks import trees_data
from benchmarks.frame import Part, answer
from benchmarks.trees_fit import OURS, Settings, compared, fit, take_turns
from benchmarks.trees_part import Asked, spark_and_servers
from benchmarks.trees_peers import peers

SETTINGS = Settings(100, 30, 255, leaves=63, reg_lambda=0.0, min_rows=50, min_hessian=5.0)
GOALS = {OURS: 0.838}


def measure(asked: Asked) -> Part:
    with spark_and_servers(asked, "higgs") as spark:
        rows, *test = trees_data.higgs(spark, asked.data_dir)
        found = take_turns(partial(fit, rows, SETTINGS), peers(asked.peers, rows, SETTINGS), asked.rounds)
        facts = {"rows": f"{len(rows.y):,}", "features": rows.x.shape[1], "LightGBM's AUC elsewhere": 0.83836}
        return Part(compared("higgs7k", found, (test[0], test[1]), GOALS), facts=facts)


if __name__ == "__main__":
    answer(Asked, measure)
