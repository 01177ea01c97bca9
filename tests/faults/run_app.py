"""A driver in the middle of a run of workers that stay: to be killed, interrupted, or to stop by itself.

    python run_app.py FOLDER [stop | spark]

Workers leave files with their pids as names in the folder. With "stop" it stops its context after some clocks, with
"spark" its SparkContext. It prints what ``ps.run`` raised, and which of its threads are left after ``ps.stop()``.
"""

import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
from faults import processes
from pyspark.sql import SparkSession

from ps2 import DCV, PS2Context

DIM, CLOCKS = 1000, 1_000_000
PATIENCE_S = 5.0


def ours():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ps2")]


def main(folder, how):
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    ps = PS2Context.getOrCreate(spark, servers=2)
    total = DCV.dense(DIM)

    def work(worker, rows):
        Path(folder, f"{os.getpid()}").touch()
        for _ in worker.clocks(CLOCKS):
            total.add(np.ones(DIM))
            time.sleep(0.01)

    stops = {"stop": ps.stop, "spark": spark.stop}

    def on_clock(clock):
        if clock == 5:
            print("running", *processes.servers_of(ps), flush=True)
            if how in stops:
                threading.Thread(target=stops[how], name="stopper").start()

    try:
        ps.run(spark.sparkContext.parallelize(range(2), 2), work, workers=2, onClock=on_clock)
    except BaseException as error:
        print("raised", type(error).__name__, flush=True)
    ps.stop()
    while any(thread.name == "stopper" for thread in threading.enumerate()):
        time.sleep(0.01)
    deadline_s = time.monotonic() + PATIENCE_S
    while (left := ours()) and time.monotonic() < deadline_s:  # gRPC's wake up to end
        time.sleep(0.01)
    print("left", *left, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
