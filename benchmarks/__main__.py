"""Runs one part of a benchmark for its frame: ``python -m benchmarks BENCHMARK FUNCTION ARGS``."""

import sys

from benchmarks.frame import answer

if __name__ == "__main__":
    answer(*sys.argv[1:])
