"""Every port listens and is reached over IPv6 as over IPv4, and who never reached one is told what decides about it."""

from __future__ import annotations

import socket
import urllib.request
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry

from ps2.client.network import FleetNetwork
from ps2.config import ANY_PORT, Binding, WireConfig, join_address, split_address
from ps2.errors import StoppedError, UnavailableError, UnreachableError
from ps2.rpc import run_control
from ps2.rpc.control import ServerControl
from ps2.rpc.run_control import RunControl
from ps2.run.clocks import Clocks
from ps2.run.run_server import RunServer
from ps2.run.state import RunState
from ps2.transport import worker_channel
from ps2.transport.exposition import Exposition
from tests.contract.servers import TOKEN, an_engine, count, serving
from tests.ports import free_port

HOSTS = ("127.0.0.1", "::1", "localhost")


class Ignores:
    """A listener of a run that nobody drives."""

    def clock_due(self): ...
    def logged(self, rank, metric): ...
    def failed(self): ...


@pytest.mark.parametrize("host", HOSTS)
def test_server_when_it_listens_at_any_family_then_it_is_reached(host):
    wire = WireConfig(unix_sockets=False)
    with serving(an_engine(), join_address(host, 0), host=host) as server:
        transport = FleetNetwork(TOKEN, wire)
        try:
            count(transport, server.address)
            used = {connection.family for peer in transport._pool._peers.values() for connection in peer.idle}
        finally:
            transport.close()
    assert used == {socket.AF_INET6 if host == "::1" else socket.AF_INET}


@pytest.mark.parametrize("host", HOSTS)
def test_run_when_it_listens_at_any_family_then_it_is_joined(host):
    run = RunState(1, Clocks(1, 0), Ignores())
    with ExitStack() as stack:
        face = RunServer(run, Binding(host, host), TOKEN, WireConfig())
        stack.callback(face.stop)
        stack.callback(run.fail, StoppedError("the test is over"))
        control = RunControl(face.address, TOKEN)
        stack.callback(control.close)
        assert split_address(face.address)[0] == host
        assert control.join(0, 1, "host", 1).workers == 1


@pytest.mark.parametrize("host", HOSTS)
def test_metrics_when_listening_on_any_family_then_are_scraped(host):
    exposition = Exposition(CollectorRegistry(), (host, ANY_PORT), "--metrics-port")
    try:
        with urllib.request.urlopen(f"http://{exposition.address}/ready", timeout=10) as answer:
            assert answer.status == 200
    finally:
        exposition.stop()


# -- never reached ---------------------------------------------------------------------------------------------------


def test_run_when_never_reached_then_settings_are_named(monkeypatch):
    monkeypatch.setattr(run_control, "FIRST_CONTACT_S", 0.1)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(UnreachableError) as caught:
        RunControl(address, TOKEN).join(0, 1, "host", 1)
    message = str(caught.value)
    assert message.startswith(f"the driver's run at {address} was never reached from {socket.gethostname()}: ")
    assert "refused" in message
    assert "bindAddress" in message


def test_run_when_nothing_answers_then_the_settings_are_named(monkeypatch):
    monkeypatch.setattr(run_control, "GIVE_UP_S", 0.3)
    monkeypatch.setattr(worker_channel, "CONNECT_TIMEOUT_S", 0.31)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UnreachableError, match=rf"^the driver's run at {address} was never reached .*: timed out"):
            RunControl(address, TOKEN).join(0, 1, "host", 1)


@pytest.mark.parametrize(
    ("method", "what"), [("Master/GetMatrix", "the driver's master"), ("Server/Hello", "a server")]
)
def test_call_when_task_never_reached_fleet_then_names_settings(method, what):
    address = f"127.0.0.1:{free_port()}"
    transport = FleetNetwork(TOKEN, has_addresses_of_driver=True)
    try:
        with pytest.raises(UnreachableError, match=rf"^{what} at {address} was never reached from .*bindAddress"):
            transport._channel(address).call(method, b"", 5.0)
    finally:
        transport.close()


def test_call_when_task_reached_fleet_before_then_is_unavailable():
    transport = FleetNetwork(TOKEN, has_addresses_of_driver=True)
    try:
        with serving(an_engine()) as server:
            ServerControl(transport).status(server.address)
        with pytest.raises(UnavailableError) as caught:
            ServerControl(transport).status(server.address)
        assert not isinstance(caught.value, UnreachableError)
    finally:
        transport.close()
