"""Connections with TLS: who is let in, what is said to the others, and certificates that change."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from ps2.certificates import TlsFiles
from ps2.config import WireConfig
from ps2.errors import AuthError, ConfigError, PS2Error
from ps2.wire.messages import Reply
from ps2.wire.tls_connection import TlsConnection
from ps2.wire.transport import GrpcTransport
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
def calling(tls, plain=True, token=TOKEN):
    transport = GrpcTransport(token, over(tls), plain)
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


@pytest.mark.parametrize("plain", [True, False], ids=["data port", "gRPC"])
def test_requests_when_both_sides_have_certificates_then_they_go_through(server, files, plain):
    values = np.random.default_rng(1).normal(size=BLOCK)
    with calling(files, plain) as transport:
        (written,) = outcomes(transport, server.address, changing(op("push", 0, arrays=[values], start=0)))
        assert isinstance(written, Reply), written
        into = np.empty(BLOCK)
        (read,) = outcomes(transport, server.address, reading(op("pull", 0, start=0, stop=BLOCK, into=into)))
        connections = [c for peer in transport._peers.values() for c in peer.idle]
    assert isinstance(read, Reply), read
    assert np.array_equal(into, values)
    assert all(isinstance(c, TlsConnection) and c._tls.version() == "TLSv1.3" for c in connections)
    assert bool(connections) == plain


WRONG = {
    "another host's": ({"names": ["server.example"]}, "mismatch"),
    "expired": ({"expired": True}, "certificate has expired"),
    "of another authority": ({"signed_by": "a stranger's", "believed": "the fleet's"}, "unable to get local issuer"),
}


@pytest.mark.parametrize("which", WRONG)
def test_a_certificate_when_it_is_not_to_be_believed_then_the_client_is_told_why(tmp_path, files, which):
    given, expected = WRONG[which]
    with serving(an_engine(), wire=over(write(tmp_path, **given))) as served:
        error = refusal(files, served.address)
    assert isinstance(error, AuthError), error
    assert expected in str(error)
    assert served.address in str(error)


CALLERS = {
    "none": ({}, "there is none"),
    "expired": ({"expired": True}, "certificate has expired"),
    "of another authority": ({"signed_by": "a stranger's"}, "unable to get local issuer"),
}


@pytest.mark.parametrize("which", CALLERS)
def test_a_client_when_its_certificate_will_not_do_then_it_is_told_so(tmp_path, server, which):
    given, expected = CALLERS[which]
    own = write(tmp_path, **given)
    error = refusal(TlsFiles(ca=own.ca) if which == "none" else own, server.address)
    assert isinstance(error, AuthError), error
    assert "does not take this side's certificate" in str(error)
    assert expected in str(error)


def test_a_client_without_certificates_when_the_server_speaks_tls_then_it_is_told_so(server):
    error = refusal(None, server.address)
    assert isinstance(error, ConfigError)
    assert "it speaks TLS" in str(error)


def test_a_client_with_certificates_when_the_server_has_none_then_it_is_told_so(files):
    with serving(an_engine()) as served:
        error = refusal(files, served.address)
    assert isinstance(error, ConfigError)
    assert "does not speak TLS" in str(error)
