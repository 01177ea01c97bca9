"""Containers come and go; a server starts only when it was told to, in one container at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ps2.coordinator.launchers.containers.hosting import listen_address
from ps2.coordinator.launchers.containers.hosts import Hosts
from ps2.errors import ProtocolError
from ps2.rpc.launcher_control import ContainerReport, Order, order_to_pb, report_from_pb, report_to_pb

FIRST = ContainerReport(0, 7, "c_7", "node1", "1.0")
START = Order(1, ("server",))


@pytest.fixture
def hosts():
    """Of one server, which was ordered."""
    created = Hosts(1, "1.0")
    created.order(0, ["server"])
    return created


def test_report_when_server_was_ordered_then_host_starts_it(hosts):
    assert hosts.report(FIRST) == START
    assert hosts.report(replace(FIRST, order=1)) == START
    assert hosts.ended() == {}
    assert hosts.locations() == {0: "container c_7 on node1"}


def test_report_when_none_was_ordered_then_the_host_waits():
    assert Hosts(1, "1.0").report(FIRST) == Order()


def test_report_when_server_has_ended_then_says_how_and_where(hosts):
    hosts.report(FIRST)
    hosts.report(replace(FIRST, order=1, exit_code=-9, said="listening\nstopping"))
    (why,) = hosts.ended().values()
    assert why == "in container c_7 on node1: ended by SIGKILL; its log ends:\n  listening\n  stopping"


def test_report_when_another_container_comes_then_server_is_lost(hosts):
    hosts.report(FIRST)
    second = replace(FIRST, attempt=8, container="c_8")
    assert hosts.report(second) == Order()
    assert hosts.ended() == {0: "container c_7 on node1 is gone"}
    assert hosts.report(second) == Order()
    assert hosts.ended() == {0: "container c_7 on node1 is gone"}
    hosts.order(0, ["server"])
    assert hosts.ended() == {}
    assert hosts.report(second) == Order(2, ("server",))


def test_report_when_replaced_container_returns_then_it_goes(hosts):
    hosts.report(replace(FIRST, attempt=8))
    assert hosts.report(FIRST) == Order(leave=True)


def test_report_when_version_differs_then_refused_naming_both(hosts):
    refused = hosts.report(replace(FIRST, version="0.9")).refused
    assert refused == "container c_7 on node1 has ps2 0.9; expected 1.0, as in the driver"
    assert hosts.ended() == {0: refused}


def test_report_when_there_is_no_such_server_then_protocol_error(hosts):
    with pytest.raises(ProtocolError, match="server 3: this fleet has 1 servers"):
        hosts.report(replace(FIRST, index=3))


def test_leave_when_hosts_report_then_all_have_left(hosts):
    hosts.report(FIRST)
    hosts.leave()
    assert not hosts.are_released()
    assert hosts.report(FIRST).leave
    assert hosts.are_released()


def test_absent_when_a_container_takes_the_order_then_none_is():
    hosts = Hosts(2, "1.0")
    hosts.order(0, [])
    hosts.order(1, [])
    hosts.report(FIRST)
    assert hosts.absent() == [1]


def test_report_when_it_has_travelled_then_is_what_it_was():
    for report in (FIRST, replace(FIRST, order=3, exit_code=0, said="bye"), replace(FIRST, exit_code=-15)):
        assert report_from_pb(type(report_to_pb(report)).FromString(report_to_pb(report).SerializeToString())) == report
    reply = order_to_pb(Order(2, ("a", "b"), refused="no"))
    assert (reply.order, list(reply.arguments), reply.leave, reply.refused) == (2, ["a", "b"], False, "no")


def test_report_when_addresses_are_kept_then_next_one_is_told():
    hosts = Hosts(1, "1.0", keep_addresses=True)
    hosts.order(0, [])
    hosts.report(FIRST)
    hosts.report(replace(FIRST, order=1, address="10.0.0.1:4000"))
    assert hosts.addresses() == {0: "10.0.0.1:4000"}
    hosts.order(0, [])
    assert hosts.addresses() == {}
    assert hosts.report(replace(FIRST, attempt=8)).address == "10.0.0.1:4000"


def test_listen_address_when_predecessor_was_local_then_its_port():
    assert listen_address("10.0.0.1", "10.0.0.1:4000") == "10.0.0.1:4000"
    assert listen_address("10.0.0.2", "10.0.0.1:4000") == "10.0.0.2:0"
    assert listen_address("::1", "") == "[::1]:0"
