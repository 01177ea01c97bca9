"""Workers that cannot reach their driver end the run at once, and say what decides about it."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from ps2 import PS2Conf, PS2Context
from ps2.config import new_token, write_token
from ps2.errors import ConfigError
from ps2.listening import is_free
from tests.ports import free_port

# Of this host, where nobody listens.
ELSEWHERE = "127.0.0.2"


def test_run_when_driver_address_is_wrong_then_says_so(spark, sc, until, tmp_path):
    token = tmp_path / "token"
    write_token(token, new_token())
    port = free_port()
    address = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "ps2.cli.main", "server", "--listen", address, "--token-file", str(token)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: not is_free(socket.AF_INET, ("127.0.0.1", port)), "the server listens", 20)
        inputs = {"fleet": address, "tokenFile": str(token), "conf": PS2Conf(advertiseAddress=ELSEWHERE)}
        with PS2Context.getOrCreate(spark, **inputs) as ps, pytest.raises(ConfigError) as caught:
            ps.run(sc.parallelize(range(2), 2), lambda worker, rows: None)
    finally:
        server.terminate()
        server.wait()
    message = str(caught.value)
    assert message.startswith(f"run: the driver's run at {ELSEWHERE}:")
    assert "Connection refused" in message
    assert "bindAddress" in message
