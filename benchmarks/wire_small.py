"""Small calls beside a client and a server in C; part of ``benchmarks.wire``."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ratio import Pair
from benchmarks.raw import Family
from ps2 import DCV

SOURCE = Path(__file__).with_name("pingpong.c")
# Floats of a vector, and calls in one timing.
SIZES = {"8 floats": (8, 500), "1 MB": (250_000, 50)}
KEYS = 500


class PingPong:
    """The C client; it makes as many calls as it is told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def make(self, verb: str, floats: int, calls: int) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{verb} {floats} {calls}\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "done\n":
            raise EOFError("the C client has ended")


@contextmanager
def ping_pong(family: Family, floats: int) -> Iterator[PingPong | None]:
    """Compile it and run it; yield None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        print("  no C compiler (cc, gcc): nothing to compare small calls with", file=sys.stderr)
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "pingpong"
        subprocess.run([compiler, "-O3", "-march=native", "-o", program, SOURCE], check=True)
        command = [program, family, str(floats)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield PingPong(process)
            finally:
                process.kill()


def pairs(family: Family) -> Iterator[Pair]:
    """Dense calls of both sizes, and a gather and a scatter of few keys beside calls of as many floats."""
    with ping_pong(family, max(floats for floats, _ in SIZES.values())) as c:
        if c is None:
            return
        for size, (floats, calls) in SIZES.items():
            vector = DCV.dense(floats, rows=1)
            values, out = np.ones(floats, np.float32), np.empty(floats, np.float32)
            yield _pair(c, f"pull, {size}", "pull", floats, calls, partial(vector.pull, out=out))
            yield _pair(c, f"add, {size}", "add", floats, calls, partial(vector.add, values))
            vector.free()
        vector = DCV.dense(10 * KEYS, rows=1)
        keys, values, out = np.arange(0, 10 * KEYS, 10), np.ones(KEYS, np.float32), np.empty(KEYS, np.float32)
        calls = SIZES["8 floats"][1]
        yield _pair(c, f"pull, {KEYS} known keys", "pull", KEYS, calls, partial(vector.pull, keys, out=out))
        yield _pair(c, f"add, {KEYS} known keys", "add", KEYS, calls, partial(vector.add, values, keys))
        vector.free()


def _pair(c: PingPong, what: str, verb: str, floats: int, calls: int, ours: Callable[[], object]) -> Pair:
    """Return a line; each side makes its calls in one go."""

    def repeat(_: Any) -> None:
        for _ in range(calls):
            ours()

    return Pair(
        f"{what}, {calls} calls",
        "a client and a server in C",
        "ms",
        None,
        lambda _: c.make(verb, floats, calls),
        repeat,
    )
