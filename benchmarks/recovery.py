"""Recovery of lost servers, and what copies cost pushes (paper, section 5.3).

docs/performance/failures.md says how to read it.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median
from typing import Literal

import numpy as np

from benchmarks import frame
from benchmarks.frame import Benchmark, Line, Part, in_unit, option, tell
from benchmarks.raw import process, receive
from ps2 import DCV, PS2Context
from ps2.coordinator.launchers.local import LocalLauncher

SERVERS, ROWS = 2, 4
# Server 0 holds the first columns of every matrix.
VICTIM = 0
PULLED = np.arange(1000)
POLL_S = 0.002
REPLACED_TIMEOUT_S = 120.0
SIGNALS = {"killed": signal.SIGKILL, "hangs": signal.SIGSTOP}
Source = Literal["checkpoint", "replica"]
SOURCES: tuple[Source, ...] = ("checkpoint", "replica")
COLUMNS, SEED = 16_000_000, 2019


@dataclass(frozen=True)
class Args(frame.Args):
    megabytes: int = option(1000, "MB of a server's shards.", least=1)
    pushes: int = option(15, "Turns that the medians of pushes are of.", least=7)
    folder: str = option("", "Folder for checkpoints; default: that of temporary files.")


def times(args: Args) -> Part:
    """Lose one server of a new fleet in each way, repeatedly; medians of the seconds until it is back."""
    logging.getLogger("ps2").setLevel(logging.ERROR)  # each lost server is a warning
    rows, written = [], []
    for source in SOURCES:
        for how in SIGNALS:
            backs = []
            for _ in range(args.rounds):
                back, checkpoint = _lose(source, how, args)
                backs.append(back)
                written += [] if checkpoint is None else [checkpoint]
                tell(f"{source}, {how}: {back}")
            medians = {phase: median(back[phase] for back in backs) for phase in backs[0]}
            total = medians.pop("answered after")
            shares = {f"{phase} s": f"{value:.2f} ({value / total:.0%})" for phase, value in medians.items()}
            rows.append({"source": source, "server": how, "answered after s": f"{total:.2f}", **shares})
    checkpoint = {name: median(one[name] for one in written) for name in written[0]}
    return Part(facts={f"checkpoint {name}": value for name, value in checkpoint.items()}, table=rows)


def _lose(source: Source, how: str, args: Args) -> tuple[dict[str, float], dict[str, float] | None]:
    path = tempfile.mkdtemp(prefix="ps2-bench-", dir=args.folder or None)
    replicas, checkpoints = (1, None) if source == "replica" else (0, path)
    try:
        with PS2Context.getOrCreate(servers=SERVERS, replicas=replicas, checkpointDir=checkpoints) as ps:
            vectors = list(_fill(args.megabytes))
            written = None
            if source == "checkpoint":
                created = ps.checkpoint()
                assert created is not None
                speed = created.nbytes / created.seconds / 1e9
                written = {"MB": created.nbytes / 1e6, "s": created.seconds, "GB/s": speed, "held s": created.pauseS}
            return _until_back(ps, source, how, vectors[-1]), written
    finally:
        shutil.rmtree(path)


def _fill(megabytes: int) -> Iterator[DCV]:
    """Make a matrix of that size on each server; row r is filled with r + 1."""
    weight = DCV.dense(SERVERS * megabytes * 10**6 // (ROWS * 4), ROWS)
    for row in range(ROWS):
        yield (weight if row == 0 else weight.derive()).fill(row + 1)


def _until_back(ps: PS2Context, source: Source, how: str, vector: DCV) -> dict[str, float]:
    launcher = ps._coordinator.fleet.launcher  # there is no public way to a server's process
    assert isinstance(launcher, LocalLauncher)
    pids = launcher.pids
    vector.pull(PULLED)
    before = pids()[VICTIM]
    with ThreadPoolExecutor(1) as pool:
        began_s = time.monotonic()
        os.kill(before, SIGNALS[how])
        pulled = pool.submit(lambda: (vector.pull(PULLED), time.monotonic()))
        while pids()[VICTIM] == before and time.monotonic() < began_s + REPLACED_TIMEOUT_S:
            time.sleep(POLL_S)
        detect_s = time.monotonic() - began_s
        values, answered_s = pulled.result()
    recovery = ps.recoveries[-1]
    if set(values) != {ROWS} or recovery.source != source or recovery.servers != (VICTIM,):
        raise AssertionError(f"server {VICTIM}, {how}, came back in another way than it was to: {recovery}")
    total_s = answered_s - began_s
    rest_s = total_s - detect_s - recovery.startS - recovery.loadS
    return {
        "answered after": total_s,
        "detection": detect_s,
        "start-up": recovery.startS,
        "loading": recovery.loadS,
        "rest": rest_s,
    }


@dataclass(frozen=True)
class Kind:
    """A kind of push, to a float32 vector: overwriting its first columns, or adding at random ones.

    Attributes:
        unit: of its rate.
        items: columns of one push.
        keys: whether they are random.
        calls: pushes in one timing.
    """

    what: str
    unit: str
    items: int
    keys: bool
    calls: int

    @property
    def nbytes(self) -> int:
        return (12 if self.keys else 4) * self.items * self.calls

    def rate(self, taken_s: float) -> float:
        """Return the rate of one timing."""
        return in_unit(self.unit, self.items * self.calls if self.keys else self.nbytes, taken_s)


KINDS = (
    Kind("dense push, 64 MB", "GB/s", COLUMNS, False, 1),
    Kind("dense push, 1 MB", "GB/s", 250_000, False, 20),
    Kind("add of 100k fresh keys", "M keys/s", 100_000, True, 20),
)


def replicas(args: Args) -> Part:
    """Compare two fleets, each with a client process of its own; they take turns."""
    lines = []
    with _client(0) as plain, _client(1) as copying:
        for kind in KINDS:
            turns = [[kind.rate(_push(client, kind)) for client in (plain, copying)] for _ in range(3 + args.pushes)]
            lines.append(Line(f"{kind.what}, replicas=1", "replicas=0", kind.unit, None, *zip(*turns[3:], strict=True)))
    return Part(lines)


@contextmanager
def _client(replicas: int) -> Iterator[Connection]:
    """Yield a connection to a process that drives a fleet of its own, and makes the pushes that it is told to."""
    with process(_drive, replicas) as client:
        receive(client)
        try:
            yield client
        finally:
            client.send(None)
            receive(client)


def _push(client: Connection, kind: Kind) -> float:
    client.send(kind)
    return receive(client)


def _drive(connection: Connection, replicas: int) -> None:
    with PS2Context.getOrCreate(servers=SERVERS, replicas=replicas):
        random = np.random.default_rng(SEED)
        values = random.random(COLUMNS, np.float32)
        vectors = {kind: DCV.dense(COLUMNS if kind.keys else kind.items, 1) for kind in KINDS}
        connection.send("ready")
        while (kind := connection.recv()) is not None:
            connection.send(_seconds_of_pushes(vectors[kind], kind, values, random))
    connection.send("stopped")


def _seconds_of_pushes(vector: DCV, kind: Kind, values: np.ndarray, random: np.random.Generator) -> float:
    """Return the seconds of pushes of one kind; keys are such as no server has seen."""
    values = values[: kind.items]
    keys = [
        np.sort(random.choice(COLUMNS, kind.items, replace=False, shuffle=False))
        for _ in range(kind.calls if kind.keys else 0)
    ]
    began_s = time.perf_counter()
    for some in keys:
        vector.add(values, some)
    for _ in range(0 if kind.keys else kind.calls):
        vector.push(values)
    return time.perf_counter() - began_s


BENCHMARK = Benchmark("recovery", Args, {"times": times, "replicas": replicas})

if __name__ == "__main__":
    BENCHMARK.main()
