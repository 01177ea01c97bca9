"""The cost of TLS and of token proofs: the same requests to servers with and without them, alternating.

docs/security.md says how to read it. Certificates come from ``trustme``, one of the development tools.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import trustme

from benchmarks import frame
from benchmarks.frame import Benchmark, Pair, Part, option
from ps2.certificates import TlsFiles
from ps2.client.network import FleetNetwork
from ps2.config import WireConfig, new_token, write_token
from ps2.errors import PS2Error
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.protocol.messages import Operation, Request, RequestId
from ps2.rpc.control import ServerControl

LARGE = 16_000_000  # float32 elements: 64 MB
BLOCK = 1 << 20  # of them: 4 MiB, as clients cut calls
MATRIX = 1
# Number of small requests in one timing.
QUICK_CALLS = 50


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(15, "Turns that the medians are of.", least=7)


def tls(args: Args) -> Part:
    """Measure what TLS and token proofs cost over TCP on loopback."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        token, files = folder / "token", _certificates(folder)
        write_token(token, new_token())
        secret = token.read_text().strip()
        proven = stack.enter_context(_served(["--token-file", str(token)], secret, None))
        secured = stack.enter_context(_served(["--token-file", str(token), *files.arguments()], secret, files))
        bare = stack.enter_context(_served(["--insecure"], None, None))
        lines = [pair.measure(args.rounds) for pair in _pairs(bare, proven, secured)]
    return Part(lines, facts={"OpenSSL": ssl.OPENSSL_VERSION})


class Served:
    """A server, and what clients need to connect to it."""

    numbers = itertools.count()

    def __init__(self, address: str, token: str | None, tls: TlsFiles | None) -> None:
        self.address = address
        self._token, self._wire = token, WireConfig(tls=tls, unix_sockets=False)
        self.transport = FleetNetwork(token, self._wire)
        ServerControl(self.transport).create_matrix(
            address, MATRIX, MatrixSpec(LARGE, 1, dtype="float32"), [Partition(0, 0, LARGE)]
        )

    def pull(self, out: np.ndarray) -> None:
        self._send(
            [
                Request((Operation("pull", MATRIX, 0, (0,), {"start": at, "stop": at + len(part)}, into=part),))
                for at, part in _blocks(out)
            ]
        )

    def add(self, values: np.ndarray) -> None:
        self._send(
            [
                Request(
                    (Operation("push_add", MATRIX, 0, (0,), {"start": at}, (part,)),),
                    RequestId("benchmark", next(self.numbers)),
                )
                for at, part in _blocks(values)
            ]
        )

    def small(self) -> None:
        self._send([Request((Operation("gather", MATRIX, 0, (0,), {}, (np.array([5]),)),))])

    def anew(self) -> None:
        """Connect like a new process: a gRPC connection, Hello, a data connection, and one request."""
        before, self.transport = self.transport, FleetNetwork(self._token, self._wire)
        self.small()
        self.transport.close()
        self.transport = before

    def _send(self, requests: Sequence[Request]) -> None:
        for outcome in self.transport.exchange({self.address: requests})[self.address]:
            if isinstance(outcome, PS2Error):
                raise outcome


def _blocks(values: np.ndarray) -> list[tuple[int, np.ndarray]]:
    return [(at, values[at : at + BLOCK]) for at in range(0, LARGE, BLOCK)]


def _pairs(bare: Served, proven: Served, secured: Served) -> Iterator[Pair]:
    values, out = np.ones(LARGE, np.float32), np.ones(LARGE, np.float32)

    def bulk(verb: str, first: Callable[[Any], object], second: Callable[[Any], object]) -> Pair:
        return Pair(f"{verb}, 64 MB, TLS", "plain TCP", "GB/s", 0.5, first, second, amount=lambda _: values.nbytes)

    def calls(what: str, against: str, unit: str, first: Any, second: Any, count: int) -> Pair:
        return Pair(what, against, unit, None, lambda _: first(), lambda _: second(), calls=count)

    yield bulk("pull", lambda _: proven.pull(out), lambda _: secured.pull(out))
    yield bulk("push-add", lambda _: proven.add(values), lambda _: secured.add(values))
    for what, against, first, second in (
        ("TLS", "plain TCP", proven, secured),
        ("the token's proof", "no token", bare, proven),
    ):
        yield calls(f"a small request, {what}", against, "us", first.small, second.small, QUICK_CALLS)
        yield calls(f"a new client's first request, {what}", against, "ms", first.anew, second.anew, 1)


def _certificates(folder: Path) -> TlsFiles:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    files = TlsFiles(*(str(folder / name) for name in ("cert.pem", "key.pem", "ca.pem")))
    issued.cert_chain_pems[0].write_to_path(files.cert)
    write_token(Path(files.key), issued.private_key_pem.bytes().decode())
    authority.cert_pem.write_to_path(files.ca)
    return files


@contextlib.contextmanager
def _served(options: Sequence[str], token: str | None, tls: TlsFiles | None) -> Iterator[Served]:
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "ps2.cli.main", "server", "--listen", "127.0.0.1:0", "--memory-limit", "1g"]
    server = subprocess.Popen(
        [*command, "--announce", str(writing), *options], pass_fds=[writing], stderr=subprocess.DEVNULL
    )
    os.close(writing)
    try:
        with os.fdopen(reading) as messages:
            address = messages.read()
        served = Served(address, token, tls)
        yield served
        served.transport.close()
    finally:
        server.terminate()
        server.wait()


BENCHMARK = Benchmark("tls", Args, {"tls": tls})

if __name__ == "__main__":
    BENCHMARK.main()
