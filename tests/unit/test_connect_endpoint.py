"""Whether a Spark Connect server is there, and what looks for it while a call is under way."""

from __future__ import annotations

import socket
import threading
from unittest import mock

import pytest

from ps2.errors import StoppedError
from ps2.run.spark import connect_endpoint
from ps2.run.spark.connect import ConnectSpark
from ps2.run.spark.connect_endpoint import CallWatch, is_reachable, local_address


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as result:
        yield result


def test_endpoint_when_a_server_listens_then_it_is_reachable(listener):
    endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
    assert is_reachable(endpoint)
    assert local_address(endpoint) == "127.0.0.1"
    listener.close()
    assert not is_reachable(endpoint)
    assert local_address(endpoint) == "localhost"


def test_endpoint_when_it_is_no_address_then_taken_as_there():
    assert is_reachable("unix:/tmp/connect.sock")


def test_watch_when_calls_overlap_then_one_thread_until_the_last(monkeypatch):
    monkeypatch.setattr(connect_endpoint, "WATCH_S", 0.01)
    checked = threading.Semaphore(0)
    watch = CallWatch(checked.release)
    with watch.watching():
        with watch.watching():
            assert _watching() == 1
        assert checked.acquire(timeout=10)
    _ended()


def test_watch_when_the_server_is_lost_then_it_looks_no_more(monkeypatch):
    monkeypatch.setattr(connect_endpoint, "WATCH_S", 0.01)
    calls = []

    def check():
        calls.append(1)
        raise StoppedError("lost")

    with CallWatch(check).watching():
        _ended()
    assert calls == [1]


def _watching():
    return sum(thread.name == "ps2-connect" for thread in threading.enumerate())


def _ended():
    for thread in threading.enumerate():
        if thread.name == "ps2-connect":
            thread.join(10)
    assert _watching() == 0


@pytest.mark.parametrize("message", ["No module named 'ps2'", "PYTHON_VERSION_MISMATCH"])
def test_error_when_servers_python_is_wrong_then_names_variable(message):
    """A Connect server reads this variable of its own process, and no setting of Spark."""
    error = ConnectSpark.python_error(mock.Mock(master="sc://there:15002"), message)
    assert "the Python of tasks at sc://there:15002 " in str(error)
    assert "the environment variable PYSPARK_PYTHON" in str(error)
