"""A server with several namespaces: each request and call gets to the engine that it is for."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ps2.coordinator.fleet_status import fleet_status
from ps2.errors import ConfigError, LimitError, ProtocolError, StaleRouteError, UsageError
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.protocol.messages import Operation, Request
from ps2.rpc.catalogs import PublishedCatalog
from ps2.rpc.control import Activation, ServerControl
from ps2.server import namespaces
from ps2.server.engine import Engine
from ps2.storage.manifest import SavedMatrix
from tests.contract.servers import CARRIERS, Counter, connected, op, outcomes, send, serving

# Ids of two catalogs: their upper bits differ.
ADS, FEED, NOBODYS = 5 << 32 | 1, 6 << 32 | 1, 7 << 32 | 1
SPEC, WHOLE = MatrixSpec(10, 2, dtype="float64"), [Partition(0, 0, 10)]
VERSIONS = {ADS: 3, FEED: 8}


def calls(transport, namespace, route_version):
    created = ServerControl(transport, namespace)
    created.route_version = route_version
    return created


@pytest.fixture(params=CARRIERS)
def fleet(request):
    """A server with two namespaces at different route versions, each with one matrix of the same shape."""
    with serving(Engine(1 << 24, allow_udf=False)) as server, connected(request.param) as transport:
        ads, feed = calls(transport, "ads", VERSIONS[ADS]), calls(transport, "feed", VERSIONS[FEED])
        for control, matrix in ((ads, ADS), (feed, FEED)):
            control.activate(server.address, Activation(f"{control.namespace}'s driver"))
            control.create_matrix(server.address, matrix, SPEC, WHOLE)
        yield SimpleNamespace(server=server, address=server.address, transport=transport, ads=ads, feed=feed)


def fill(fleet, value, *matrices, version):
    operations = tuple(op("fill", 0, matrix=matrix, value=value) for matrix in matrices)
    return send(fleet.transport, fleet.address, Request(operations, Counter.next(), version))


def publish(fleet):
    """Let the servers store a catalog in which row 1 of feed's matrix has a name."""
    matrix = SavedMatrix(FEED, SPEC, (0, 10), {0: 1, 1: 2}, {"w": 1}, 2, (), ())
    catalog = PublishedCatalog((VERSIONS[FEED], 1), (fleet.server.id,), (matrix,)).encode()
    fleet.feed.activate(fleet.address, Activation("feed's driver", catalog=catalog))


def total(fleet, matrix):
    request = Request((op("sum", 0, matrix=matrix),), None, VERSIONS[matrix])
    return send(fleet.transport, fleet.address, request).results[0].scalar


def test_requests_when_namespaces_differ_then_each_has_its_fence(fleet):
    fill(fleet, 1.0, ADS, version=3)
    fill(fleet, 2.0, FEED, version=8)
    assert (total(fleet, ADS), total(fleet, FEED)) == (10, 20)
    with pytest.raises(StaleRouteError, match="ads's driver at route version 3, got route version 8"):
        fill(fleet, 9.0, ADS, version=8)
    fleet.ads.route_version = 4
    fleet.ads.activate(fleet.address, Activation("ads's driver", afresh=True))
    with pytest.raises(StaleRouteError):
        fill(fleet, 9.0, ADS, version=4)
    assert total(fleet, FEED) == 20


def test_plain_requests_when_repeated_then_each_has_its_fence(fleet):
    rows = {}
    for matrix in (ADS, FEED):
        version = VERSIONS[matrix]
        push = Operation("push", matrix, 0, (0,), {"start": 0}, (np.full(10, float(version)),))
        pull = Operation("pull", matrix, 0, (0,), {"start": 0, "stop": 10})
        for _ in range(5):
            send(fleet.transport, fleet.address, Request((push,), Counter.next(), version))
            rows[matrix] = send(fleet.transport, fleet.address, Request((pull,), None, version)).results[0].arrays[0]
        with pytest.raises(StaleRouteError):
            send(fleet.transport, fleet.address, Request((pull,), None, version + 1))
    assert (rows[ADS].tolist(), rows[FEED].tolist()) == ([3.0] * 10, [8.0] * 10)


@pytest.mark.parametrize("matrices", [(ADS, FEED), (FEED, ADS), (ADS, NOBODYS)])
def test_request_when_it_mixes_namespaces_then_protocol_error(fleet, matrices):
    fill(fleet, 1.0, ADS, version=3)
    for version in (3, 8):
        with pytest.raises(ProtocolError, match=r"namespaces ads, (default|feed): expected one namespace"):
            fill(fleet, 9.0, *matrices, version=version)
    assert (total(fleet, ADS), total(fleet, FEED)) == (10, 0)


def test_request_when_its_matrix_is_unknown_then_stale_route(fleet):
    with pytest.raises(StaleRouteError, match="does not hold partition 0 of matrix 700000001"):
        fill(fleet, 9.0, NOBODYS, version=3)


