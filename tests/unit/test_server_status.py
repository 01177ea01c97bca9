"""How a server stands is the same on either side of the network, and nothing of the contract is left out."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from ps2.matrix.partition import HASH_SPACE, MatrixSpec, Partition
from ps2.protocol.messages import Operation, Request, RequestId
from ps2.protocol.pb import server_pb2
from ps2.rpc.server_status import ServerStatus, status_from_pb, status_to_pb
from ps2.server.engine import Engine
from ps2.server.servicer import server_status


def a_status():
    engine = Engine(1 << 30, allow_udf=True)
    engine.create_matrix(1, MatrixSpec(2**40, 2, dtype="float64", kind="sparse"), [Partition(0, 0, HASH_SPACE)])
    add = Operation("scatter_add", 1, 0, (0,), arrays=(np.array([5, 9, 700]), np.ones(3)))
    engine.execute(Request((add,), RequestId("scope", 0)))
    return server_status(
        engine.shared, [engine], server_id="abc", uptime_s=1.5, connections=4, backup="h:1", num_out_of_sync=2
    )


def test_status_when_decoded_then_is_equal_without_buckets():
    status = a_status()
    (finished,) = status.operations
    result = status_from_pb(server_pb2.StatusReply.FromString(status_to_pb(status).SerializeToString()))
    assert result == replace(status, operations=(replace(finished, buckets=()),))


def test_contract_when_compared_then_has_all_fields_and_two_sums():
    names = {field.name for field in fields(ServerStatus)}
    assert set(server_pb2.StatusReply.DESCRIPTOR.fields_by_name) == names | {"requests", "failed"}
