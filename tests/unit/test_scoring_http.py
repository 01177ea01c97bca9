"""The HTTP endpoint of a scorer, by requests to a real one."""

from __future__ import annotations

import errno
import json
import logging
import os
import select
import socket
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from http.client import HTTPConnection

import numpy as np
import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from ps2 import http_server
from ps2.config import write_token
from ps2.errors import ConfigError, LaunchError
from ps2.serving import Scorer, http
from ps2.serving.http import ScoringMetrics
from tests import certificates
from tests.exporting import export, values_of

LONG_HEAD = """
import socket, threading, uvicorn
from ps2.http_server import HttpServer
from ps2.listening import listening_socket

async def answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})

listener = listening_socket("127.0.0.1", [0], 8)
server = HttpServer(uvicorn.Config(answer, log_config=None, lifespan="off"), 8)
thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
thread.start()
for length in (1 << 10, 1 << 17):
    with socket.create_connection(listener.getsockname(), timeout=10) as client:
        client.sendall(b"GET / HTTP/1.1\\r\\nHost: h\\r\\nX: " + b"x" * length + b"\\r\\n" * (length < 1 << 16) * 2)
        print(client.recv(100).split()[1].decode())
server.should_exit = True
thread.join()
"""
TOKEN = "a-token-of-enough-characters-0123456789"


class Endpoint:
    """A running endpoint: ``url``, and ``folder`` of its export."""

    def __init__(self, folder, tokens=None, certificate=None, listener=None, keep_alive_s=75):
        self.folder = folder
        export(folder, np.arange(0, 1000, 2))
        self.scorer = Scorer(str(folder))
        self.listener = listener or http.listen("127.0.0.1", range(1), tokens)
        self.server = http.http_server(http.ScoringService(self.scorer, tokens), keep_alive_s, certificate)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})
        self.thread.start()
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self.listener.getsockname()[1]}"

    def post(self, path, **how):
        with requests.post(self.url + path, timeout=10, **how) as answer:
            return answer.status_code, answer.json()

    def get(self, path, **how):
        with requests.get(self.url + path, timeout=10, **how) as answer:
            return answer.status_code, answer.text

    def stop(self):
        self.server.should_exit = True
        self.thread.join()
        self.listener.close()


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    running = Endpoint(tmp_path_factory.mktemp("export"))
    yield running
    running.stop()


def test_vectors_when_asked_then_those_of_the_export(endpoint):
    status, result = endpoint.post("/vectors", json={"keys": [4, 5]})
    assert status == 200
    np.testing.assert_array_equal(np.float32(result["vectors"][0]), values_of([4])[0])
    assert result["present"] == [True, False]


def test_requests_when_a_connection_is_kept_then_none_waits(endpoint):
    """Systems acknowledge late, after 40 ms: the body must not wait for the head's acknowledgement."""
    client = HTTPConnection(*endpoint.listener.getsockname(), timeout=10)
    took_s = []
    for _ in range(20):
        began_s = time.perf_counter()
        client.request("POST", "/vectors", b'{"keys": [4]}')
        assert client.getresponse().read()
        took_s.append(time.perf_counter() - began_s)
    client.close()
    assert statistics.median(took_s[1:]) < 0.02


def test_many_keys_when_asked_then_in_their_order(endpoint):
    status, result = endpoint.post("/vectors", json={"keys": list(range(998, -2, -2))})
    assert status == 200
    np.testing.assert_array_equal(np.float32(result["vectors"]), values_of(np.arange(998, -2, -2)))


