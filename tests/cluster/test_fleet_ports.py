"""A fleet over IPv6 alone, on ports that it was told."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV, PS2Conf, PS2Context
from ps2.config import split_address
from ps2.errors import LaunchError
from tests.ports import free_port

pytestmark = pytest.mark.usefixtures("leaves_nothing")
PORTS = 6


def test_fleet_when_at_ipv6_then_all_of_it_is_on_the_given_ports():
    first = free_port(PORTS)
    inputs = range(first, first + PORTS)
    conf = PS2Conf(bindAddress="[::1]", ports=f"{first}-{first + PORTS - 1}")
    with PS2Context.getOrCreate(servers=2, replicas=1, conf=conf) as ps:
        weight = DCV.dense(10).fill(1.0)
        weight.add(np.ones(10))
        result = [split_address(address) for address in (*ps.servers, ps._coordinator.fleet.address)]
        data = [ps._coordinator.session.network._identify(address).addresses[-1][1][1] for address in ps.servers]
        assert weight.sum() == 20.0
    assert {host for host, _ in result} == {"::1"}
    assert len({*data, *(port for _, port in result)} & set(inputs)) == PORTS - 1  # one is a run's


def test_fleet_when_all_ports_are_taken_then_error_names_them():
    from ps2.listening import listening_socket

    first = free_port(4)
    taken = [listening_socket("127.0.0.1", [port], 1) for port in range(first, first + 4)]
    try:
        with pytest.raises(LaunchError, match=rf"127\.0\.0\.1:{first}-{first + 3}: all of the ports are in use"):
            PS2Context.getOrCreate(servers=1, conf=PS2Conf(ports=f"{first}-{first + 3}"))
    finally:
        for listener in taken:
            listener.close()


def test_fleet_when_not_at_advertised_address_then_reports_it():
    with pytest.raises(
        LaunchError, match=r"^advertiseAddress: this host does not reach its own servers at 127\.0\.0\.9"
    ):
        PS2Context.getOrCreate(servers=1, conf=PS2Conf(advertiseAddress="127.0.0.9"))
