"""Small calls compared with a client and a server in C, and with ps-lite; part of ``benchmarks.wire``."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ratio import Pair
from benchmarks.raw import Family
from ps2 import DCV

SOURCE = Path(__file__).with_name("pingpong.c")
PS_LITE_SOURCE = Path(__file__).with_name("pslite.cc")
C, PS_LITE = "a client and a server in C", "ps-lite"
# Floats of a vector, and calls in one timing.
SIZES: dict[Family, dict[str, tuple[int, int]]] = {
    "unix": {"8 floats": (8, 500), "1 MB": (250_000, 50)},
    "tcp": {"1 MB": (250_000, 50), "64 MB": (16_000_000, 2)},
}
# Keys of a call, and calls in one timing.
KEYED = {500: 500, 10_000: 100}
TARGETS = {
    ("unix", PS_LITE, "pull, 8 floats"): 0.35,
    ("unix", PS_LITE, "add, 8 floats"): 0.45,
    ("unix", PS_LITE, "pull, 1 MB"): 0.55,
    ("unix", PS_LITE, "add, 1 MB"): 0.6,
    ("tcp", PS_LITE, "pull, 1 MB"): 0.75,
    ("tcp", PS_LITE, "add, 1 MB"): 0.75,
    ("tcp", C, "pull, 64 MB"): 1.1,
}


class PingPong:
    """A client in another process, which makes the requested number of calls."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def make(self, verb: str, floats: int, calls: int) -> None:
        self.begin(verb, floats, calls)
        self.end()

    def begin(self, verb: str, floats: int, calls: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{verb} {floats} {calls}\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Wait until all calls are done."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "done\n":
            raise EOFError("the other client has ended")


@contextmanager
def peers(family: Family, floats: int, count: int = 1) -> Iterator[dict[str, list[PingPong]]]:
    """Compile the programs to compare with, and run the given number of each; return them by name."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        found: dict[str, list[PingPong]] = {}
        for name, command in {
            C: _in_c(Path(folder)),
            PS_LITE: _of_ps_lite(Path(folder)) if count == 1 else None,
        }.items():
            for _ in range(count if command else 0):
                assert command is not None
                process = subprocess.Popen(
                    [command[0], family, str(floats), *command[1:]],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                running.enter_context(process)
                running.callback(process.kill)
                found.setdefault(name, []).append(PingPong(process))
        yield found


def _in_c(folder: Path) -> list[str] | None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        print("  no C compiler (cc, gcc): nothing to compare small calls with", file=sys.stderr)
        return None
    program = str(folder / "pingpong")
    subprocess.run([compiler, "-O3", "-march=native", "-o", program, SOURCE], check=True)
    return [program]


def _of_ps_lite(folder: Path) -> list[str] | None:
    """Compile our program on ps-lite (its sources are in ``PS_LITE``) with libzmq, protoc and g++."""
    sources = os.environ.get("PS_LITE")
    if sources is None or not all(map(shutil.which, ("g++", "protoc"))):
        print(
            "  no ps-lite: PS_LITE names a folder with its sources; libzmq, protoc and g++ go with it", file=sys.stderr
        )
        return None
    program = str(folder / "pslite")
    subprocess.run(
        ["protoc", f"--cpp_out={folder}", f"--proto_path={sources}/src", f"{sources}/src/meta.proto"], check=True
    )
    theirs = [f"{sources}/src/{name}.cc" for name in ("customer", "postoffice", "van")]
    options = ["-O3", "-std=c++17", "-w", f"-I{sources}/include", f"-I{folder}", f"-I{sources}/src"]
    libraries = ["-lzmq", "-lprotobuf", "-lpthread"]
    subprocess.run(
        ["g++", *options, PS_LITE_SOURCE, *theirs, str(folder / "meta.pb.cc"), *libraries, "-o", program], check=True
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        return [program, str(free.getsockname()[1])]


def pairs(family: Family) -> Iterator[Pair]:
    """Dense calls of some sizes, and a gather and a scatter of some keys."""
    sizes = SIZES[family]
    with peers(family, max(floats for floats, _ in sizes.values())) as others:
        for name, (other,) in others.items():
            for size, (floats, calls) in sizes.items():
                vector = DCV.dense(floats, rows=1)
                values, out = np.ones(floats, np.float32), np.empty(floats, np.float32)
                pull, add = partial(vector.pull, out=out), partial(vector.add, values)
                yield _pair((family, name), f"pull, {size}", pull, partial(other.make, "pull", floats), calls)
                yield _pair((family, name), f"add, {size}", add, partial(other.make, "add", floats), calls)
                vector.free()
            if family == "tcp":
                continue
            for count, calls in KEYED.items():
                vector = DCV.dense(10 * count, rows=1)
                keys, values, out = (
                    np.arange(0, 10 * count, 10),
                    np.ones(count, np.float32),
                    np.empty(count, np.float32),
                )
                # The C program has no keys, so it sends as many floats.
                gather, scatter = ("pull", "add") if name == C else ("gather", "scatter")
                pull, add = partial(vector.pull, keys, out=out), partial(vector.add, values, keys)
                what = f"{count:,} known keys"
                yield _pair((family, name), f"pull, {what}", pull, partial(other.make, gather, count), calls)
                yield _pair((family, name), f"add, {what}", add, partial(other.make, scatter, count), calls)
                vector.free()


def at_once(count: int, floats: int, calls: int, ours: Callable[[], object]) -> Iterator[Pair]:
    """Pulls by several concurrent clients of one server; ``ours`` makes each of them pull the given number of times."""
    with peers("unix", floats, count) as others:
        if C not in others:
            return

        def theirs(_: Any) -> None:
            for other in others[C]:
                other.begin("pull", floats, calls)
            for other in others[C]:
                other.end()

        what = f"pull, {floats} floats, {calls} calls of {count} clients at once"
        yield Pair(what, f"{count} clients and servers in C", "ms", None, theirs, lambda _: ours())


def _pair(
    against: tuple[Family, str], what: str, ours: Callable[[], object], theirs: Callable[[int], object], calls: int
) -> Pair:
    """Return a line; each side makes all its calls in one run."""

    def repeat(_: Any) -> None:
        for _ in range(calls):
            ours()

    target = TARGETS.get((*against, what))
    return Pair(f"{what}, {calls} calls", against[1], "ms", target, lambda _: theirs(calls), repeat)
