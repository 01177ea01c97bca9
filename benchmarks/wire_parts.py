"""The parts of ``benchmarks.wire``. Each runs in its own process, whose environment chooses PS2's transport.

A part is a generator of pairs; the resources of a pair exist while it is measured.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks import wire_blocks, wire_small
from benchmarks.keys import FEATURES, KEYS, Keys, KeySource, count
from benchmarks.ratio import Pair
from benchmarks.raw import Family, RawSocket, chunks_of, process, raw_grpc, raw_socket, receive
from ps2 import DCV, PS2Context
from ps2.client import sessions
from ps2.client.fleet import Access, FleetRef
from ps2.coordinator.application import driver_secret
from ps2.ops.kernels import gather, scatter_add
from ps2.ops.optimizers import adam

LARGE = 16_000_000  # float32 elements: 64 MB
SMALL = 250_000  # 1 MB
ADAM_COLUMNS = 20_000_000
ADAM = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
# Size of the embeddings whose rows are multiplied.
DIMENSION = 128
ROWS = 10_000
DOTS = 1000
# Columns of a vector so small that operations cost only their transport.
SHORT = 1000
# Calls in one timing of calls that take about a millisecond or less.
QUICK_CALLS = 50
# All calls apply the same step.
ADAM_CALLS = 4
# Pulls by both clients together, or by one.
CLIENT_PULLS = 8
# Concurrent clients of one server, and calls of each.
MANY_CLIENTS, MANY_CALLS = 4, 500
SEED = 2019

Part = Callable[[PS2Context], Iterator[Pair]]


def run(part: str, repeats: int) -> dict[str, Any]:
    """Measure one of ``PARTS``; return its lines, and the kind of socket that PS2's data used."""
    servers, pairs = PARTS[part]
    with PS2Context.getOrCreate(servers=servers) as ps:
        kind = _socket_kind()
        lines = []
        for pair in pairs(ps):
            found = pair.measure(repeats)
            print(f"  {found.what}: {found.ratio:.2f}", file=sys.stderr, flush=True)
            lines.append(found.as_json())
    return {"part": part, "sockets": kind, "lines": lines}


def _over_tcp(ps: PS2Context) -> Iterator[Pair]:
    yield from _dense("tcp", "64 MB", LARGE, target=0.65, calls=1)
    yield from _dense("tcp", "1 MB", SMALL, target=0.5, calls=QUICK_CALLS)
    yield from _sparse()
    yield from _plain_grpc()


def _over_unix(ps: PS2Context) -> Iterator[Pair]:
    yield from _dense("unix", "64 MB", LARGE, target=0.5, calls=1)
    yield from _clients(ps)


def _dense(family: Family, size: str, items: int, target: float, calls: int) -> Iterator[Pair]:
    over = {"tcp": "TCP", "unix": "Unix socket"}[family]
    values = np.random.default_rng(SEED).random(items, np.float32)
    out = np.ones(items, np.float32)
    vector = DCV.dense(items, rows=1).push(values)
    _check(f"pull of {size}", _pull(vector, out), values)
    with raw_socket(family, items) as raw:

        def pair(verb: str, baseline: Callable[[Any], object], ours: Callable[[Any], object]) -> Pair:
            what = f"dense {verb}, {size}, {over}"
            amount = values.nbytes
            return Pair(what, f"raw {over}", "GB/s", target, baseline, ours, amount=lambda _: amount, calls=calls)

        yield pair("pull", lambda _: raw.pull(out), lambda _: _pull(vector, out))
        yield pair("push-add", lambda _: raw.add(values), lambda _: vector.add(values))
    vector.free()


def _sparse() -> Iterator[Pair]:
    source = KeySource()
    vector = DCV.dense(FEATURES, rows=1)
    first = source.sorted()
    vector.add(first.values, first.keys)
    _check("pull of keys", _pull(vector, first.out, first.keys), first.values)
    vector.fill(1)  # every page is there from now on
    same = source.sorted()
    held = source.held()
    hashed = DCV.sparse(FEATURES, rows=1).add(np.ones(held.size, np.float32), held)
    with raw_socket("tcp", KEYS, longest_bytes=12 * KEYS) as raw:
        yield from _keys_pairs("fresh keys, sorted", raw, vector, source.sorted, 0.5)
        yield from _known_pairs(raw, vector, same, 0.4)
        yield from _memory_pairs(raw, source.sorted)
        yield from _keys_pairs("fresh keys, unsorted", raw, vector, source.unsorted)
        yield from _keys_pairs("of 4M keys held, sorted, sparse DCV", raw, hashed, lambda: source.among(held))
    hashed.free()
    vector.free()


