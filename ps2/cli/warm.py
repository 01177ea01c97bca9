"""Compile the kernels that numba's cache does not contain, those of all families (``python -m ps2.cli.warm``).

A kernel that is not compiled takes seconds at its first use. Each module is compiled by one process, because its
kernels share functions.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import ps2
from ps2.cgroups import usable_cores

ROOT = Path(ps2.__file__).parent
FAST_PATH = "ps2.server.fast_path_compiled"
# The modules that take the longest time, which are compiled first.
SLOWEST = ("ps2.algorithms.trees.warm", "ps2.ops.warm", "ps2.algorithms.embeddings.warm", FAST_PATH)


def warmers() -> list[str]:
    """Return the modules that compile kernels, slow modules first: after ``SLOWEST``, larger files first."""
    sizes = {
        ".".join(file.relative_to(ROOT.parent).with_suffix("").parts): file.stat().st_size
        for folder in ("algorithms", "data", "torch")
        for file in (ROOT / folder).rglob("warm.py")
    }
    others = sorted(set(sizes) - set(SLOWEST), key=lambda module: (-sizes[module], module))
    return [*SLOWEST, *others]


def compile_all(modules: Sequence[str], processes: int) -> None:
    """Compile the kernels of modules in several processes; raise the first error."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(_warm, modules, chunksize=1)


def _warm(module: str) -> None:
    warmer = import_module(module)
    warmer.load() if module == FAST_PATH else warmer.warm()


if __name__ == "__main__":
    compile_all(warmers(), usable_cores())
