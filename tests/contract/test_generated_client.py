"""A client made of the contract's generated classes and plain gRPC, and nothing of ours, can use a server.

This is what a client in another language does.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

import grpc
import pytest

from ps2.config import WireConfig
from ps2.protocol.messages import PROTOCOL_VERSION
from ps2.protocol.pb import auth_pb2 as auth
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc.serving import RpcServer
from ps2.server.engine import Engine
from ps2.server.namespaces import Namespaces
from ps2.server.servicer import ServerServicer

TOKEN = "a-token-of-the-fleet"
MATRIX = 42
DIM = 5000
DIGEST = "b533f03531955f168943c33a99246b93"
VALUES = [float(k) for k in range(DIM)]


def hmac_of(key, *parts):
    return hmac.digest(key, b"".join(parts), "sha256")


class Client:
    """The handshake of ``auth.proto``, as another language would have it."""

    def __init__(self, channel):
        self.channel = channel
        self.nonce = bytes(range(32))
        challenge = channel.unary_unary(
            "/ps2.v1.Auth/Challenge",
            auth.ChallengeRequest.SerializeToString,
            auth.ChallengeReply.FromString,
        )
        reply = challenge(auth.ChallengeRequest(), metadata=(("ps2-nonce-bin", self.nonce),))
        assert reply.proof == hmac_of(TOKEN.encode(), b"ps2 server", self.nonce, reply.nonce)
        self.server_nonce = reply.nonce
        self.key = hmac_of(TOKEN.encode(), b"ps2 session", self.nonce, reply.nonce)
        self.calls = 0

    def call(self, path, message, reply):
        data = message.SerializeToString()
        number, metadata = self.proven(path, data)
        answer, finished = self.channel.unary_unary(path).with_call(data, metadata=metadata)
        assert dict(finished.trailing_metadata())["ps2-proof-bin"] == self.proof_of(b"reply", number, answer)
        return reply.FromString(answer)

    def proven(self, path, data):
        """Return the number of a call, and the metadata that it carries."""
        number, self.calls = self.calls, self.calls + 1
        digest = hashlib.sha256(data).digest()
        call = auth.CallProof(
            client_nonce=self.nonce,
            server_nonce=self.server_nonce,
            number=number,
            digest=digest,
            proof=hmac_of(self.key, b"call", struct.pack(">Q", number), digest, path.encode()),
        )
        return number, (("ps2-call-bin", call.SerializeToString()),)

    def proof_of(self, kind, number, data):
        return hmac_of(self.key, kind, struct.pack(">Q", number), hashlib.sha256(data).digest())


@pytest.fixture(scope="module")
def client():
    service = pb.DESCRIPTOR.services_by_name["Server"]
    servicer = ServerServicer(Namespaces(Engine(1 << 24, allow_udf=False)), "id", WireConfig(), lambda: None)
    server = RpcServer(service, servicer, "127.0.0.1:0", TOKEN, 4, WireConfig())
    with grpc.insecure_channel(server.address) as channel:
        yield Client(channel)
    server.stop(0)


@pytest.fixture(scope="module")
def call(client):
    """``call(method, message)``: the reply."""

    def call(method, message):
        rpc = pb.DESCRIPTOR.services_by_name["Server"].methods_by_name[method]
        return client.call(f"/ps2.v1.Server/{method}", message, getattr(pb, rpc.output_type.name))

    spec = pb.MatrixSpec(dim=DIM, rows=2, dtype=pb.FLOAT64, align=1, partitions_per_server=1)
    whole = pb.Partition(index=0, begin=0, end=DIM)
    call("CreateMatrix", pb.CreateMatrixRequest(matrix=MATRIX, spec=spec, partitions=[whole]))
    return call


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
    assert call("Hello", pb.HelloRequest(protocol=PROTOCOL_VERSION)).server_id == "id"


def test_push_and_pull_when_unary_then_the_values_come_back(call):
    data = struct.pack(f"<{DIM}d", *VALUES)
    pushed = call("Execute", pb.RequestFrame(header=push(0, 0), data=data))
    pulled = call("Execute", pb.RequestFrame(header=pull(0)))
    assert len(pushed.header.results) == 1
    assert [(spec.dtype, spec.count) for spec in pulled.header.results[0].arrays] == [(pb.FLOAT64, DIM)]
    assert doubles(pulled.data) == VALUES


def test_mutation_when_sent_in_parts_then_each_is_applied_once(call):
    """Blocks of a large push, of which each is a part of one mutation."""
    blocks = [VALUES[at : at + 1000] for at in range(0, DIM, 1000)]
    pushes = [
        pb.RequestFrame(
            header=pb.RequestHeader(
                id=pb.RequestId(scope="theirs", number=1, part=part, parts=len(blocks)),
                operations=[operation("push_add", 1, (pb.FLOAT64, 1000), start=1000 * part)],
            ),
            data=struct.pack("<1000d", *block),
        )
        for part, block in enumerate(blocks)
    ]
    replayed = [call("Execute", frame).header.replayed for frame in (*pushes, *pushes)]
    assert replayed == [False] * len(blocks) + [True] * len(blocks)
    assert doubles(call("Execute", pb.RequestFrame(header=pull(1))).data) == VALUES


def test_keys_when_sent_as_steps_then_told_hash_names_them_later(call):
    """XXH3-128 is in no standard library: the value is that of 3, 4, 260 as little-endian int64."""
    messages = pb.Keys(count=3, first=3, deltas=pb.ArraySpec(dtype=pb.UINT16, count=2), hash=bytes.fromhex(DIGEST))
    again = pb.Keys(count=3, hash=bytes.fromhex(DIGEST))
    asked = [pb.Operation(name="gather", matrix=MATRIX, rows=[0], keys=keys) for keys in (messages, again)]
    frames = [pb.RequestFrame(header=pb.RequestHeader(operations=[operation])) for operation in asked]
    frames[0].data = struct.pack("<2H", 1, 256)
    whole, first, second = [call("Execute", frame) for frame in (pb.RequestFrame(header=pull(0)), *frames)]
    expected = [doubles(whole.data)[column] for column in (3, 4, 260)]
    assert (doubles(first.data), doubles(second.data)) == (expected, expected)


def test_keys_when_unknown_to_server_then_key_miss_error(call):
    header = pb.RequestHeader(
        operations=[pb.Operation(name="gather", matrix=MATRIX, rows=[0], keys=pb.Keys(count=3, hash=bytes(16)))]
    )
    with pytest.raises(grpc.RpcError) as caught:
        call("Execute", pb.RequestFrame(header=header))
    detail = pb.ErrorDetail.FromString(dict(caught.value.trailing_metadata())["ps2-error-bin"])
    assert detail.type == "KeyMissError"


def test_floats_when_asked_as_bfloat16_then_take_two_bytes(call):
    header = pull(0)
    header.operations[0].reply_dtype = pb.BFLOAT16
    reply = call("Execute", pb.RequestFrame(header=header))
    assert [(spec.dtype, spec.count) for spec in reply.header.results[0].arrays] == [(pb.BFLOAT16, DIM)]
    assert len(reply.data) == 2 * DIM


def test_push_when_id_repeats_then_reply_says_replayed(call):
    frame = pb.RequestFrame(header=push(0, 9), data=bytes(8 * DIM))
    assert [call("Execute", frame).header.replayed for _ in range(2)] == [False, True]


def test_reduction_when_asked_then_its_scalar_comes(call):
    header = pb.RequestHeader(operations=[operation("count", 0)])
    (result,) = call("Execute", pb.RequestFrame(header=header)).header.results
    assert (result.HasField("scalar"), result.scalar) == (True, DIM)


def test_error_when_operation_fails_then_detail_is_proven(call, client):
    header = pb.RequestHeader(operations=[operation("no_such", 0)])
    with pytest.raises(grpc.RpcError) as caught:
        call("Execute", pb.RequestFrame(header=header))
    trailing = dict(caught.value.trailing_metadata())
    detail = pb.ErrorDetail.FromString(trailing["ps2-error-bin"])
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert trailing["ps2-proof-bin"] == client.proof_of(b"error", client.calls - 1, trailing["ps2-error-bin"])
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