def _keys_pairs(
    what: str, raw: RawSocket, vector: DCV, draw: Callable[[], Keys], target: float | None = None
) -> Iterator[Pair]:
    def pair(verb: str, baseline: Callable[[Keys], object], ours: Callable[[Keys], object]) -> Pair:
        against = "raw TCP, 12 bytes a key"
        return Pair(f"{verb}, 1M {what}", against, "M keys/s", target, baseline, ours, draw, count)

    yield pair("pull", lambda a: raw.move((a.keys,), a.out), lambda a: _pull(vector, a.out, a.keys))
    yield pair("add", lambda a: raw.move((a.keys, a.values)), lambda a: vector.add(a.values, a.keys))


def _known_pairs(raw: RawSocket, vector: DCV, same: Keys, target: float) -> Iterator[Pair]:
    def pair(verb: str, baseline: Callable[[Keys], object], ours: Callable[[Keys], object]) -> Pair:
        against = "raw TCP, 4 bytes a key"
        return Pair(f"{verb}, 1M known keys", against, "M keys/s", target, baseline, ours, lambda: same, count)

    yield pair("pull", lambda a: raw.move((), a.out), lambda a: _pull(vector, a.out, a.keys))
    yield pair("add", lambda a: raw.move((a.values,)), lambda a: vector.add(a.values, a.keys))


def _memory_pairs(raw: RawSocket, draw: Callable[[], Keys]) -> Iterator[Pair]:
    """The limit of the memory: the server's own loops on a row of this process, on one core and without a network."""
    row = np.ones(FEATURES, np.float32)

    def pair(verb: str, ours: Callable[[Keys], object], baseline: Callable[[Keys], object]) -> Pair:
        what = f"the {verb} alone, 1M fresh keys, sorted, in process"
        return Pair(what, "raw TCP, 4 bytes a key", "M keys/s", None, baseline, ours, draw, count)

    yield pair("gather", lambda a: gather(row, a.keys, a.out), lambda a: raw.move((), a.out))
    yield pair("scatter-add", lambda a: scatter_add(row, a.keys, a.values), lambda a: raw.move((a.values,)))


def _plain_grpc() -> Iterator[Pair]:
    values = np.random.default_rng(SEED).random(LARGE, np.float32)
    out = np.ones(LARGE, np.float32)
    chunks = chunks_of(values)
    with raw_socket("tcp", LARGE) as raw, raw_grpc(LARGE) as plain:

        def pair(verb: str, baseline: Callable[[Any], object], ours: Callable[[Any], object]) -> Pair:
            what = f"plain gRPC without PS2: {verb}, 64 MB"
            return Pair(what, "raw TCP", "GB/s", None, baseline, ours, amount=lambda _: values.nbytes)

        yield pair("pull", lambda _: raw.pull(out), lambda _: plain.pull(out))
        yield pair("push-add", lambda _: raw.add(values), lambda _: plain.add(chunks))


