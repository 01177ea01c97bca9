"""A run on servers without a token: what comes to the driver is unpickled there, so the run itself wants one."""

from __future__ import annotations

import socket
import subprocess
import sys

import numpy as np
import pytest

from ps2 import DCV, PS2Context
from tests.ports import free_port


@pytest.fixture
def insecure(spark, until):
    """A context on a server without a token."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "ps2.cli.main", "server", "--listen", address, "--insecure"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(answers, "server listens", 20)
        with PS2Context.getOrCreate(spark, fleet=address) as context:
            yield context
    finally:
        process.terminate()
        process.wait()


def test_run_when_servers_are_tokenless_then_admits_own_workers(insecure, sc):
    total = DCV.dense(3, dtype="int64")

    def work(worker, rows):
        from ps2.errors import AuthError
        from ps2.rpc.run_control import RunControl

        for _ in worker.clocks(2):
            total.add(np.ones(3, np.int64))
        peer = RunControl(worker._loop.ref.address, None)
        try:
            peer.join(0, 1000, "host", 1)
        except AuthError as error:
            return str(error)
        finally:
            peer.close()

    message = insecure.run(sc.parallelize(range(2), 2), work)
    assert [text.split(";")[0] for text in message] == ["no token given"] * 2
    assert total.pull().tolist() == [4, 4, 4]
