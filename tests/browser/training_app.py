"""A driver with a fleet: it trains, loses a server, and stops as its input says. Arguments: a token file, and ports."""

from __future__ import annotations

import os
import signal
import sys
import threading

import numpy as np
from pyspark.sql import SparkSession

from ps2 import DCV, PS2Conf, PS2Context

DIM, ROWS = 50_000, 2_000


def run(ps, spark, clocks):
    weight = DCV.dense(DIM, 2, name="weight")
    gradient = weight.derive()

    def work(worker, rows):
        keys = np.arange(worker.rank, DIM, 8)
        for t in worker.clocks(clocks):
            gradient.add(np.tanh(weight.pull(keys)) + 0.01, keys)
            threading.Event().wait(0.05 if worker.rank else 0.15)
            worker.log(loss=1 / (1 + t))

    def update(t):
        weight.zip(gradient).apply("sgd", lr=0.1)
        gradient.zero()

    ps.run(spark.sparkContext.parallelize(range(ROWS), 2), work, workers=2, onClock=update)


def fit(spark):
    from pyspark.ml.linalg import Vectors

    from ps2.algorithms import LogisticRegression

    rng = np.random.default_rng(1)
    x = rng.normal(size=(ROWS, 20))
    y = (x[:, 0] + 0.3 * rng.normal(size=ROWS) > 0).astype(float)
    rows = [(float(label), Vectors.dense(row)) for label, row in zip(y, x, strict=True)]
    LogisticRegression(maxIter=12, regParam=0.01).fit(spark.createDataFrame(rows, ["label", "features"]))


def main():
    file, ports = sys.argv[1:]
    spark = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    conf = PS2Conf(dashboardTokenFile=file, dashboardListen=f"127.0.0.1:{ports}")
    ps = PS2Context.getOrCreate(spark, servers=2, replicas=1, conf=conf)
    print("link", ps.dashboardUrl, flush=True)
    for line in sys.stdin:
        order, *arguments = line.split()
        if order == "run":
            run(ps, spark, int(arguments[0]))
        elif order == "fit":
            fit(spark)
        elif order == "kill":
            os.kill(ps._coordinator.fleet.control.status(ps.servers[1]).pid, signal.SIGKILL)
        print("done", order, flush=True)


main()
