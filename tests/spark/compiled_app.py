"""Two Spark applications, one after the other, whose workers call functions that numba compiles.

    python compiled_app.py FOLDER

It prints one line of JSON for each run: what ``test_run_compiled.py`` asserts on. ``beside``, which workers import from
where the driver does, is on the PYTHONPATH; FOLDER has the modules that are shipped, ``single.py`` and ``packed.zip``.
"""

import json
import os
import sys

import numpy as np
from beside import total
from numba import njit
from pyspark.sql import SparkSession

from ps2 import PS2Context


@njit(cache=True)
def here(x):
    return x.sum() + 1


def work(worker, rows):
    import packed.inner
    import single

    list(rows)
    functions = {"beside": total, "single": single.total, "packed": packed.inner.total, "here": here}
    for _ in worker.clocks(2):
        for function in functions.values():
            function(np.ones(3))
    return {
        "worker": os.getpid(),
        "imports": single.imports(),
        "compiled": {name: sum(fn.stats.cache_misses.values()) for name, fn in functions.items()},
        "found": {name: sum(fn.stats.cache_hits.values()) for name, fn in functions.items()},
    }


for master in ("local[1]", "local-cluster[1,1,1024]"):
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    sc = spark.sparkContext
    sc.setLogLevel("OFF")
    sc.addPyFile(f"{sys.argv[1]}/single.py")
    sc.addPyFile(f"{sys.argv[1]}/packed.zip")
    with PS2Context.getOrCreate(spark, servers=1) as ps:
        ps.waitForSlots(1, timeout=60)
        for _ in range(2):
            print(json.dumps(ps.run(sc.parallelize([1], 1), work)[0]))
    spark.stop()
