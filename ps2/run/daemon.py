"""Spark's daemon of Python workers, with the imports that tasks of PS2 need: its workers are forks of it.

Set ``spark.python.daemon.module`` to ``ps2.run.daemon`` before the SparkSession is made. Else each worker imports them
in its first task, for one to two seconds of a core, and so does the one that Spark starts after a task that failed.
"""

from __future__ import annotations

import gc
import sys

import numpy as np
import pyspark.worker  # noqa: F401 - this and what follows are for the workers
from pyspark.daemon import manager

import ps2.data.columns
import ps2.data.rows
import ps2.run.work  # noqa: F401
from ps2.ops.kernels import total

if __name__ == "__main__":
    total(np.ones(1))  # numba gets ready with the first kernel of a process, for a third of a second
    # A worker begins by asking every path it knows for news, and pyspark.zip, read as often as it has packages, takes
    # 0.3 s; what is imported later makes its own entries.
    sys.path_importer_cache.clear()
    # After every task a worker collects garbage, and walks through all modules for it, unless they are frozen.
    gc.collect()
    gc.freeze()
    manager()
