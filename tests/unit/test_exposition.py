"""What Prometheus is told can be parsed, follows its rules for names and units, and is in docs/metrics.md."""

from __future__ import annotations

import re
import socket
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from ps2.dashboard.driver_metrics import DriverCollector
from ps2.errors import LaunchError
from ps2.matrix.partition import HASH_SPACE, MatrixSpec, Partition
from ps2.protocol.messages import Operation, Request, RequestId
from ps2.server.engine import Engine
from ps2.server.metrics import ServerCollector
from ps2.server.servicer import server_status
from ps2.transport.exposition import MAX_SCRAPES, Exposition
from tests.driver_figures import figures_of

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


LISTEN, SETTING = ("127.0.0.1", range(1)), "--metrics-port"


def never():
    return False


INFO = {"version": "1.2", "server_id": "abc", "index": "3"}
# https://prometheus.io/docs/practices/naming/: base units only, in the plural.
BASE_UNITS = ("seconds", "bytes")
OTHER_UNITS = ("ms", "milliseconds", "us", "microseconds", "minutes", "kb", "mb", "kib", "mib", "gib", "percent")


@pytest.fixture
def collector():
    engine = Engine(1 << 30, allow_udf=True)
    engine.create_matrix(1, MatrixSpec(2**40, 2, dtype="float64", kind="sparse"), [Partition(0, 0, HASH_SPACE)])
    add = Operation("scatter_add", 1, 0, (0,), arrays=(np.array([5, 9, 700]), np.ones(3)))
    engine.execute(Request((add,), RequestId("scope", 0)))
    engine.execute(Request((Operation("gather", 1, 0, (0,), arrays=(np.array([5, 6]),)),)))
    return ServerCollector(
        lambda: server_status(
            engine.shared, [engine], server_id="abc", uptime_s=1.5, connections=4, backup="", num_out_of_sync=0
        ),
        INFO,
    )


@pytest.fixture
def registry(collector):
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


@pytest.fixture
def families(registry):
    return list(parse(generate_latest(registry).decode()))


@pytest.fixture
def value(families):
    """``value(name, **labels)``: the only sample of that name with these labels."""

    def find(name, **labels):
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        (result,) = [sample for sample in samples if labels.items() <= sample.labels.items()]
        return result.value

    return find


def test_counts_when_scraped_then_are_those_of_the_engine(value):
    assert value("ps2_requests_total", outcome="ok") == 2
    assert value("ps2_received_bytes_total") == 3 * 8 + 3 * 8 + 2 * 8
    assert value("ps2_sent_bytes_total") == 2 * 8
    assert value("ps2_keys_total", operation="scatter_add") == 3
    assert value("ps2_keys_total", operation="gather") == 2
    assert value("ps2_operation_failures_total", operation="gather") == 0
    assert value("ps2_operation_duration_seconds_count", operation="gather") == 1
    assert value("ps2_operation_duration_seconds_sum", operation="gather") > 0


def test_gauges_when_scraped_then_tell_of_now(value):
    assert value("ps2_requests_in_progress") == value("ps2_requests_waiting") == 0
    assert (value("ps2_matrices"), value("ps2_active_keys"), value("ps2_connections")) == (1, 3, 4)
    assert value("ps2_memory_limit_bytes") == 1 << 30
    assert 0 < value("ps2_memory_bytes") < 1 << 20
    assert value("ps2_server_info", **INFO) == 1


def test_histogram_when_scraped_then_its_buckets_add_up(families):
    (durations,) = [family for family in families if family.name == "ps2_operation_duration_seconds"]
    assert durations.type == "histogram"
    buckets = [s for s in durations.samples if s.name.endswith("_bucket") and s.labels["operation"] == "gather"]
    ends, counts = [float(s.labels["le"]) for s in buckets], [s.value for s in buckets]
    assert ends == sorted(ends)
    assert (ends[0], ends[-2:]) == (1e-5, [10.0, float("inf")])
    assert counts == sorted(counts)
    assert counts[-1] == 1


def test_text_when_openmetrics_is_asked_for_then_is_valid_too(registry):
    """This parser is the strict one: it checks suffixes, units, the order of buckets, and that nothing comes twice."""
    families = list(parse_openmetrics(generate_openmetrics(registry).decode()))
    assert "ps2_operation_duration_seconds" in {family.name for family in families}