def test_answer_when_large_then_others_are_answered_between(endpoint):
    """The server makes a piece of its text when the client has taken the pieces before."""
    keys = list(range(0, 1000, 2)) * 200
    body = json.dumps({"keys": keys}).encode()
    with socket.create_connection(endpoint.listener.getsockname(), timeout=60) as client:
        client.sendall(b"POST /vectors HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        answer, pieces = client.makefile("rb"), []
        while answer.readline() != b"\r\n":
            pass
        assert endpoint.get("/healthz")[0] == 200
        while size := int(answer.readline(), 16):
            pieces.append(answer.read(size))
            answer.readline()
    assert len(keys) > 5 * max(piece.count(b",") for piece in pieces)
    content = json.loads(b"".join(pieces))
    np.testing.assert_array_equal(np.float32(content["vectors"]), values_of(np.array(keys)))
    assert content["present"] == [True] * len(keys)


@pytest.mark.parametrize(("keys", "spaces", "in_loop"), [(64, 0, True), (65, 0, False), (1, 1 << 16, False)])
def test_request_when_long_then_not_scored_in_event_loop(endpoint, monkeypatch, keys, spaces, in_loop):
    threads, look_up = [], endpoint.scorer.lookUp
    monkeypatch.setattr(
        endpoint.scorer, "lookUp", lambda keys: threads.append(threading.current_thread()) or look_up(keys)
    )
    assert endpoint.post("/vectors", data=json.dumps({"keys": [4] * keys}) + " " * spaces)[0] == 200
    assert (threads[0] is endpoint.thread) == in_loop


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/vectors", b"{", "expected JSON"),
        ("/vectors", b"[" * 100_000, "expected JSON"),
        ("/vectors", b"[]", "expected an object with a list 'keys'"),
        ("/vectors", b'{"keys": [1], "rows": []}', "'rows' as well"),
        ("/vectors", b'{"keys": [1, [2]]}', "lists of equal lengths"),
        ("/vectors", b'{"keys": [-1]}', "got -1"),
        ("/vectors", b'{"keys": [9223372036854775808]}', "9223372036854775808"),
        ("/vectors", b'{"keys": ["a"]}', "expected int64"),
        ("/vectors", b'{"keys": [null]}', "expected int64"),
        ("/vectors", b'{"keys": [true]}', "got bool"),
        ("/vectors", b'{"\\ud800": 1, "keys": []}', "\\ud800"),
        ("/score", b'{"rows": [{"a": 1}]}', "this export is a table"),
    ],
)
def test_request_when_wrong_then_400_says_why(endpoint, path, body, text):
    status, result = endpoint.post(path, data=body)
    assert status == 400
    assert text in result["error"]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/nothing", 404, "POST /nothing: Not Found"),
        ("/score/", 404, "POST /score/: Not Found"),
        ("/healthz", 405, "POST /healthz: Method Not Allowed"),
    ],
)
def test_request_when_no_route_takes_it_then_json_says_so(endpoint, path, status, said):
    assert endpoint.post(path, data=b"{}") == (status, {"error": said})


def test_body_when_too_large_then_413(endpoint, monkeypatch):
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 100)
    assert endpoint.post("/vectors", data=b" " * 101)[0] == 413


def test_keys_when_answer_has_too_many_numbers_then_413(endpoint, monkeypatch):
    """16 MiB of keys would ask for as many numbers as no memory holds."""
    monkeypatch.setattr(http, "MAX_VALUES", 30)
    assert endpoint.post("/vectors", json={"keys": [4] * 10})[0] == 200
    for keys in ([4] * 11, [[4] * 11]):
        status, result = endpoint.post("/vectors", json={"keys": keys})
        error = "expected at most 10 keys, for an answer of 30 values; send several requests"
        assert (status, result["error"]) == (413, error)


def test_body_when_announced_too_large_then_413_before_it_comes(endpoint):
    """A client that asks whether to send it (curl does) is told, and need not send."""
    head = b"POST /vectors HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2147483648\r\n\r\n"
    with socket.create_connection(endpoint.listener.getsockname(), timeout=10) as client:
        client.sendall(head)
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


def test_body_when_half_is_sent_then_408(endpoint, monkeypatch):
    monkeypatch.setattr(http, "BODY_S", 0.05)
    with socket.create_connection(endpoint.listener.getsockname(), timeout=10) as client:
        client.sendall(b"POST /vectors HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{")
        assert client.makefile().readline() == "HTTP/1.1 408 Request Timeout\n"


def test_head_when_long_then_refused_with_httptools_as_well(tmp_path):
    """httptools, which uvicorn would take, has no limit. The one here is empty: who takes it answers nothing."""
    (tmp_path / "httptools.py").touch()
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    answers = subprocess.run(
        [sys.executable, "-c", LONG_HEAD], env=os.environ | path, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert answers.split() == ["204", "400"]


def test_head_when_half_is_sent_then_the_connection_ends(endpoint, monkeypatch):
    """Of a connection's first request, and of a later one; a request whose head has come is answered."""
    monkeypatch.setattr(http_server, "HEAD_S", 0.1)
    monkeypatch.setattr(http, "BODY_S", 0.5)
    with socket.create_connection(("127.0.0.1", endpoint.listener.getsockname()[1]), timeout=10) as client:
        client.sendall(b"POST /vectors HTTP/1.1\r\nHost: a")
        assert client.recv(4096) == b""
    with socket.create_connection(("127.0.0.1", endpoint.listener.getsockname()[1]), timeout=10) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        client.sendall(b"GET /hea")
        while rest := client.recv(4096):  # the first answer's body, perhaps
            assert b"HTTP/1.1" not in rest
    with socket.create_connection(("127.0.0.1", endpoint.listener.getsockname()[1]), timeout=10) as client:
        client.sendall(b"POST /vectors HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
        assert client.recv(4096).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_idle_connections_when_too_many_then_the_oldest_end(tmp_path, monkeypatch, caplog, is_tls):
    """They have sent nothing, not even what begins TLS. A request after them is answered, and the log has one line."""
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 8)
    files = certificates.write(tmp_path / "tls")
    endpoint = Endpoint(tmp_path / "export", certificate=(files.cert, files.key) if is_tls else None)
    try:
        with ExitStack() as stack:
            idle = [
                stack.enter_context(socket.create_connection(endpoint.listener.getsockname(), timeout=10))
                for _ in range(50)
            ]
            for ended in idle[:42]:
                assert ended.recv(1) == b""
            assert not select.select(idle[42:], [], [], 0)[0]
            assert endpoint.get("/healthz", verify=files.ca)[0] == 200
            assert idle[42].recv(1) == b""
    finally:
        endpoint.stop()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "the limit of 8 connections is reached: idle ones are closed"
    ]