def test_calls_when_matrix_is_of_another_namespace_then_refused(fleet):
    with pytest.raises(UsageError, match="belongs to namespace 'ads' of this fleet, got it for namespace 'feed'"):
        fleet.feed.create_matrix(fleet.address, ADS + 1, SPEC, WHOLE)
    fleet.feed.free_matrix(fleet.address, ADS)
    fill(fleet, 1.0, ADS, version=3)
    with pytest.raises(StaleRouteError, match="no namespace 'none'"):
        calls(fleet.transport, "none", 0).free_matrix(fleet.address, ADS)


def test_catalog_when_taken_over_then_engine_has_both_prefixes(fleet):
    later = calls(fleet.transport, "ads", 4)
    fleet.ads.activate(fleet.address, Activation("ads's driver", leave=True))
    later.activate(fleet.address, Activation("ads's next driver"))
    later.create_matrix(fleet.address, NOBODYS, SPEC, WHOLE)
    fill(fleet, 2.0, ADS, NOBODYS, version=4)
    assert send(fleet.transport, fleet.address, Request((op("sum", 0, matrix=ADS),), None, 4)).results[0].scalar == 20


def test_hello_when_namespaces_differ_then_each_has_its_driver(fleet):
    infos = [calls(fleet.transport, name, 0).hello(fleet.address) for name in ("ads", "feed", "", "none")]
    assert [info.coordinator for info in infos] == ["ads's driver", "feed's driver", "", ""]
    assert [info.route_version for info in infos] == [3, 8, 0, 0]
    with pytest.raises(StaleRouteError, match=r"namespace 'ads' of this server follows coordinator ads's driver"):
        calls(fleet.transport, "ads", 5).activate(fleet.address, Activation("another driver"))


def test_status_when_asked_for_all_then_names_the_owners(fleet):
    publish(fleet)
    everything = ServerControl(fleet.transport).status(fleet.address)
    rows = [(m.matrix, m.namespace, m.coordinator, dict(m.names)) for m in everything.matrices]
    assert rows == [(ADS, "ads", "ads's driver", {}), (FEED, "feed", "feed's driver", {"w": 1})]
    assert [m.matrix for m in fleet.feed.status(fleet.address).matrices] == [FEED]
    table = fleet_status({fleet.address: everything}, {}).tables[1]
    assert [column.title for column in table.columns[-3:]] == ["namespace", "coordinator", "names"]
    assert [row[-3:] for row in table.rows] == [["ads", "ads's driver", "-"], ["feed", "feed's driver", "w"]]
    assert (everything.route_version, fleet.ads.status(fleet.address).route_version) == (8, 3)
    assert calls(fleet.transport, "none", 0).status(fleet.address).matrices == ()


def test_namespaces_when_there_are_too_many_then_limit_error(fleet, monkeypatch):
    monkeypatch.setattr(namespaces, "MAX_NAMESPACES", 3)  # with the default one
    with pytest.raises(LimitError, match="namespace 'more': this server has 3 namespaces already"):
        calls(fleet.transport, "more", 1).activate(fleet.address, Activation("more"))
    fleet.ads.activate(fleet.address, Activation("ads's driver", leave=True))
    calls(fleet.transport, "more", 1).activate(fleet.address, Activation("more"))
    assert sorted(part.name for part in fleet.server.namespaces.all()) == ["default", "feed", "more"]
    assert outcomes(fleet.transport, fleet.address, Request((op("sum", 0, matrix=ADS),), None, 3)) != []


def test_namespace_when_its_driver_is_gone_then_named_data_stay(fleet, monkeypatch):
    publish(fleet)
    monkeypatch.setattr(namespaces, "ABANDONED_AFTER_S", 0.0)
    calls(fleet.transport, "", 1).activate(fleet.address, Activation("a driver"))
    assert sorted(part.name for part in fleet.server.namespaces.all()) == ["default", "feed"]
    assert total(fleet, FEED) == 0
    held = sum(matrix.bytes for matrix in ServerControl(fleet.transport).status(fleet.address).matrices)
    assert held == fleet.feed.status(fleet.address).memory_bytes


@pytest.mark.parametrize("name", ["Ads", "a/b", "x" * 64, "ä"])
def test_namespace_when_its_name_is_wrong_then_config_error(fleet, name):
    with pytest.raises(ConfigError, match="namespace: expected 1 to 63 characters"):
        calls(fleet.transport, name, 1).activate(fleet.address, Activation("a driver"))


def test_namespace_when_not_activated_then_answers_nobody(fleet):
    restoring = calls(fleet.transport, "new", 0)
    restoring.create_matrix(fleet.address, NOBODYS, SPEC, WHOLE)
    for version in (0, 3):
        with pytest.raises(StaleRouteError, match="waits for its coordinator to give it its shards"):
            fill(fleet, 9.0, NOBODYS, version=version)
    restoring.route_version = 1
    restoring.activate(fleet.address, Activation("new driver"))
    fill(fleet, 1.0, NOBODYS, version=1)
    restoring.activate(fleet.address, Activation("new driver", afresh=True))
    restoring.create_matrix(fleet.address, NOBODYS, SPEC, WHOLE)
    with pytest.raises(StaleRouteError, match="waits for its coordinator"):
        fill(fleet, 9.0, NOBODYS, version=1)