def test_names_when_looked_at_then_follow_the_conventions(families):
    for family in families:
        assert re.fullmatch(r"ps2(_[a-z]+)+", family.name), family.name
        assert family.documentation, family.name
        assert not set(family.name.split("_")) & set(OTHER_UNITS), family.name
        for sample in family.samples:
            # A counter, and only a counter, ends in _total; nothing but a histogram has a _count, _sum or _bucket.
            assert sample.name.endswith("_total") == (family.type == "counter"), sample.name
            is_part = sample.name.endswith(("_count", "_sum", "_bucket"))
            assert is_part == (family.type == "histogram"), sample.name
            assert re.match("ps2_.*(total|info)$", sample.name) or family.type in ("gauge", "histogram")
            # A unit is the last word, but for the suffix of the type.
            words = sample.name.removesuffix("_total").split("_")
            assert not set(words[:-1]) & set(BASE_UNITS) or family.type == "histogram", sample.name


def test_docs_when_read_then_name_every_metric_and_no_other(families):
    of_server, of_driver = DOCS.read_text().split("## Driver metrics")
    assert rows_of(of_server) == names_of(families)
    registry = CollectorRegistry()
    registry.register(DriverCollector(figures_of))
    assert rows_of(of_driver) == names_of(parse(generate_latest(registry).decode()))


def rows_of(page):
    return sorted(re.findall(r"^\| `(ps2_[a-z_]+)", page, flags=re.MULTILINE))


def names_of(families):
    return sorted(family.name + ("_total" if family.type == "counter" else "") for family in families)


def test_exposition_when_on_any_port_then_serves_until_stopped(collector):
    exposition = Exposition(collector, LISTEN, SETTING, never)
    try:
        with urllib.request.urlopen(f"http://{exposition.address}/metrics", timeout=10) as answer:
            result = {family.name for family in parse(answer.read().decode())}
    finally:
        exposition.stop()
    assert {"ps2_requests", "process_resident_memory_bytes", "process_cpu_seconds"} <= result
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{exposition.address}/metrics", timeout=10)


def test_exposition_when_port_is_taken_then_error_names_option(collector):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"port {port} of 127\.0\.0\.1 \(--metrics-port\): .*in use"):
            Exposition(collector, ("127.0.0.1", range(port, port + 1)), SETTING, never)


def test_exposition_when_request_trickles_then_is_cut_off(collector, until):
    exposition = Exposition(collector, LISTEN, SETTING, never, timeout_s=0.2)
    try:
        with socket.create_connection(split(exposition.address), timeout=10) as slow:
            until(lambda: not writable(slow), "it is cut off")
    finally:
        exposition.stop()


def test_exposition_when_many_clients_are_silent_then_answers(collector):
    exposition = Exposition(collector, LISTEN, SETTING, never)
    try:
        with ExitStack() as idle:
            for _ in range(MAX_SCRAPES + 8):
                idle.enter_context(socket.create_connection(split(exposition.address), timeout=10))
            with urllib.request.urlopen(f"http://{exposition.address}/metrics", timeout=10) as answer:
                assert answer.status == 200
            threads = [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]
            assert len(threads) <= MAX_SCRAPES + 1
    finally:
        exposition.stop()


def test_exposition_when_probed_then_status_tells_readiness(collector):
    message = iter([False, True])
    exposition = Exposition(collector, LISTEN, SETTING, lambda: next(message))
    try:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://{exposition.address}/ready", timeout=10)
        with urllib.request.urlopen(f"http://{exposition.address}/ready", timeout=10) as answer:
            assert (answer.status, answer.read()) == (200, b"ready\n")
    finally:
        exposition.stop()


@pytest.mark.parametrize("path", ["/readyz", "/ready/", "/healthz", "/favicon.ico"])
def test_exposition_when_path_is_another_then_not_found(collector, path):
    """A probe that is misspelt would always succeed if it were answered with metrics."""
    exposition = Exposition(collector, LISTEN, SETTING, never)
    try:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{exposition.address}{path}", timeout=10)
    finally:
        exposition.stop()


def split(address):
    host, port = address.split(":")
    return host, int(port)


def writable(connection):
    """Send a byte; return whether the other side still takes any."""
    try:
        connection.sendall(b"G")
    except OSError:
        return False
    return True
