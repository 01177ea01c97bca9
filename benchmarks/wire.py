"""The data plane compared with the machine without PS2: raw sockets, a bare gRPC call, the kernel in process.

Each part runs in its own process, and those of TCP keep PS2 from using Unix sockets. docs/performance/wire.md says how
to read it.
"""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from benchmarks import frame
from benchmarks.frame import Benchmark, Pair, Part, option
from benchmarks.raw import Family, RawSocket, process, raw_grpc, raw_socket, receive
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
SEED = 2019
FEATURES = 60_000_000
KEYS = 1_000_000
# In the sparse vector.
HELD = 4_000_000
UNIX_SOCKETS = "PS2_UNIX_SOCKETS"


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(15, "Turns that the medians are of.", least=7)


def tcp(args: Args) -> Part:
    """Compare dense and sparse calls over TCP with a raw socket, and plain gRPC with it."""
    os.environ[UNIX_SOCKETS] = "0"
    return _measured(args, 1, _over_tcp)


def unix(args: Args) -> Part:
    """Compare dense calls over Unix sockets with a raw socket, and two clients with one."""
    return _measured(args, 1, _over_unix)


def calls(args: Args) -> Part:
    """Compare operations on the servers with a bare gRPC round trip."""
    return _measured(args, 2, _calls)


def adam_step(args: Args) -> Part:
    """Compare a step of Adam on one server with the same kernel in this process."""
    return _measured(args, 1, _adam)


def _measured(args: Args, servers: int, pairs: Callable[[PS2Context], Iterator[Pair]]) -> Part:
    """Measure pairs; the resources of a pair exist while it is measured."""
    with PS2Context.getOrCreate(servers=servers) as ps:
        return Part([pair.measure(args.rounds) for pair in pairs(ps)])


def _over_tcp(ps: PS2Context) -> Iterator[Pair]:
    yield from _dense("tcp", "64 MB", LARGE, target=0.65, calls=1)
    yield from _dense("tcp", "1 MB", SMALL, target=0.5, calls=QUICK_CALLS)
    yield from _sparse()


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


class Keys(NamedTuple):
    """One call's keys, as many values, and an array to receive as many."""

    keys: np.ndarray
    values: np.ndarray
    out: np.ndarray


class KeySource:
    """Draws random keys."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(SEED)
        self._values = self._random.random(KEYS, np.float32)
        self._out = np.ones(KEYS, np.float32)

    def sorted(self) -> Keys:
        """Draw a million features and remove duplicates, which leaves somewhat fewer."""
        return self._with_values(_unique(self._random.integers(0, FEATURES, KEYS)))

    def unsorted(self) -> Keys:
        return self._with_values(self._random.permutation(self.sorted().keys))

    def among(self, held: np.ndarray) -> Keys:
        """Draw a million of the keys that the vector holds; sorted."""
        return self._with_values(np.sort(self._random.choice(held, KEYS, replace=False)))

    def held(self) -> np.ndarray:
        """Draw the keys that the sparse vector holds, somewhat fewer than ``HELD``; sorted."""
        return _unique(self._random.integers(0, FEATURES, HELD))

    def _with_values(self, keys: np.ndarray) -> Keys:
        return Keys(keys, self._values[: keys.size], self._out[: keys.size])


def _count(keys: Keys) -> int:
    """Return the number of keys."""
    return keys.keys.size


def _unique(keys: np.ndarray) -> np.ndarray:
    """Return the same as ``np.unique``, which takes ten times as long here."""
    keys.sort()
    return keys[np.append(True, keys[1:] != keys[:-1])]


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
        return Pair(f"{verb}, 1M {what}", against, "M keys/s", target, baseline, ours, draw, _count)

    yield pair("pull", lambda a: raw.move((a.keys,), a.out), lambda a: _pull(vector, a.out, a.keys))
    yield pair("add", lambda a: raw.move((a.keys, a.values)), lambda a: vector.add(a.values, a.keys))


def _known_pairs(raw: RawSocket, vector: DCV, same: Keys, target: float) -> Iterator[Pair]:
    def pair(verb: str, baseline: Callable[[Keys], object], ours: Callable[[Keys], object]) -> Pair:
        against = "raw TCP, 4 bytes a key"
        return Pair(f"{verb}, 1M known keys", against, "M keys/s", target, baseline, ours, lambda: same, _count)

    yield pair("pull", lambda a: raw.move((), a.out), lambda a: _pull(vector, a.out, a.keys))
    yield pair("add", lambda a: raw.move((a.values,)), lambda a: vector.add(a.values, a.keys))


def _memory_pairs(raw: RawSocket, draw: Callable[[], Keys]) -> Iterator[Pair]:
    """The limit of the memory: the server's own loops on a row of this process, on one core and without a network."""
    row = np.ones(FEATURES, np.float32)

    def pair(verb: str, ours: Callable[[Keys], object], baseline: Callable[[Keys], object]) -> Pair:
        what = f"the {verb} alone, 1M fresh keys, sorted, in process"
        return Pair(what, "raw TCP, 4 bytes a key", "M keys/s", None, baseline, ours, draw, _count)

    yield pair("gather", lambda a: gather(row, a.keys, a.out), lambda a: raw.move((), a.out))
    yield pair("scatter-add", lambda a: scatter_add(row, a.keys, a.values), lambda a: raw.move((a.values,)))


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

        yield pair("norm2, short vector, 2 servers", 1 / 1.5, lambda _: vector.norm2())
        yield pair("1,000 row dots, K=128, 2 servers", 1 / 4, lambda pairs: matrix.dot(*next(pairs)), rows)
        yield pair("mapPartitions, empty function, 2 servers", 1 / 2, lambda _: vector.zip().mapPartitions(nothing))


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
        1 / 1.15,
        lambda step: adam(*rows, step=step, **ADAM),
        lambda step: zipped.apply("adam", step=step, **ADAM),
        lambda: next(steps),
        calls=ADAM_CALLS,
    )
    _check("Adam", _pull(weight, np.ones(ADAM_COLUMNS, np.float32)), rows[0])


def _pull(vector: DCV, out: np.ndarray, keys: np.ndarray | None = None) -> Any:
    """Pull into an existing array, like the raw socket."""
    return vector.pull(keys, out=out)


def _check(what: str, got: np.ndarray, expected: np.ndarray) -> None:
    """Raise if the measured calls returned wrong values."""
    if not np.array_equal(got, expected):
        raise AssertionError(f"{what}: PS2 returned other values than expected")


PARTS = {"tcp": tcp, "unix": unix, "calls": calls, "adam": adam_step}
BENCHMARK = Benchmark("wire", Args, PARTS, packages=("numba", "grpcio"))

if __name__ == "__main__":
    BENCHMARK.main()