def _clients(ps: PS2Context) -> Iterator[Pair]:
    vector = DCV.dense(LARGE, rows=1).fill(1)
    with ExitStack() as stack:
        clients = [stack.enter_context(_client(ps, vector)) for _ in range(2)]

        def pull(count: int) -> None:
            for client in clients[:count]:
                client.send(CLIENT_PULLS // count)
            for client in clients[:count]:
                receive(client)

        yield Pair(
            "pull, 64 MB, 2 clients at once, in total",
            "1 client",
            "GB/s",
            0.9,
            lambda _: pull(1),
            lambda _: pull(2),
            amount=lambda _: 4 * LARGE * CLIENT_PULLS,
        )
    vector.free()


def _small(ps: PS2Context) -> Iterator[Pair]:
    yield from wire_small.pairs("unix")
    vector = DCV.dense(8, rows=1)
    with ExitStack() as stack:
        clients = [stack.enter_context(_client(ps, vector)) for _ in range(MANY_CLIENTS)]

        def pull() -> None:
            for client in clients:
                client.send(MANY_CALLS)
            for client in clients:
                receive(client)

        yield from wire_small.at_once(MANY_CLIENTS, vector.dim, MANY_CALLS, pull)
    vector.free()


@contextmanager
def _client(ps: PS2Context, vector: DCV) -> Iterator[Connection]:
    """Yield a connection to another client process, which makes the requested pulls and reports their end."""
    access = Access(driver_secret(), "")
    with process(_serve_client, access, ps._coordinator.session.fleet, pickle.dumps(vector)) as client:
        receive(client)
        yield client


def _serve_client(connection: Connection, access: Access, fleet: FleetRef, pickled: bytes) -> None:
    # Like the first use of a handle in a Spark task, which gets its access through the environment.
    sessions._open(fleet, access)  # there is no public way outside of tasks
    vector: DCV = pickle.loads(pickled)
    out = np.ones(vector.dim, np.float32)
    _pull(vector, out)
    connection.send("ready")
    while True:
        for _ in range(connection.recv()):
            _pull(vector, out)
        connection.send("done")


def _calls(ps: PS2Context) -> Iterator[Pair]:
    random = np.random.default_rng(SEED)
    vector = DCV.dense(SHORT, rows=1).fill(1)
    matrix = DCV.dense(DIMENSION, rows=ROWS).matrix()
    matrix.push(np.arange(ROWS), random.random((ROWS, DIMENSION), np.float32))

    def rows() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return iter([(random.integers(0, ROWS, DOTS), random.integers(0, ROWS, DOTS)) for _ in range(QUICK_CALLS)])

    def nothing(part: np.ndarray) -> None:
        return None

    with raw_grpc() as plain:

        def pair(
            what: str, target: float, ours: Callable[[Any], object], prepare: Callable[[], Any] = lambda: None
        ) -> Pair:
            def trip(_: Any) -> None:
                plain.round_trip()

            return Pair(what, "bare gRPC round trip", "us", target, trip, ours, prepare, calls=QUICK_CALLS)

        yield pair("norm2, short vector, 2 servers", 1.5, lambda _: vector.norm2())
        yield pair("1,000 row dots, K=128, 2 servers", 4.0, lambda pairs: matrix.dot(*next(pairs)), rows)
        yield pair("mapPartitions, empty function, 2 servers", 2.0, lambda _: vector.zip().mapPartitions(nothing))


def _adam(ps: PS2Context) -> Iterator[Pair]:
    """One server, so that both sides have one thread; local rows have the layout of a shard."""
    rows = np.random.default_rng(SEED).random((4, ADAM_COLUMNS), np.float32)
    weight = DCV.dense(ADAM_COLUMNS, rows=len(rows))
    vectors = [weight, *(weight.derive() for _ in rows[1:])]
    for vector, row in zip(vectors, rows, strict=True):
        vector.push(row)
    zipped = vectors[0].zip(*vectors[1:])
    steps = itertools.count(1)
    yield Pair(
        "fused Adam, 4 x 20M float32, 1 server",
        "the same kernel in process",
        "ms",
        1.15,
        lambda step: adam(*rows, step=step, **ADAM),
        lambda step: zipped.apply("adam", step=step, **ADAM),
        lambda: next(steps),
        calls=ADAM_CALLS,
    )
    _check("Adam", _pull(weight, np.ones(ADAM_COLUMNS, np.float32)), rows[0])


# Number of servers, and the generators of pairs.
PARTS: dict[str, tuple[int, Part]] = {
    "tcp": (1, _over_tcp),
    "unix": (1, _over_unix),
    "blocks": (1, lambda ps: wire_blocks.pairs()),
    "small": (1, _small),
    "small-tcp": (1, lambda ps: wire_small.pairs("tcp")),
    "calls": (2, _calls),
    "adam": (1, _adam),
}


def _pull(vector: DCV, out: np.ndarray, keys: np.ndarray | None = None) -> Any:
    """Pull into an existing array, like the raw socket."""
    return vector.pull(keys, out=out)


def _check(what: str, got: np.ndarray, expected: np.ndarray) -> None:
    """Raise if the measured calls returned wrong values."""
    if not np.array_equal(got, expected):
        raise AssertionError(f"{what}: PS2 returned other values than expected")


def _socket_kind() -> str:
    """Return the transport of a large pull: Unix sockets if the pull opens new ones in this process."""
    before = _unix_sockets()
    DCV.dense(LARGE, rows=1).pull()
    return "Unix" if _unix_sockets() > before else "TCP"


def _unix_sockets() -> int:
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(fd))) as found:
                count += found.family == socket.AF_UNIX
        except OSError:  # no socket, or listdir's own
            continue
    return count


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]))))
