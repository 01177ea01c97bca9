"""What it costs pushes that nothing is lost: applied ids, copies on another server, checkpoints by interval."""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.pushes import COLUMNS, KINDS, MATRIX, Kind, Pusher
from benchmarks.ratio import WARM_UPS, Found, Pair
from benchmarks.raw import process, receive
from ps2 import DCV, PS2Context
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.protocol.messages import Operation, Request, RequestId
from ps2.server.applied import AppliedIds
from ps2.server.engine import Engine
from ps2.storage import folders

SERVERS = 2
EVERY_S = 30.0
# Each without and with checkpoints.
LONG_RUNS = 2
# Of a checkpoint that a long run waits for.
LATEST_S = 120.0


class NoIds(AppliedIds):
    """Remembers nothing: a push that comes again is applied again."""

    def __contains__(self, id: RequestId) -> bool:
        return False

    def covers(self, id: RequestId, position: int) -> bool:
        return False

    def add(self, id: RequestId) -> None:
        pass


def of_ids(repeats: int) -> list[Found]:
    """Compare engines in this process, of which one notes the ids that it has applied."""
    pusher, engines = Pusher(), (_engine(), _engine())
    (plain,), (noting,) = (engine.shards().values() for engine in engines)
    plain.applied = NoIds()
    ignored, noted = map(_executing, engines)

    def pair(kind: Kind) -> Pair:
        what, count = f"{kind.what}, in process, ids noted", kind.items if kind.keys else 4 * kind.items
        prepare = partial(pusher.operations, kind)
        return Pair(what, "ids ignored", kind.unit, None, ignored, noted, prepare, lambda _: count, kind.calls)

    found = [pair(kind).measure(repeats) for kind in KINDS]
    if not np.array_equal(plain.array, noting.array):
        raise AssertionError("the engine that notes ids applied other pushes than the one that ignores them")
    return found


def _engine() -> Engine:
    engine = Engine(1 << 30, allow_udf=False)
    engine.create_matrix(MATRIX, MatrixSpec(COLUMNS, 1), [Partition(0, 0, COLUMNS)])
    return engine


def _executing(engine: Engine) -> Callable[[list[Operation]], object]:
    """Return what executes operations as parts of a session's next mutation."""
    numbers = itertools.count()

    def execute(operations: list[Operation]) -> None:
        number = next(numbers)
        for part, operation in enumerate(operations):
            engine.execute(Request((operation,), RequestId("benchmark", number, number, part, len(operations))))

    return execute


def of_replicas(repeats: int) -> list[Found]:
    """Compare two fleets, each with a client process of its own; they take turns."""
    with _client(0) as plain, _client(1) as copying:
        return [_compare(kind, plain, copying, repeats) for kind in KINDS]


def _compare(kind: Kind, plain: Connection, copying: Connection, repeats: int) -> Found:
    rates = [(kind.rate(_push(plain, kind)), kind.rate(_push(copying, kind))) for _ in range(WARM_UPS + repeats)]
    baseline, ours = zip(*rates[WARM_UPS:], strict=True)
    return Found(f"{kind.what}, replicas=1", "replicas=0", kind.unit, None, baseline, ours)


def of_checkpoints(seconds: float, megabytes: int, folder: Path | None) -> Found:
    """Compare fleets that do all kinds of push in turn for long, with checkpoints and without.

    Args:
        seconds: that a run takes at least; one with checkpoints ends when one of them is complete.
        megabytes: that each server holds, in MB.
        folder: where checkpoints go for the time being; default: that for temporary files.
    """
    baseline, ours = [], []
    for _ in range(LONG_RUNS):
        baseline.append(_run_long(seconds, megabytes, None)[0])
        path = tempfile.mkdtemp(prefix="ps2-bench-", dir=folder)
        try:
            rate, made = _run_long(seconds, megabytes, path)
        finally:
            shutil.rmtree(path)
        ours.append(rate)
        print(f"  {made} checkpoints", file=sys.stderr, flush=True)
    what = f"all three in turn, {megabytes} MB a server, checkpoint every {EVERY_S:.0f} s"
    return Found(what, "no checkpoints", "GB/s", None, baseline, ours)


def _run_long(seconds: float, megabytes: int, folder: str | None) -> tuple[float, int]:
    """Push for some time; return GB/s, and how many checkpoints were made."""
    with _client(0, folder, megabytes) as client:
        pushed, pushed_s, made = 0, 0.0, 0
        began_s = time.monotonic()
        while True:
            for kind in KINDS:
                pushed_s += _push(client, kind)
                pushed += kind.nbytes
            before, made = made, _newest(folder)
            elapsed_s = time.monotonic() - began_s
            if elapsed_s >= seconds and (folder is None or made > before):
                return pushed / pushed_s / 1e9, made
            if elapsed_s > seconds + LATEST_S:
                raise AssertionError(f"no checkpoint in {folder} was complete within {LATEST_S:.0f} s")


def _newest(folder: str | None) -> int:
    """Return the number of the newest complete checkpoint."""
    if folder is None:
        return 0
    return max((found.number for found in folders.find(folder) if found.complete), default=0)


@contextmanager
def _client(replicas: int, folder: str | None = None, megabytes: int = 0) -> Iterator[Connection]:
    """Yield a connection to a process that drives a fleet of its own, and makes the pushes that it is told to."""
    with process(_drive, replicas, folder, megabytes) as client:
        receive(client)
        try:
            yield client
        finally:
            client.send(None)
            receive(client)


def _push(client: Connection, kind: Kind) -> float:
    client.send(kind)
    return receive(client)


def _drive(connection: Connection, replicas: int, folder: str | None, megabytes: int) -> None:
    every_s = EVERY_S if folder is not None else None
    with PS2Context.getOrCreate(servers=SERVERS, replicas=replicas, checkpointDir=folder, checkpointEveryS=every_s):
        pusher = Pusher()
        vectors = {kind: DCV.dense(COLUMNS if kind.keys else kind.items, 1) for kind in KINDS}
        held = DCV.dense(SERVERS * megabytes * 10**6 // 4, 1).fill(1) if megabytes else None
        connection.send("ready")
        while (kind := connection.recv()) is not None:
            connection.send(pusher.push(vectors[kind], kind))
        del held
    connection.send("stopped")
