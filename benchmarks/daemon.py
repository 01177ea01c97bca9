"""Spark's daemon of Python workers, with all that the tasks of ``benchmarks.failures`` load there beforehand.

Spark ends the worker of a failed task and forks another. From Spark's own daemon, that one begins with more than a
second of imports, before a task that takes some 50 ms.
"""

from __future__ import annotations

import gc
import sys

import pyspark.worker  # noqa: F401 - for the workers
from pyspark.daemon import manager

from benchmarks.mishaps import rehearse

if __name__ == "__main__":
    rehearse()
    # A worker begins by asking every path it knows for news, and pyspark.zip, read as often as it has packages, takes
    # 0.3 s; what is imported later makes its own entries.
    sys.path_importer_cache.clear()
    # After every task a worker collects garbage, and walks through all modules for it, unless they are frozen.
    gc.collect()
    gc.freeze()
    manager()
