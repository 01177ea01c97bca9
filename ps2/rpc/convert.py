"""Conversion between plain data and the contract's messages, for the control plane."""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

import numpy as np

from ps2.errors import ProtocolError
from ps2.matrix.key_policy import Initial, InitialKind, KeyPolicy
from ps2.matrix.partition import DTYPES, Layout, MatrixSpec, Partition
from ps2.matrix.route import Route
from ps2.protocol.arrays import DTYPE_NUMBERS, DTYPES_BY_NUMBER, WIRE_NUMBERS, WIRES_BY_NUMBER
from ps2.protocol.messages import RequestId
from ps2.protocol.pb import master_pb2, server_pb2
from ps2.storage.manifest import LoadMatrix, SavedFile, SavedShard

LAYOUT_TO_PB: dict[Layout, server_pb2.Layout] = {"row": server_pb2.ROW, "column": server_pb2.COLUMN}
PB_TO_LAYOUT = {number: layout for layout, number in LAYOUT_TO_PB.items()}


def id_to_pb(id: RequestId) -> server_pb2.RequestId:
    return server_pb2.RequestId(
        scope=id.scope,
        number=id.number,
        settled=id.settled,
        part=id.part,
        parts=id.parts,
        series=id.series,
        stage=id.stage,
    )


def id_from_pb(id: server_pb2.RequestId) -> RequestId:
    return RequestId(id.scope, id.number, id.settled, id.part, max(id.parts, 1), id.series, id.stage)


def spec_to_pb(spec: MatrixSpec) -> server_pb2.MatrixSpec:
    return server_pb2.MatrixSpec(
        dim=spec.dim,
        rows=spec.rows,
        dtype=server_pb2.DType.Name(DTYPE_NUMBERS[np.dtype(spec.dtype)]),
        sparse=spec.kind == "sparse",
        align=spec.align,
        partitions_per_server=spec.partitions_per_server,
        wire=server_pb2.DType.Name(WIRE_NUMBERS[spec.wire]),
        layout=LAYOUT_TO_PB[spec.layout],
        life=None if spec.key_policy is None else _key_policy_to_pb(spec.key_policy),
    )


def spec_from_pb(message: server_pb2.MatrixSpec) -> MatrixSpec:
    dtype = DTYPES_BY_NUMBER.get(message.dtype)
    if dtype is None or dtype.name not in DTYPES:
        raise ProtocolError(f"a matrix of unknown dtype {message.dtype}")
    if message.wire not in WIRES_BY_NUMBER:
        raise ProtocolError(f"a matrix of unknown wire dtype {message.wire}")
    if message.layout not in PB_TO_LAYOUT:
        raise ProtocolError(f"a matrix of unknown layout {message.layout}")
    return MatrixSpec(
        dim=message.dim,
        rows=message.rows,
        dtype=dtype.name,
        kind="sparse" if message.sparse else "dense",
        align=message.align,
        partitions_per_server=message.partitions_per_server,
        wire=WIRES_BY_NUMBER[message.wire],
        layout=PB_TO_LAYOUT[message.layout],
        key_policy=_key_policy_from_pb(message.life) if message.HasField("life") else None,
    )


def _key_policy_to_pb(policy: KeyPolicy) -> server_pb2.KeyLife:
    return server_pb2.KeyLife(
        admit_after=policy.admit_after,
        expire_after_s=policy.expire_after_s or 0,
        max_keys=policy.max_keys or 0,
        initial=server_pb2.Initial(**asdict(policy.initial)),
        event_clock=policy.clock == "event",
    )


def _key_policy_from_pb(message: server_pb2.KeyLife) -> KeyPolicy:
    initial = message.initial
    return KeyPolicy(
        message.admit_after,
        message.expire_after_s or None,
        message.max_keys or None,
        Initial(cast(InitialKind, initial.kind), initial.scale, initial.seed, initial.begin, initial.end),
        "event" if message.event_clock else "wall",
    )


def partition_to_pb(partition: Partition) -> server_pb2.Partition:
    return server_pb2.Partition(index=partition.index, begin=partition.begin, end=partition.end)


def partition_from_pb(message: server_pb2.Partition) -> Partition:
    if message.begin >= message.end:
        raise ProtocolError(f"partition {message.index} is [{message.begin}, {message.end}): expected begin < end")
    return Partition(message.index, message.begin, message.end)


def route_to_pb(route: Route) -> master_pb2.Route:
    return master_pb2.Route(version=route.version, bounds=route.bounds, addresses=route.addresses)


def route_from_pb(message: master_pb2.Route) -> Route:
    return Route(message.version, tuple(message.bounds), tuple(message.addresses))


def saved_shard_to_pb(shard: SavedShard) -> server_pb2.SavedShard:
    return server_pb2.SavedShard(
        matrix=shard.matrix,
        partition=partition_to_pb(shard.partition),
        files={
            kind: server_pb2.SavedFile(name=file.name, bytes=file.nbytes, xxh3=file.xxh3)
            for kind, file in shard.files.items()
        },
    )


def saved_shard_from_pb(message: server_pb2.SavedShard) -> SavedShard:
    files = {kind: SavedFile(file.name, file.bytes, file.xxh3) for kind, file in message.files.items()}
    return SavedShard(message.matrix, partition_from_pb(message.partition), files)


def load_matrix_to_pb(matrix: LoadMatrix) -> server_pb2.LoadMatrix:
    return server_pb2.LoadMatrix(
        matrix=matrix.matrix,
        spec=spec_to_pb(matrix.spec),
        partitions=map(partition_to_pb, matrix.partitions),
        saved=spec_to_pb(matrix.saved),
        sources=map(saved_shard_to_pb, matrix.sources),
        unused=matrix.unused,
        zeros=matrix.zeros,
        rows=matrix.rows,
    )


def load_matrix_from_pb(message: server_pb2.LoadMatrix) -> LoadMatrix:
    return LoadMatrix(
        message.matrix,
        spec_from_pb(message.spec),
        tuple(map(partition_from_pb, message.partitions)),
        spec_from_pb(message.saved),
        tuple(map(saved_shard_from_pb, message.sources)),
        tuple(message.rows),
        tuple(message.unused),
        tuple(message.zeros),
    )
