"""A client made of the contract's generated classes and plain gRPC, and nothing of ours, can use a server.

This is what a client in another language does.
"""

from __future__ import annotations

import struct

import grpc
import pytest

from ps2.config import WireConfig
from ps2.server.engine import Engine
from ps2.server.servicer import ServerServicer
from ps2.wire.pb import server_pb2 as pb
from ps2.wire.serving import RpcServer

TOKEN = "a-token-of-the-fleet"
MATRIX = 42
DIM = 5000
VALUES = [float(k) for k in range(DIM)]


@pytest.fixture(scope="module")
def call():
    """``call(method, message)``, or ``call("Stream", messages)``: the reply, or the list of replies."""
    service = pb.DESCRIPTOR.services_by_name["Server"]
    servicer = ServerServicer(Engine(1 << 24, allow_udf=False), "id", WireConfig(chunk_bytes=1000), lambda: None)
    server = RpcServer(service, servicer, "127.0.0.1:0", TOKEN, 4, WireConfig())
    metadata = (("authorization", f"Bearer {TOKEN}"),)
    with grpc.insecure_channel(server.address) as channel:

        def call(method, message):
            rpc = service.methods_by_name[method]
            reply = getattr(pb, rpc.output_type.name).FromString
            path = f"/ps2.v1.Server/{method}"
            if rpc.client_streaming:
                invoke = channel.stream_stream(path, getattr(pb, rpc.input_type.name).SerializeToString, reply)
                return list(invoke(iter(message), metadata=metadata))
            return channel.unary_unary(path, type(message).SerializeToString, reply)(message, metadata=metadata)

        spec = pb.MatrixSpec(dim=DIM, rows=2, dtype=pb.FLOAT64, align=1, partitions_per_server=1)
        whole = pb.Partition(index=0, begin=0, end=DIM)
        call("CreateMatrix", pb.CreateMatrixRequest(matrix=MATRIX, spec=spec, partitions=[whole]))
        yield call
    server.stop(0)


def operation(name, row, *arrays, **params):
    return pb.Operation(
        name=name,
        matrix=MATRIX,
        partition=0,
        rows=[row],
        params=[pb.Param(name=key, whole=value) for key, value in params.items()],
        arrays=[pb.ArraySpec(dtype=dtype, count=count) for dtype, count in arrays],
    )


def push(row, number):
    return pb.RequestHeader(
        id=pb.RequestId(scope="theirs", number=number),
        operations=[operation("push_add", row, (pb.FLOAT64, DIM), start=0)],
    )


def pull(row):
    return pb.RequestHeader(operations=[operation("pull", row, start=0, stop=DIM)])


def doubles(data):
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def test_hello_when_the_protocol_is_ours_then_it_is_answered(call):
    assert call("Hello", pb.HelloRequest(protocol=1)).server_id == "id"


def test_push_and_pull_when_unary_then_the_values_come_back(call):
    data = struct.pack(f"<{DIM}d", *VALUES)
    pushed = call("Execute", pb.RequestFrame(header=push(0, 0), data=data))
    pulled = call("Execute", pb.RequestFrame(header=pull(0)))
    assert len(pushed.header.results) == 1
    assert [(spec.dtype, spec.count) for spec in pulled.header.results[0].arrays] == [(pb.FLOAT64, DIM)]
    assert doubles(pulled.data) == VALUES


def test_push_and_pull_when_streamed_in_odd_pieces_then_the_values_come_back(call):
    """A frame may end within an element, and have no data at all."""
    data = struct.pack(f"<{DIM}d", *VALUES)
    pieces = [b"", data[:7], b"", data[7:20_001], data[20_001:]]
    call("Stream", [pb.RequestFrame(header=push(1, 1)), *(pb.RequestFrame(data=piece) for piece in pieces)])
    frames = call("Stream", [pb.RequestFrame(header=pull(1))])
    assert len(frames) == DIM * 8 // 1000
    assert doubles(b"".join(frame.data for frame in frames)) == VALUES


def test_push_when_its_id_comes_again_then_the_reply_says_replayed(call):
    frame = pb.RequestFrame(header=push(0, 9), data=bytes(8 * DIM))
    assert [call("Execute", frame).header.replayed for _ in range(2)] == [False, True]


def test_reduction_when_asked_then_its_scalar_comes(call):
    header = pb.RequestHeader(operations=[operation("count", 0)])
    (result,) = call("Execute", pb.RequestFrame(header=header)).header.results
    assert (result.HasField("scalar"), result.scalar) == (True, DIM)


def test_error_when_an_operation_fails_then_the_detail_names_class_and_reason(call):
    header = pb.RequestHeader(operations=[operation("no_such", 0)])
    with pytest.raises(grpc.RpcError) as caught:
        call("Execute", pb.RequestFrame(header=header))
    trailing = dict(caught.value.trailing_metadata())
    detail = pb.ErrorDetail.FromString(trailing["ps2-error-bin"])
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert (detail.type, "no operation 'no_such'" in detail.message) == ("NotFoundError", True)


def test_rows_when_updated_then_status_tells_of_them(call):
    call("UpdateRows", pb.UpdateRowsRequest(matrix=MATRIX, rows=3))
    (matrix,) = call("Status", pb.StatusRequest()).matrices
    assert (matrix.matrix, matrix.rows, matrix.bytes, matrix.spec.dim) == (MATRIX, 3, 3 * DIM * 8, DIM)


def test_matrix_when_freed_then_status_does_not_tell_of_it(call):
    spec = pb.MatrixSpec(dim=4, rows=1, dtype=pb.INT64, align=1, partitions_per_server=1)
    partitions = [pb.Partition(index=0, begin=0, end=4)]
    call("CreateMatrix", pb.CreateMatrixRequest(matrix=43, spec=spec, partitions=partitions))
    call("FreeMatrix", pb.FreeMatrixRequest(matrix=43))
    assert [matrix.matrix for matrix in call("Status", pb.StatusRequest()).matrices] == [MATRIX]
