"""What moving data costs in memory: on the client little more than the answer, on the server a block a connection."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest

from ps2 import DCV, PS2Context
from ps2.client import plans
from ps2.client.network import FleetNetwork
from ps2.client.requests import cut, group
from ps2.client.sessions import session_of
from ps2.config import WireConfig
from ps2.errors import PS2Error
from ps2.ops.warm import warm
from ps2.protocol.binary import request_parts
from ps2.protocol.framing import message_views
from ps2.rpc.control import ServerControl
from ps2.server.fast_path_compiled import load
from ps2.transport.handshake import handshake
from ps2.transport.sockets import connect, send_all

MIB = 1 << 20
# 256 MiB of float32.
LARGE = 64 * MIB
OVERHEAD_BYTES = 150 * MIB
STREAM_BYTES = 64 * MIB

PULL = """
import sys
import numpy as np
from ps2 import DCV, PS2Context

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))

if __name__ == "__main__":
    columns, rows = int(sys.argv[1]), int(sys.argv[2])
    with PS2Context.getOrCreate(servers=2):
        u = DCV.dense(columns, rows).fill(1)
        m = u.matrix() if rows > 1 else None
        u.pull(np.arange(10))  # connections, kernels
        before = peak()
        got = u.pull() if m is None else m.pull(np.arange(rows))
        print(peak() - before, got.nbytes)
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("columns", "rows"), [(LARGE, 1), (LARGE // 64, 64)], ids=["a vector", "rows"])
def test_pull_when_large_then_client_peak_rises_little(tmp_path, leaves_nothing, columns, rows):
    script = tmp_path / "pull.py"
    script.write_text(PULL)
    command = [sys.executable, str(script), str(columns), str(rows)]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    risen, size = map(int, finished.stdout.split())
    assert size == 4 * LARGE
    assert risen <= 1.3 * size


@pytest.fixture
def one(leaves_nothing):
    """A fleet of one server, and what that server has taken of its own: not what libraries share with others.

    All kernels are compiled before: the compiler's memory would count as the server's.
    """
    warm()
    load()
    with PS2Context.getOrCreate(servers=1) as context:
        process = psutil.Process(context._coordinator.fleet.launcher.pids()[0])

        def taken():
            with open(f"/proc/{process.pid}/status") as file:
                return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))

        yield context, taken


def test_server_when_moving_large_vector_then_memory_is_bounded(one):
    _, taken = one
    u = DCV.dense(LARGE, 1).fill(1)
    whole = u.pull()
    u.add(whole)
    u.push(whole)
    assert taken() - 4 * LARGE < OVERHEAD_BYTES + STREAM_BYTES


def test_server_when_clients_do_not_read_then_holds_a_block_each(one, until):
    """Each asks for the whole vector, 256 MiB, reads nothing, and stays."""
    context, taken = one
    u = DCV.dense(LARGE, 1).fill(1)
    u.pull(np.arange(10))
    session = session_of(u._fleet)
    transport = FleetNetwork(context._coordinator.token)
    control = ServerControl(transport)
    before = control.status(context.servers[0]).requests
    clients = [_ask_and_do_not_read(context, u, session) for _ in range(4)]
    until(lambda: control.status(context.servers[0]).requests >= before + 4, "the server has worked for each")
    try:
        assert u.sum() == LARGE
        assert taken() - 4 * LARGE < OVERHEAD_BYTES + len(clients) * STREAM_BYTES
    finally:
        transport.close()
        for client, thread in clients:
            client.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            client.close()


def _ask_and_do_not_read(context, vector, session):
    """Return a connection on which the pull of the whole vector was asked for, and the thread that asked."""
    peer = session.network._identify(context.servers[0])
    family, position = peer.addresses[-1]
    client = connect(family, position, 20.0)
    handshake(client, context._coordinator.token, peer.server_id, time.monotonic() + 20)
    client.settimeout(None)
    plan = plans.pull(vector._target(), 0, vector.dim, np.empty(vector.dim, np.float32))
    routes = {vector._matrix: vector._route}
    (requests,) = group(cut([plan], routes, WireConfig.block_bytes), routes).values()

    def ask():
        with suppress(OSError):  # the test has ended, and hung up, before all was asked
            for _, request in requests:
                send_all(client, message_views(request_parts(request)))

    thread = threading.Thread(target=ask)
    thread.start()
    return client, thread


# -- more clients than there is memory for ---------------------------------------------------------------------------

BLOCKS = 10  # that there is room for
SMALL = 4 * MIB  # columns, four blocks
THREADS = 48


@pytest.fixture
def small(leaves_nothing):
    """A fleet of one server, with a vector, and room for ten blocks beside it; all kernels are compiled before."""
    warm()
    load()
    room = BLOCKS * WireConfig.block_bytes
    with PS2Context.getOrCreate(servers=1, memoryLimit=4 * SMALL + room) as context:
        yield DCV.dense(SMALL, 1).fill(0), context


def test_server_when_overcommitted_then_all_succeed_in_bounds(small):
    """Each thread has a connection, and a block on it most of the time: 48 of them where there is room for ten."""
    u, context = small
    ones, got = np.ones(SMALL, np.float32), np.empty(SMALL, np.float32)
    errors = []
    u.add(ones)
    u.pull(out=got)
    before = peak_of(context)

    def move():
        try:
            u.add(ones)
            u.pull(out=got)
        except PS2Error as error:
            errors.append(error)

    threads = [threading.Thread(target=move) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert set(u.pull().tolist()) == {THREADS + 1}
    assert peak_of(context) - before < BLOCKS * WireConfig.block_bytes + OVERHEAD_BYTES


def peak_of(context):
    """Return the most that the server has had in memory."""
    with open(f"/proc/{context._coordinator.fleet.launcher.pids()[0]}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))
