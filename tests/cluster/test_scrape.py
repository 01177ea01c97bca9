"""What a real server process tells of itself to Prometheus and to ``ps2 status``, after requests that are known."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from urllib.error import URLError

import numpy as np
import psutil
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parse

from ps2 import PS2Conf, PS2Context
from ps2.client.network import FleetNetwork
from ps2.config import new_token, write_token
from ps2.errors import NotFoundError, OutOfRangeError
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.protocol.messages import Keys, Operation, Request, RequestId, key_digest
from ps2.rpc.control import ServerControl
from tests.commands import ps2
from tests.promql import metric_names, names_of

MATRIX = 7
COLUMNS = np.arange(0, 1000, 2)
DIM = 1000


class Server:
    """A server process of its own, and what its log says."""

    def __init__(self, forked, folder: Path, *options: str):
        self.token_file = folder / "token"
        self.token = new_token()
        write_token(self.token_file, self.token)
        self._log = folder / "log"
        arguments = ("server", "--listen", "127.0.0.1:0", "--token-file", self.token_file, *options)
        self.process = forked(arguments, self._log)

    def said(self, pattern):
        """Return what the log has of a pattern's group, or None."""
        result = re.search(pattern, self._log.read_text())
        return result and result[1]

    @property
    def address(self):
        return self.said(r"listening on (\S+),")

    @property
    def metrics(self):
        return self.said(r"metrics on (\S+)")

    def listeners(self):
        """Return (host, port) of every TCP socket that the process listens on."""
        return [
            (c.laddr.ip, c.laddr.port)
            for c in psutil.net_connections("tcp")
            if c.pid == self.process.process.pid and c.status == psutil.CONN_LISTEN
        ]

    def scrape(self):
        """Return every sample: {(name, labels): value}."""
        with urllib.request.urlopen(self.metrics, timeout=10) as answer:
            families = list(parse(answer.read().decode()))
        return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}

    def status(self, form):
        result = ps2("status", "--fleet", self.address, "--token-file", self.token_file, "-o", form)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def stop(self):
        self.process.terminate()
        return self.process.wait(10)


@pytest.fixture(scope="module")
def server(tmp_path_factory, leaves_nothing, until, forked):
    """A server with metrics on a free port."""
    server = Server(forked, tmp_path_factory.mktemp("server"), "--metrics-port", "0")
    try:
        until(lambda: server.metrics and server.address, "the server tells where it and its metrics are", 60)
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def used(server):
    """The server, after three requests that succeeded and three that did not."""
    transport = FleetNetwork(server.token)
    digest = key_digest(COLUMNS)
    pushed = Operation("push", MATRIX, 0, (0,), {"start": 0}, (np.ones(DIM),))
    gathered = Operation("gather", MATRIX, 0, (0,), keys=Keys(COLUMNS.size, COLUMNS, digest))
    again = Operation("gather", MATRIX, 0, (0,), keys=Keys(COLUMNS.size, None, digest))
    unknown = Operation("gather", MATRIX, 0, (0,), keys=Keys(3, None, b"x" * 16))
    outside = Operation("gather", MATRIX, 0, (0,), arrays=(np.array([DIM]),))
    made_up = Operation("drop_table", MATRIX, 0, (0,))
    requests = [
        Request((pushed, pushed), RequestId("test", 0)),
        *(Request((operation,)) for operation in (gathered, again, unknown, outside, made_up)),
    ]
    try:
        ServerControl(transport).create_matrix(
            server.address, MATRIX, MatrixSpec(DIM, 2, dtype="float64"), [Partition(0, 0, DIM)]
        )
        outcomes = transport.exchange({server.address: requests})[server.address]
        # While the connection is there; the server answers on it, so it counts it already.
        server.connections = server.scrape()[("ps2_connections",)]
    finally:
        transport.close()
    assert [type(outcome) for outcome in outcomes[4:]] == [OutOfRangeError, NotFoundError]
    return server


def of(operation):
    return ("operation", operation)


def test_scrape_when_known_requests_ran_then_counts_are_exact(used):
    result = used.scrape()
    outcomes = {labels[0][1]: value for (name, *labels), value in result.items() if name == "ps2_requests_total"}
    assert outcomes == {"ok": 3, "KeyMissError": 1, "OutOfRangeError": 1, "NotFoundError": 1}
    assert result["ps2_received_bytes_total",] == 2 * DIM * 8 + COLUMNS.size * 8 + 8
    assert result["ps2_sent_bytes_total",] == 2 * COLUMNS.size * 8
    for name, count, failures, keys in (("push", 2, 0, 0), ("gather", 3, 1, 2 * COLUMNS.size)):
        assert result["ps2_operation_duration_seconds_count", of(name)] == count
        assert result["ps2_operation_failures_total", of(name)] == failures
        assert result["ps2_keys_total", of(name)] == keys
    assert (result["ps2_key_cache_hits_total",], result["ps2_key_cache_misses_total",]) == (1, 1)
    assert result["ps2_key_cache_bytes",] == COLUMNS.size * 8
    assert (result["ps2_matrices",], result["ps2_active_keys",]) == (1, 0)
    assert result["ps2_memory_bytes",] == 2 * DIM * 8 + COLUMNS.size * 8
    assert result["ps2_requests_in_progress",] == result["ps2_requests_waiting",] == 0
    assert result["process_resident_memory_bytes",] > 0


