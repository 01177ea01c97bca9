"""The time that a fleet takes to recover a lost server, and to write a checkpoint."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from ps2 import DCV, PS2Context
from ps2.cli.output import print_table
from ps2.coordinator.launchers.local import LocalLauncher
from ps2.text_tables import Column

SERVERS = 2
ROWS = 4
# Server 0 holds the first columns of every matrix.
VICTIM = 0
PULLED = np.arange(1000)
POLL_S = 0.002
REPLACED_TIMEOUT_S = 120.0
SIGNALS = {"killed": signal.SIGKILL, "hangs": signal.SIGSTOP}

Source = Literal["checkpoint", "replica"]
SOURCES: tuple[Source, ...] = ("checkpoint", "replica")


@dataclass(frozen=True)
class Back:
    """One recovery of a server.

    Attributes:
        source: where its shards come from.
        how: how it was lost.
        total_s: from the signal until the first pull of its columns was answered.
        detect_s: part of that: until a new process was started in its place.
        start_s: until the new process had registered.
        load_s: until it had its shards.
        rest_s: until the client knew of it and got its answer.
        nbytes: size of the loaded shards.
    """

    source: Source
    how: str
    total_s: float
    detect_s: float
    start_s: float
    load_s: float
    rest_s: float
    nbytes: int


@dataclass(frozen=True)
class Written:
    """One checkpoint: its bytes, its seconds, and the longest time for which a server paused requests."""

    nbytes: int
    seconds: float
    pause_s: float


@dataclass(frozen=True)
class Times:
    """All measurements, in order."""

    backs: tuple[Back, ...]
    checkpoints: tuple[Written, ...]

    def lines(self) -> list[dict[str, Any]]:
        """Return the medians by source and by way of losing a server."""
        parts = ("total_s", "detect_s", "start_s", "load_s", "rest_s", "nbytes")
        return [
            {
                "source": source,
                "how": how,
                "times": len(mine),
                **{part: median(getattr(back, part) for back in mine) for part in parts},
            }
            for source in SOURCES
            for how in SIGNALS
            if (mine := [back for back in self.backs if (back.source, back.how) == (source, how)])
        ]

    def checkpoint(self) -> dict[str, Any]:
        """Return the medians of the checkpoints."""
        return {
            "times": len(self.checkpoints),
            "nbytes": self.checkpoints[0].nbytes,
            "seconds": median(one.seconds for one in self.checkpoints),
            "gb_per_s": median(one.nbytes / one.seconds / 1e9 for one in self.checkpoints),
            "pause_s": median(one.pause_s for one in self.checkpoints),
        }


def measure(megabytes: int, rounds: int, folder: Path | None) -> Times:
    """Lose one server of a new fleet in each way, repeatedly.

    Args:
        megabytes: of a server's shards, in MB.
        folder: for temporary checkpoints; default: the system's folder for temporary files.
    """
    backs, written = [], []
    for round_ in range(rounds):
        for source in SOURCES:
            for how in SIGNALS:
                print(f"  round {round_ + 1}: {source}, {how}", file=sys.stderr, flush=True)
                back, checkpoint = _lose(source, how, megabytes, folder)
                backs.append(back)
                written += [checkpoint] if checkpoint is not None else []
    return Times(tuple(backs), tuple(written))


def _lose(source: Source, how: str, megabytes: int, folder: Path | None) -> tuple[Back, Written | None]:
    path = tempfile.mkdtemp(prefix="ps2-bench-", dir=folder)
    replicas, checkpoints = (1, None) if source == "replica" else (0, path)
    try:
        with PS2Context.getOrCreate(servers=SERVERS, replicas=replicas, checkpointDir=checkpoints) as ps:
            vectors = list(_fill(megabytes))
            written = None
            if source == "checkpoint":
                made = ps.checkpoint()
                written = Written(made.nbytes, made.seconds, made.pauseS)
            back = _until_back(ps, source, how, vectors[-1])
    finally:
        shutil.rmtree(path)
    return back, written


def _fill(megabytes: int) -> Iterator[DCV]:
    """Make a matrix of that size on each server; row r is filled with r + 1."""
    weight = DCV.dense(SERVERS * megabytes * 10**6 // (ROWS * 4), ROWS)
    for row in range(ROWS):
        yield (weight if row == 0 else weight.derive()).fill(row + 1)


def _until_back(ps: PS2Context, source: Source, how: str, vector: DCV) -> Back:
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
    return Back(source, how, total_s, detect_s, recovery.startS, recovery.loadS, rest_s, recovery.nbytes)


def print_times(lines: Sequence[dict[str, Any]], checkpoint: dict[str, Any]) -> None:
    """Print the medians; for the parts also their share of the total."""
    parts = ("detect", "start", "load", "rest")

    def share(line: dict[str, Any], part: str) -> str:
        return f"{line[f'{part}_s']:.2f} ({line[f'{part}_s'] / line['total_s']:.0%})"

    rows = [
        (
            line["source"],
            line["how"],
            f"{line['nbytes'] / 1e6:.0f}",
            f"{line['total_s']:.2f}",
            *(share(line, part) for part in parts),
        )
        for line in lines
    ]
    columns = [Column("source"), Column("server"), Column("MB", right=True), Column("answered after s", right=True)]
    print_table([*columns, *(Column(f"{part} s", right=True) for part in parts)], rows)
    print(
        f"\ncheckpoint of {checkpoint['nbytes'] / 1e6:.0f} MB: {checkpoint['seconds']:.2f} s, "
        f"{checkpoint['gb_per_s']:.2f} GB/s, requests held for {checkpoint['pause_s']:.3f} s"
    )