def test_new_connection_when_all_are_answered_then_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 1)
    endpoint = Endpoint(tmp_path)
    address = endpoint.listener.getsockname()
    try:
        with socket.create_connection(address, timeout=10) as busy:
            busy.sendall(b"POST /vectors HTTP/1.1\r\nHost: h\r\nContent-Length: 13\r\nExpect: 100-continue\r\n\r\n")
            assert busy.recv(4096).startswith(b"HTTP/1.1 100")
            with socket.create_connection(address, timeout=10) as late:
                assert late.recv(1) == b""
            busy.sendall(b'{"keys": [4]}')
            assert busy.recv(4096).startswith(b"HTTP/1.1 200")
    finally:
        endpoint.stop()


class ListenerWithoutFiles(socket.socket):
    """Cannot accept ``failures`` times, as in a process whose open files are at their limit."""

    failures = 3

    def accept(self):
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_connection_when_files_run_out_then_one_line_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(http_server, "PAUSE_S", 0.01)
    listener = ListenerWithoutFiles(fileno=http.listen("127.0.0.1", range(1), None).detach())
    endpoint = Endpoint(tmp_path, listener=listener)
    try:
        assert endpoint.get("/healthz")[0] == 200
    finally:
        endpoint.stop()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "a connection could not be accepted: [Errno 24] Too many open files"
    ]


def test_connection_when_kept_alive_then_ends_after_that_time(tmp_path):
    endpoint = Endpoint(tmp_path, keep_alive_s=0.2)
    client = HTTPConnection(*endpoint.listener.getsockname(), timeout=10)
    try:
        client.request("GET", "/healthz")
        client.getresponse().read()
        began_s = time.monotonic()
        assert client.sock.recv(1) == b""
        assert 0.1 < time.monotonic() - began_s < 4  # uvicorn's own time is 5 s
    finally:
        client.close()
        endpoint.stop()


def test_metrics_when_parsed_then_are_valid(endpoint):
    names = {family.name for family in text_string_to_metric_families(endpoint.get("/metrics")[1])}
    assert {"ps2_export_keys", "ps2_scoring_duration_seconds"} <= names


def test_health_and_metrics_when_asked_then_tell_the_export(endpoint):
    status, text = endpoint.get("/healthz")
    assert (status, text) == (200, '{"status":"ok","export":1,"kind":"table"}')
    endpoint.post("/vectors", json={"keys": [4]})
    assert "ps2_export_keys 500.0" in endpoint.get("/metrics")[1]
    assert 'ps2_scoring_requests_total{request="vectors",status="200"}' in endpoint.get("/metrics")[1]


def test_token_when_needed_then_401_without_it(tmp_path):
    write_token(tmp_path / "token", TOKEN)
    endpoint = Endpoint(tmp_path / "export", http.TokenFile(str(tmp_path / "token")))
    try:
        assert endpoint.post("/vectors", json={"keys": [4]})[0] == 401
        assert endpoint.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}x"})[0] == 401
        assert endpoint.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})[0] == 200
    finally:
        endpoint.stop()


def test_request_when_it_has_no_token_then_costs_no_work(tmp_path, monkeypatch):
    """Neither is the token file looked at, nor are figures collected."""
    work = []

    class CountingTokens:
        def accepts(self, token):
            work.append(token)

    monkeypatch.setattr(ScoringMetrics, "text", lambda self: work.append("text"))
    endpoint = Endpoint(tmp_path, CountingTokens())
    try:
        assert endpoint.get("/metrics")[0] == 401
        assert endpoint.post("/vectors", json={"keys": [4]})[0] == 401
        assert endpoint.get("/healthz")[0] == 200
    finally:
        endpoint.stop()
    assert work == []


def test_other_hosts_when_there_is_no_token_then_refused():
    with pytest.raises(ConfigError, match="give --token-file"):
        http.listen("0.0.0.0", range(1), None)


def test_port_when_taken_then_named(endpoint):
    port = endpoint.listener.getsockname()[1]
    with pytest.raises(LaunchError, match=f"port {port}"):
        http.listen("127.0.0.1", range(port, port + 1), None)
