"""The daemon from which Spark forks its Python workers, with the imports that PS2's tasks need.

Set ``spark.python.daemon.module`` to ``ps2.run.daemon`` before the SparkSession is made. Otherwise each new worker
process imports them, which takes one to two seconds of a core.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

# The archive, relative to the folder that contains the package pyspark.
ARCHIVE = Path("pyspark", "python", "lib", "pyspark.zip")


def prefer_installed(paths: list[str]) -> None:
    """Move the folder of an installed pyspark before Spark's archives of pyspark, which Spark puts first.

    Each process compiles the modules that it imports from an archive, which takes a second of a core.
    """
    for folder in [folder for folder in paths if str(Path(folder, ARCHIVE)) in paths]:
        home = str(Path(folder, "pyspark")) + os.sep
        archives = [path for path in paths if path.startswith(home)]
        paths[:] = [path for path in paths if path not in archives] + archives


def serve() -> None:
    """Import what tasks need, and fork workers."""
    import numpy as np
    import pyspark.worker  # noqa: F401 - the workers inherit these imports
    from pyspark.daemon import manager

    import ps2.data.columns
    import ps2.data.rows
    import ps2.run.task  # noqa: F401
    from ps2.ops.kernels import total

    total(np.ones(1))  # the first call of a numba kernel in a process takes a third of a second
    # A new worker invalidates all cached importers, and would read an archive again for each package: 0.3 s.
    sys.path_importer_cache.clear()
    # After every task a worker collects garbage. The collector skips frozen objects.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    prefer_installed(sys.path)
    serve()
