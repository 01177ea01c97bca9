"""Hosts and ports of both families are read, written and judged in one way."""

from __future__ import annotations

import re
import socket

import pytest

from ps2 import listening
from ps2.config import (
    Binding,
    is_loopback,
    is_wildcard,
    join_address,
    read_host,
    read_ports,
    split_address,
    split_listen,
)
from ps2.errors import ConfigError
from ps2.listening import is_free, listening_socket, reachable_host, resolve
from ps2.transport.sockets import connect

ONLY_V6 = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))]


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("host:7070", "host", 7070),
        ("10.0.0.1:1", "10.0.0.1", 1),
        ("[::1]:7070", "::1", 7070),
        ("[fe80::1%eth0]:2", "fe80::1%eth0", 2),
    ],
)
def test_address_when_of_any_family_then_it_is_split_and_joined(address, host, port):
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address


@pytest.mark.parametrize(
    "address", ["::1:7070", "fe80::1", "host", "host:", ":1", "host:65536", "h:1-2", "[h]x:1", "a b:1", "h:\u0661"]
)
def test_address_when_it_cannot_be_told_apart_then_config_error(address):
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        split_address(address)


@pytest.mark.parametrize("address", ["::1:7070", "[::1]:99999", "host"])
def test_listen_when_wrong_then_config_error_names_the_option(address):
    with pytest.raises(ConfigError, match=rf"^--listen: expected HOST:PORT.*{re.escape(address)}"):
        split_listen(address, "--listen")


def test_listen_when_ports_are_a_range_then_all_of_it_is_meant():
    assert split_listen("[::]:7070-7072") == ("::", range(7070, 7073))


@pytest.mark.parametrize("text", ["", "x", "3-", "-3", "5-4", "0-5", "70000", "1-70000", "1-2-3"])
def test_ports_when_invalid_then_config_error_names_option(text):
    with pytest.raises(ConfigError, match=r"^--ports: expected"):
        read_ports(text, "--ports")


@pytest.mark.parametrize(("given", "host"), [("[::1]", "::1"), ("::1", "::1"), ("host", "host")])
def test_host_when_in_brackets_then_it_goes_without(given, host):
    assert read_host(given, "bindAddress") == host


@pytest.mark.parametrize("given", ["", "host:80", "[::1]:80", "a,b", "http://h", "[::1"])
def test_host_when_it_has_more_than_a_name_then_config_error(given):
    with pytest.raises(ConfigError, match=r"^bindAddress: expected a name or an address of a host, without a port"):
        read_host(given, "bindAddress")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True), ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("0:0:0:0:0:0:0:1", True),
        ("::ffff:127.0.0.1", True), ("127.example.org", False), ("host", False), ("10.0.0.1", False), ("::", False),
        ("fd00::1", False), ("::ffff:10.0.0.1", False),
    ],
)  # fmt: skip
def test_loopback_when_a_name_only_looks_like_it_then_it_is_none(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("host", "expected"), [("0.0.0.0", True), ("::", True), ("0::0", True), ("::1", False), ("h", False)]
)
def test_wildcard_when_written_in_any_way_then_it_is_known(host, expected):
    assert is_wildcard(host) is expected


@pytest.mark.parametrize(
    ("place", "listen", "reached", "near"),
    [
        (Binding(), "127.0.0.1:0", "127.0.0.1:5", "127.0.0.1:5"),
        (Binding("::", "host1", range(40, 43)), "[::]:40-42", "host1:5", "[::1]:5"),
        (Binding("0.0.0.0", "fd00::1"), "0.0.0.0:0", "[fd00::1]:5", "127.0.0.1:5"),
        (Binding("10.0.0.1", "nat"), "10.0.0.1:0", "nat:5", "10.0.0.1:5"),
    ],
)
def test_place_when_reached_otherwise_then_others_are_told_how(place, listen, reached, near):
    assert place.listen == listen
    assert place.advertised_address("[::]:5") == reached
    assert place.local.advertised_address("0.0.0.0:5") == near


def test_ports_when_the_first_is_taken_then_the_next_one_is():
    with listening_socket("127.0.0.1", [0], 1) as first:
        port = first.getsockname()[1]
        with listening_socket("127.0.0.1", [port, 0], 1) as second:
            assert second.getsockname()[1] != port
        assert not is_free(socket.AF_INET, ("127.0.0.1", port))
        with pytest.raises(OSError, match="in use"):
            listening_socket("127.0.0.1", [port], 1)


def test_name_when_first_address_is_not_local_then_uses_next(monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("192.0.2.77", "127.0.0.1")]
    monkeypatch.setattr(listening.socket, "getaddrinfo", lambda *_, **__: found)
    assert resolve("host1", 0) == (socket.AF_INET, ("127.0.0.1", 0))


def test_name_when_it_has_only_ipv6_then_is_reached(monkeypatch):
    with listening_socket("::1", [0], 1) as listener:
        position = listener.getsockname()
        monkeypatch.setattr(listening.socket, "getaddrinfo", lambda *_, **__: [(*ONLY_V6[0][:4], position)])
        with connect(socket.AF_UNSPEC, ("host1", position[1]), 5.0) as connection:
            assert connection.family == socket.AF_INET6


def test_name_when_first_address_does_not_listen_then_tries_next():
    with listening_socket("127.0.0.1", [0], 1) as listener:
        port = listener.getsockname()[1]
        with connect(socket.AF_UNSPEC, ("localhost", port), 5.0) as connection:
            assert connection.getpeername() == ("127.0.0.1", port)


def test_wildcard_when_host_has_no_ipv6_then_uses_ipv4(monkeypatch):
    monkeypatch.setattr(listening, "has_ipv6", lambda: False)
    assert resolve("::", 0) == (socket.AF_INET, ("0.0.0.0", 0))


@pytest.mark.parametrize(
    ("resolved", "expected"),
    [(["127.0.1.1"], "10.9.8.7"), (["203.0.113.9"], "10.9.8.7"), (["10.9.8.7"], "host1"), ([], "10.9.8.7")],
    ids=["loopback", "another's", "its own", "none"],
)
def test_reachable_when_name_does_not_resolve_then_is_address(monkeypatch, resolved, expected):
    def found(*_, **__):
        if not resolved:
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, 1, 6, "", (address, 0)) for address in resolved]

    monkeypatch.setattr(listening.socket, "gethostname", lambda: "host1")
    monkeypatch.setattr(listening.socket, "getaddrinfo", found)
    monkeypatch.setattr(listening, "_is_own", lambda address: address in ("10.9.8.7", "127.0.1.1", "127.0.0.1"))
    monkeypatch.setattr(listening, "_own_addresses", lambda: iter(["10.9.8.7"]))
    assert reachable_host() == expected


def test_listener_when_it_accepts_then_small_parts_go_at_once():
    with listening_socket("127.0.0.1", [0], 1) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