def test_scrape_when_operation_is_made_up_then_has_no_series(used):
    assert {label for _, *labels in used.scrape() for label in labels if label[0] == "operation"} == {
        of("push"),
        of("gather"),
    }


def test_connections_when_client_comes_and_goes_then_counts_open(used, until):
    assert used.connections == 1
    until(lambda: used.scrape()["ps2_connections",] == 0, "the connection is gone")


def test_status_when_json_then_has_the_same_numbers(used):
    result = json.loads(used.status("json"))
    (server,) = result["servers"]
    assert server["outcomes"] == {"ok": 3, "KeyMissError": 1, "OutOfRangeError": 1, "NotFoundError": 1}
    assert (server["requests"], server["failed"]) == (6, 2)
    assert (server["in_progress"], server["waiting"], server["lock_waits"], server["lock_wait_s"]) == (0, 0, 0, 0)
    assert (server["key_cache_hits"], server["key_cache_misses"]) == (1, 1)
    assert server["key_cache_bytes"] == COLUMNS.size * 8
    assert server["connections"] == 0
    operations = {operation["name"]: operation for operation in result["operations"]}
    assert operations["gather"].items() >= {"count": 3, "failures": 1, "keys": 2 * COLUMNS.size}.items()
    assert operations["push"].items() >= {"count": 2, "failures": 0, "keys": 0}.items()
    assert sorted(server["operations"], key=lambda operation: -operation["seconds"]) == result["operations"]


def test_status_when_yaml_then_is_what_json_is(used):
    form, other = yaml.safe_load(used.status("yaml")), json.loads(used.status("json"))
    assert form["operations"] == other["operations"]
    assert form["servers"][0].keys() == other["servers"][0].keys()


def test_status_when_table_then_operations_fit_80_columns(used):
    *_, table = used.status("table").split("\n\n")
    header, *rows = table.splitlines()
    assert header.split() == ["operation", "count", "failures", "time", "mean", "keys", "keys/s"]
    assert {tuple(row.split()[:3]) for row in rows} == {("push", "2", "0"), ("gather", "3", "1")}
    assert all(len(row) <= 80 for row in table.splitlines())


def test_server_when_metrics_are_on_then_only_on_loopback(server):
    port = int(server.metrics.removesuffix("/metrics").rsplit(":", 1)[1])
    assert [host for host, at in server.listeners() if at == port] == ["127.0.0.1"]


def test_server_when_metrics_are_off_then_opens_no_metrics_port(tmp_path, until, forked):
    server = Server(forked, tmp_path)
    try:
        until(lambda: server.address, "the server listens", 60)
        transport = FleetNetwork(server.token)
        ServerControl(transport).hello(server.address)
        transport.close()
        assert len(server.listeners()) == 2
        assert server.metrics is None
    finally:
        server.stop()


def test_server_when_metrics_port_is_taken_then_exits_1(server, tmp_path, forked):
    port = server.metrics.removesuffix("/metrics").rsplit(":", 1)[1]
    other = Server(forked, tmp_path, "--metrics-port", port)
    try:
        assert other.process.wait(60) == 1
    finally:
        other.stop()
    assert other.said("(?m)^ps2: (.*)").startswith(
        f"cannot serve metrics on port {port} of 127.0.0.1 (--metrics-port): "
    )


def test_grafana_when_queries_are_read_then_scrapes_have_them(server):
    """Late, as the server has a driver from here on."""
    conf = PS2Conf(metricsListen="127.0.0.1:0", dashboard=False)
    families = []
    with PS2Context.getOrCreate(fleet=server.address, tokenFile=str(server.token_file), conf=conf) as ps:
        for url in (server.metrics, ps.metricsUrl):
            with urllib.request.urlopen(url, timeout=10) as answer:
                families += parse(answer.read().decode())
    dashboard = json.loads((Path(__file__).parents[2] / "deploy" / "grafana" / "ps2.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    queries += [one["definition"] for one in dashboard["templating"]["list"] if "definition" in one]
    asked = {name for query in queries for name in metric_names(query)} - {"instance"}
    assert asked - names_of(families) == set()


def test_server_when_told_to_stop_then_its_metrics_end_with_it(server):
    """Last."""
    assert server.stop() == 0
    with pytest.raises(URLError, match="refused"):
        server.scrape()
