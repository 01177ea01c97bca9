"""Connections with TLS: who is let in, what is said to the others, and certificates that change."""

from __future__ import annotations

import contextlib
import socket
from contextlib import contextmanager

import numpy as np
import pytest

from ps2.certificates import TlsFiles
from ps2.client.network import FleetNetwork
from ps2.config import WireConfig
from ps2.errors import AuthError, ConfigError, PS2Error
from ps2.protocol.messages import Reply
from ps2.transport import acceptor
from ps2.transport.tls_connection import TlsConnection
from tests.certificates import write
from tests.contract.servers import BLOCK, TOKEN, an_engine, changing, op, outcomes, reading, serving


def over(tls):
    return WireConfig(tls=tls, unix_sockets=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write(tmp_path_factory.mktemp("fleet"))


@pytest.fixture(scope="module")
def server(files):
    with serving(an_engine(), wire=over(files)) as served:
        yield served


@contextmanager
def calling(tls, token=TOKEN):
    transport = FleetNetwork(token, over(tls))
    try:
        yield transport
    finally:
        transport.close()


def refusal(tls, address, **kwargs):
    """What a client is told that is not let in."""
    with calling(tls, **kwargs) as transport:
        (outcome,) = outcomes(transport, address, reading(op("sum", 0)))
    assert isinstance(outcome, PS2Error)
    return outcome


def test_requests_when_both_sides_have_certificates_then_succeed(server, files):
    values = np.random.default_rng(1).normal(size=BLOCK)
    with calling(files) as transport:
        (written,) = outcomes(transport, server.address, changing(op("push", 0, arrays=[values], start=0)))
        assert isinstance(written, Reply), written
        into = np.empty(BLOCK)
        (read,) = outcomes(transport, server.address, reading(op("pull", 0, start=0, stop=BLOCK, into=into)))
        connections = [c for peer in transport._pool._peers.values() for c in peer.idle]
    assert isinstance(read, Reply), read
    assert np.array_equal(into, values)
    assert all(isinstance(c, TlsConnection) and c._tls.version() == "TLSv1.3" for c in connections)
    assert connections


WRONG = {
    "another host's": ({"names": ["server.example"]}, "mismatch"),
    "expired": ({"expired": True}, "certificate has expired"),
    "of another authority": (
        {"signed_by": "another's", "believed": "the fleet's"},
        "unable to get local issuer",
    ),
}


@pytest.mark.parametrize("which", WRONG)
def test_certificate_when_not_trusted_then_client_is_told_why(tmp_path, files, which):
    inputs, expected = WRONG[which]
    with serving(an_engine(), wire=over(write(tmp_path, **inputs))) as served:
        error = refusal(files, served.address)
    assert isinstance(error, AuthError), error
    assert expected in str(error)
    assert served.address in str(error)


CALLERS = {
    "none": ({}, "it has none"),
    "expired": ({"expired": True}, "certificate has expired"),
    "of another authority": ({"signed_by": "another's"}, "unable to get local issuer"),
}


@pytest.mark.parametrize("which", CALLERS)
def test_client_when_its_certificate_is_rejected_then_is_told_so(tmp_path, server, which):
    inputs, expected = CALLERS[which]
    own = write(tmp_path, **inputs)
    error = refusal(TlsFiles(ca=own.ca) if which == "none" else own, server.address)
    assert isinstance(error, AuthError), error
    assert "rejects this side's certificate" in str(error)
    assert expected in str(error)


def test_client_without_certificates_when_tls_server_then_told(server):
    error = refusal(None, server.address)
    assert isinstance(error, ConfigError)
    assert "it speaks TLS" in str(error)


def test_client_with_certificates_when_server_has_none_then_told(files):
    with serving(an_engine()) as served:
        error = refusal(files, served.address)
    assert isinstance(error, ConfigError)
    assert "does not speak TLS" in str(error)


def test_certificates_when_replaced_then_new_connections_use_new(tmp_path, files):
    own = write(tmp_path)
    with serving(an_engine(), wire=over(own)) as served, calling(files) as before:
        assert isinstance(outcomes(before, served.address, reading(op("sum", 0)))[0], Reply)
        write(tmp_path, expired=True)
        assert "certificate has expired" in str(refusal(files, served.address))
        assert isinstance(outcomes(before, served.address, reading(op("sum", 0)))[0], Reply)
        write(tmp_path)
        (tmp_path / "key.pem").write_text("-----BEGIN nothing that a key could be")
        with calling(files) as while_broken:
            assert "certificate has expired" in str(outcomes(while_broken, served.address, reading(op("sum", 0)))[0])
        write(tmp_path)
        with calling(files) as again:
            assert isinstance(outcomes(again, served.address, reading(op("sum", 0)))[0], Reply)


def test_client_certificate_when_replaced_then_transport_uses_it(tmp_path, server):
    own = write(tmp_path, expired=True)
    with calling(own) as transport:
        (refused,) = outcomes(transport, server.address, reading(op("sum", 0)))
        assert "certificate has expired" in str(refused)
        write(tmp_path)
        assert isinstance(outcomes(transport, server.address, reading(op("sum", 0)))[0], Reply)


def test_certificates_when_sharing_one_name_then_host_is_ignored(tmp_path):
    named = write(tmp_path, names=["fleet.example"], tls_name="fleet.example")
    with serving(an_engine(), wire=over(named)) as served:
        with calling(named) as transport:
            assert isinstance(outcomes(transport, served.address, reading(op("sum", 0)))[0], Reply)
        by_host = TlsFiles(named.cert, named.key, named.ca)
        assert "IP address mismatch" in str(refusal(by_host, served.address))


def test_peers_when_silent_or_garbage_then_clients_served(server, files):
    host, port = "127.0.0.1", server.data.port
    with contextlib.ExitStack() as peers:
        for message in [b""] * 5 + [b"PS2D garbage", b"\x16\x03\x01\x02\x00\x01"]:
            peer = peers.enter_context(socket.create_connection((host, port), timeout=10))
            peer.sendall(message)
        with calling(files) as transport:
            assert isinstance(outcomes(transport, server.address, reading(op("sum", 0)))[0], Reply)
            (peer,) = transport._pool._peers.values()
            assert [type(connection) for connection in peer.idle] == [TlsConnection]


def test_peer_when_silent_on_data_port_then_dropped_in_time(files, monkeypatch):
    monkeypatch.setattr(acceptor, "GREETING_TIMEOUT_S", 0.2)
    with (
        serving(an_engine(), wire=over(files)) as served,
        socket.create_connection(("127.0.0.1", served.data.port), timeout=10) as silent,
    ):
        silent.sendall(b"\x16\x03\x01")
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(100) == b""


def test_the_token_when_it_is_wrong_within_tls_then_auth_error(server, files):
    error = refusal(files, server.address, token="a-wrong-token-of-nobody")
    assert isinstance(error, AuthError)
    assert "this is not the fleet's token" in str(error)


def other_key(folder):
    before = (folder / "cert.pem").read_bytes()
    write(folder)
    (folder / "cert.pem").write_bytes(before)


UNUSABLE = {
    "a key of another certificate": (
        other_key,
        "the private key does not belong to the certificate",
    ),
    "a key that others can read": (lambda folder: (folder / "key.pem").chmod(0o644), "chmod 600"),
    "no certificate there": (lambda folder: (folder / "cert.pem").unlink(), "certificate file .*No such file"),
    "no PEM text": (lambda folder: (folder / "ca.pem").write_text("hello"), "expected PEM text"),
    "an authority of garbage": (
        lambda folder: (folder / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"),
        "certificates: .*ca.pem",
    ),
}


@pytest.mark.parametrize("which", UNUSABLE)
def test_server_when_tls_files_are_unusable_then_names_them(tmp_path, which):
    spoil, expected = UNUSABLE[which]
    own = write(tmp_path)
    spoil(tmp_path)
    with pytest.raises((ConfigError, AuthError), match=expected), serving(an_engine(), wire=over(own)):
        pass


def test_large_requests_when_many_at_once_then_all_arrive(server, files):
    values = np.random.default_rng(2).normal(size=BLOCK)
    into = [np.empty(BLOCK) for _ in range(8)]
    with calling(files) as transport:
        requests = [changing(op("push", 0, arrays=[values], start=0))]
        requests += [reading(op("pull", 0, start=0, stop=BLOCK, into=out)) for out in into]
        replies = outcomes(transport, server.address, *requests)
    assert all(isinstance(reply, Reply) for reply in replies), replies
    assert all(np.array_equal(out, values) for out in into)
