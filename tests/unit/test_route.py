"""A route says where each partition is, and survives the wire."""

from __future__ import annotations

import pickle

import pytest

from ps2.errors import ProtocolError
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.matrix.route import Route
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc import convert

ROUTE = Route(3, (0, 5, 9, 12), ("a:1", "a:1", "b:2"))
SPECS = [
    MatrixSpec(100, 4, dtype="float64", align=8, partitions_per_server=2),
    MatrixSpec(2**63, 1, dtype="int64", kind="sparse"),
]


def test_route_when_listing_servers_then_each_appears_once():
    assert ROUTE.servers == ("a:1", "b:2")


def test_route_when_listing_partitions_then_cuts_at_bounds():
    assert ROUTE.partitions == (Partition(0, 0, 5), Partition(1, 5, 9), Partition(2, 9, 12))


def test_route_when_pickled_then_it_comes_back_equal():
    assert pickle.loads(pickle.dumps(ROUTE)) == ROUTE


def test_route_when_sent_then_it_comes_back_equal():
    assert convert.route_from_pb(convert.route_to_pb(ROUTE)) == ROUTE


@pytest.mark.parametrize("spec", SPECS)
def test_spec_when_sent_then_it_comes_back_equal(spec):
    assert convert.spec_from_pb(convert.spec_to_pb(spec)) == spec


def test_partition_when_sent_then_it_comes_back_equal():
    assert convert.partition_from_pb(convert.partition_to_pb(Partition(2, 9, 12))) == Partition(2, 9, 12)


@pytest.mark.parametrize(("begin", "end"), [(3, 3), (4, 3)])
def test_partition_when_empty_or_reversed_then_protocol_error(begin, end):
    with pytest.raises(ProtocolError, match=rf"partition 7 is \[{begin}, {end}\)"):
        convert.partition_from_pb(pb.Partition(index=7, begin=begin, end=end))


@pytest.mark.parametrize("dtype", [pb.DTYPE_UNSPECIFIED, 9])
def test_spec_when_its_dtype_is_unknown_then_protocol_error(dtype):
    with pytest.raises(ProtocolError, match=f"unknown dtype {dtype}"):
        convert.spec_from_pb(pb.MatrixSpec(dim=1, rows=1, dtype=dtype, align=1, partitions_per_server=1))
