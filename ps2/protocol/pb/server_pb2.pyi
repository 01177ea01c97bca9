from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    FLOAT32: _ClassVar[DType]
    FLOAT64: _ClassVar[DType]
    INT64: _ClassVar[DType]
    UINT8: _ClassVar[DType]
    UINT16: _ClassVar[DType]
    UINT32: _ClassVar[DType]
    UINT64: _ClassVar[DType]
    FLOAT16: _ClassVar[DType]
    BFLOAT16: _ClassVar[DType]
    INT32: _ClassVar[DType]
    INT16: _ClassVar[DType]
    INT8: _ClassVar[DType]

class Layout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROW: _ClassVar[Layout]
    COLUMN: _ClassVar[Layout]
DTYPE_UNSPECIFIED: DType
FLOAT32: DType
FLOAT64: DType
INT64: DType
UINT8: DType
UINT16: DType
UINT32: DType
UINT64: DType
FLOAT16: DType
BFLOAT16: DType
INT32: DType
INT16: DType
INT8: DType
ROW: Layout
COLUMN: Layout

class ErrorDetail(_message.Message):
    __slots__ = ("type", "message")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ArraySpec(_message.Message):
    __slots__ = ("dtype", "count", "stored", "shape")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    count: int
    stored: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., count: _Optional[int] = ..., stored: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Param(_message.Message):
    __slots__ = ("name", "real", "whole")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    real: float
    whole: int
    def __init__(self, name: _Optional[str] = ..., real: _Optional[float] = ..., whole: _Optional[int] = ...) -> None: ...

class Keys(_message.Message):
    __slots__ = ("count", "first", "deltas", "hash")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    count: int
    first: int
    deltas: ArraySpec
    hash: bytes
    def __init__(self, count: _Optional[int] = ..., first: _Optional[int] = ..., deltas: _Optional[_Union[ArraySpec, _Mapping]] = ..., hash: _Optional[bytes] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("name", "matrix", "partition", "rows", "params", "arrays", "keys", "reply_dtype", "others")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    REPLY_DTYPE_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    matrix: int
    partition: int
    rows: _containers.RepeatedScalarFieldContainer[int]
    params: _containers.RepeatedCompositeFieldContainer[Param]
    arrays: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    keys: Keys
    reply_dtype: DType
    others: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., matrix: _Optional[int] = ..., partition: _Optional[int] = ..., rows: _Optional[_Iterable[int]] = ..., params: _Optional[_Iterable[_Union[Param, _Mapping]]] = ..., arrays: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ..., keys: _Optional[_Union[Keys, _Mapping]] = ..., reply_dtype: _Optional[_Union[DType, str]] = ..., others: _Optional[_Iterable[int]] = ...) -> None: ...

class RequestId(_message.Message):
    __slots__ = ("scope", "number", "settled", "part", "parts", "series", "stage")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    scope: str
    number: int
    settled: int
    part: int
    parts: int
    series: str
    stage: int
    def __init__(self, scope: _Optional[str] = ..., number: _Optional[int] = ..., settled: _Optional[int] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., series: _Optional[str] = ..., stage: _Optional[int] = ...) -> None: ...

class RequestHeader(_message.Message):
    __slots__ = ("id", "operations", "route_version", "forwarded", "begun")
    ID_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_VERSION_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    id: RequestId
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    route_version: int
    forwarded: bool
    begun: int
    def __init__(self, id: _Optional[_Union[RequestId, _Mapping]] = ..., operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ..., route_version: _Optional[int] = ..., forwarded: bool = ..., begun: _Optional[int] = ...) -> None: ...

class RequestFrame(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class UnreadFrame(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: bytes
    data: bytes
    def __init__(self, header: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("scalar", "arrays")
    SCALAR_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    scalar: float
    arrays: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    def __init__(self, scalar: _Optional[float] = ..., arrays: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ...) -> None: ...

class ReplyHeader(_message.Message):
    __slots__ = ("results", "replayed", "error", "challenge")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Result]
    replayed: bool
    error: ErrorDetail
    challenge: GreetingChallenge
    def __init__(self, results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ..., replayed: bool = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., challenge: _Optional[_Union[GreetingChallenge, _Mapping]] = ...) -> None: ...

class ReplyFrame(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: ReplyHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[ReplyHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("protocol", "coordinator", "answered_s", "released", "connection", "namespace")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_S_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    coordinator: str
    answered_s: float
    released: bool
    connection: bytes
    namespace: str
    def __init__(self, protocol: _Optional[int] = ..., coordinator: _Optional[str] = ..., answered_s: _Optional[float] = ..., released: bool = ..., connection: _Optional[bytes] = ..., namespace: _Optional[str] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("protocol", "server_id", "version", "data_port", "data_socket", "route_version", "coordinator", "heard_s", "catalog", "now_s", "operations", "leaving", "carried")
    class OperationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    DATA_SOCKET_FIELD_NUMBER: _ClassVar[int]
    ROUTE_VERSION_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    HEARD_S_FIELD_NUMBER: _ClassVar[int]
    CATALOG_FIELD_NUMBER: _ClassVar[int]
    NOW_S_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    server_id: str
    version: str
    data_port: int
    data_socket: str
    route_version: int
    coordinator: str
    heard_s: float
    catalog: bytes
    now_s: float
    operations: _containers.ScalarMap[str, str]
    leaving: bool
    carried: Carried
    def __init__(self, protocol: _Optional[int] = ..., server_id: _Optional[str] = ..., version: _Optional[str] = ..., data_port: _Optional[int] = ..., data_socket: _Optional[str] = ..., route_version: _Optional[int] = ..., coordinator: _Optional[str] = ..., heard_s: _Optional[float] = ..., catalog: _Optional[bytes] = ..., now_s: _Optional[float] = ..., operations: _Optional[_Mapping[str, str]] = ..., leaving: bool = ..., carried: _Optional[_Union[Carried, _Mapping]] = ...) -> None: ...

class Greeting(_message.Message):
    __slots__ = ("protocol", "server_id", "nonce", "connection")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    server_id: str
    nonce: bytes
    connection: bytes
    def __init__(self, protocol: _Optional[int] = ..., server_id: _Optional[str] = ..., nonce: _Optional[bytes] = ..., connection: _Optional[bytes] = ...) -> None: ...

class Carried(_message.Message):
    __slots__ = ("sent", "received", "unread")
    SENT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    sent: int
    received: int
    unread: int
    def __init__(self, sent: _Optional[int] = ..., received: _Optional[int] = ..., unread: _Optional[int] = ...) -> None: ...

class GreetingChallenge(_message.Message):
    __slots__ = ("nonce", "proof", "further_proofs")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    FURTHER_PROOFS_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    further_proofs: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ..., further_proofs: _Optional[_Iterable[bytes]] = ...) -> None: ...

class GreetingProof(_message.Message):
    __slots__ = ("proof",)
    PROOF_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    def __init__(self, proof: _Optional[bytes] = ...) -> None: ...

class MatrixSpec(_message.Message):
    __slots__ = ("dim", "rows", "dtype", "sparse", "align", "partitions_per_server", "wire", "layout", "life")
    DIM_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    ALIGN_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_PER_SERVER_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    dim: int
    rows: int
    dtype: DType
    sparse: bool
    align: int
    partitions_per_server: int
    wire: DType
    layout: Layout
    life: KeyLife
    def __init__(self, dim: _Optional[int] = ..., rows: _Optional[int] = ..., dtype: _Optional[_Union[DType, str]] = ..., sparse: bool = ..., align: _Optional[int] = ..., partitions_per_server: _Optional[int] = ..., wire: _Optional[_Union[DType, str]] = ..., layout: _Optional[_Union[Layout, str]] = ..., life: _Optional[_Union[KeyLife, _Mapping]] = ...) -> None: ...

class KeyLife(_message.Message):
    __slots__ = ("admit_after", "expire_after_s", "max_keys", "initial", "event_clock")
    ADMIT_AFTER_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    MAX_KEYS_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    EVENT_CLOCK_FIELD_NUMBER: _ClassVar[int]
    admit_after: int
    expire_after_s: float
    max_keys: int
    initial: Initial
    event_clock: bool
    def __init__(self, admit_after: _Optional[int] = ..., expire_after_s: _Optional[float] = ..., max_keys: _Optional[int] = ..., initial: _Optional[_Union[Initial, _Mapping]] = ..., event_clock: bool = ...) -> None: ...

class Initial(_message.Message):
    __slots__ = ("kind", "scale", "seed", "begin", "end")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    kind: str
    scale: float
    seed: int
    begin: int
    end: int
    def __init__(self, kind: _Optional[str] = ..., scale: _Optional[float] = ..., seed: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("index", "begin", "end")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    index: int
    begin: int
    end: int
    def __init__(self, index: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class CreateMatrixRequest(_message.Message):
    __slots__ = ("matrix", "spec", "partitions", "route_version", "copies", "namespace")
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_VERSION_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    spec: MatrixSpec
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    route_version: int
    copies: bool
    namespace: str
    def __init__(self, matrix: _Optional[int] = ..., spec: _Optional[_Union[MatrixSpec, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., route_version: _Optional[int] = ..., copies: bool = ..., namespace: _Optional[str] = ...) -> None: ...

class CreateMatrixReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UpdateRowsRequest(_message.Message):
    __slots__ = ("matrix", "rows", "freed", "reused", "route_version", "number", "namespace")
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FREED_FIELD_NUMBER: _ClassVar[int]
    REUSED_FIELD_NUMBER: _ClassVar[int]
    ROUTE_VERSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    rows: int
    freed: _containers.RepeatedScalarFieldContainer[int]
    reused: _containers.RepeatedScalarFieldContainer[int]
    route_version: int
    number: int
    namespace: str
    def __init__(self, matrix: _Optional[int] = ..., rows: _Optional[int] = ..., freed: _Optional[_Iterable[int]] = ..., reused: _Optional[_Iterable[int]] = ..., route_version: _Optional[int] = ..., number: _Optional[int] = ..., namespace: _Optional[str] = ...) -> None: ...

class UpdateRowsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FreeMatrixRequest(_message.Message):
    __slots__ = ("matrix", "route_version", "namespace")
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    ROUTE_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    route_version: int
    namespace: str
    def __init__(self, matrix: _Optional[int] = ..., route_version: _Optional[int] = ..., namespace: _Optional[str] = ...) -> None: ...

class FreeMatrixReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ActivateRequest(_message.Message):
    __slots__ = ("route_version", "coordinator", "lease_s", "loaded", "backup", "seed", "catalog", "leave", "afresh", "namespace")
    ROUTE_VERSION_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CATALOG_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    AFRESH_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    route_version: int
    coordinator: str
    lease_s: float
    loaded: bool
    backup: str
    seed: bool
    catalog: bytes
    leave: bool
    afresh: bool
    namespace: str
    def __init__(self, route_version: _Optional[int] = ..., coordinator: _Optional[str] = ..., lease_s: _Optional[float] = ..., loaded: bool = ..., backup: _Optional[str] = ..., seed: bool = ..., catalog: _Optional[bytes] = ..., leave: bool = ..., afresh: bool = ..., namespace: _Optional[str] = ...) -> None: ...

class ActivateReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndStagesRequest(_message.Message):
    __slots__ = ("series", "below", "live", "route_version", "namespace")
    SERIES_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    ROUTE_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    series: str
    below: int
    live: _containers.RepeatedScalarFieldContainer[int]
    route_version: int
    namespace: str
    def __init__(self, series: _Optional[str] = ..., below: _Optional[int] = ..., live: _Optional[_Iterable[int]] = ..., route_version: _Optional[int] = ..., namespace: _Optional[str] = ...) -> None: ...

class EndStagesReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FreezeRequest(_message.Message):
    __slots__ = ("checkpoint", "timeout_s", "route_version", "namespace")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    ROUTE_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    timeout_s: float
    route_version: int
    namespace: str
    def __init__(self, checkpoint: _Optional[str] = ..., timeout_s: _Optional[float] = ..., route_version: _Optional[int] = ..., namespace: _Optional[str] = ...) -> None: ...

class FreezeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CopyRequest(_message.Message):
    __slots__ = ("checkpoint", "matrices", "last", "namespace")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    MATRICES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    matrices: _containers.RepeatedCompositeFieldContainer[RowsInUse]
    last: bool
    namespace: str
    def __init__(self, checkpoint: _Optional[str] = ..., matrices: _Optional[_Iterable[_Union[RowsInUse, _Mapping]]] = ..., last: bool = ..., namespace: _Optional[str] = ...) -> None: ...

class RowsInUse(_message.Message):
    __slots__ = ("matrix", "rows")
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, matrix: _Optional[int] = ..., rows: _Optional[_Iterable[int]] = ...) -> None: ...

class CopyReply(_message.Message):
    __slots__ = ("pause_s", "bytes", "mutations")
    PAUSE_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MUTATIONS_FIELD_NUMBER: _ClassVar[int]
    pause_s: float
    bytes: int
    mutations: int
    def __init__(self, pause_s: _Optional[float] = ..., bytes: _Optional[int] = ..., mutations: _Optional[int] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("checkpoint", "url", "namespace")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    url: str
    namespace: str
    def __init__(self, checkpoint: _Optional[str] = ..., url: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class WriteReply(_message.Message):
    __slots__ = ("shards",)
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[SavedShard]
    def __init__(self, shards: _Optional[_Iterable[_Union[SavedShard, _Mapping]]] = ...) -> None: ...

class SavedFile(_message.Message):
    __slots__ = ("name", "bytes", "xxh3")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    XXH3_FIELD_NUMBER: _ClassVar[int]
    name: str
    bytes: int
    xxh3: str
    def __init__(self, name: _Optional[str] = ..., bytes: _Optional[int] = ..., xxh3: _Optional[str] = ...) -> None: ...

class SavedShard(_message.Message):
    __slots__ = ("matrix", "partition", "files")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: SavedFile
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[SavedFile, _Mapping]] = ...) -> None: ...
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    partition: Partition
    files: _containers.MessageMap[str, SavedFile]
    def __init__(self, matrix: _Optional[int] = ..., partition: _Optional[_Union[Partition, _Mapping]] = ..., files: _Optional[_Mapping[str, SavedFile]] = ...) -> None: ...

class DiscardRequest(_message.Message):
    __slots__ = ("checkpoint", "namespace")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    namespace: str
    def __init__(self, checkpoint: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class DiscardReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LoadMatrix(_message.Message):
    __slots__ = ("matrix", "spec", "partitions", "sources", "unused", "zeros", "saved", "rows")
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    UNUSED_FIELD_NUMBER: _ClassVar[int]
    ZEROS_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    spec: MatrixSpec
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    sources: _containers.RepeatedCompositeFieldContainer[SavedShard]
    unused: _containers.RepeatedScalarFieldContainer[int]
    zeros: _containers.RepeatedScalarFieldContainer[int]
    saved: MatrixSpec
    rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, matrix: _Optional[int] = ..., spec: _Optional[_Union[MatrixSpec, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., sources: _Optional[_Iterable[_Union[SavedShard, _Mapping]]] = ..., unused: _Optional[_Iterable[int]] = ..., zeros: _Optional[_Iterable[int]] = ..., saved: _Optional[_Union[MatrixSpec, _Mapping]] = ..., rows: _Optional[_Iterable[int]] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("url", "matrices", "ids", "route_version", "namespace")
    URL_FIELD_NUMBER: _ClassVar[int]
    MATRICES_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    url: str
    matrices: _containers.RepeatedCompositeFieldContainer[LoadMatrix]
    ids: bool
    route_version: int
    namespace: str
    def __init__(self, url: _Optional[str] = ..., matrices: _Optional[_Iterable[_Union[LoadMatrix, _Mapping]]] = ..., ids: bool = ..., route_version: _Optional[int] = ..., namespace: _Optional[str] = ...) -> None: ...

class LoadReply(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("to", "shards", "copies", "route_version", "namespace")
    TO_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    ROUTE_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    to: str
    shards: _containers.RepeatedCompositeFieldContainer[ShardName]
    copies: bool
    route_version: int
    namespace: str
    def __init__(self, to: _Optional[str] = ..., shards: _Optional[_Iterable[_Union[ShardName, _Mapping]]] = ..., copies: bool = ..., route_version: _Optional[int] = ..., namespace: _Optional[str] = ...) -> None: ...

class ShardName(_message.Message):
    __slots__ = ("matrix", "partition")
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    partition: int
    def __init__(self, matrix: _Optional[int] = ..., partition: _Optional[int] = ...) -> None: ...

class SendReply(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ("matrix", "rows", "partitions", "url", "stem", "route_version")
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    STEM_FIELD_NUMBER: _ClassVar[int]
    ROUTE_VERSION_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    rows: _containers.RepeatedScalarFieldContainer[int]
    partitions: _containers.RepeatedScalarFieldContainer[int]
    url: str
    stem: str
    route_version: int
    def __init__(self, matrix: _Optional[int] = ..., rows: _Optional[_Iterable[int]] = ..., partitions: _Optional[_Iterable[int]] = ..., url: _Optional[str] = ..., stem: _Optional[str] = ..., route_version: _Optional[int] = ...) -> None: ...

class SaveReply(_message.Message):
    __slots__ = ("shards",)
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[SavedShard]
    def __init__(self, shards: _Optional[_Iterable[_Union[SavedShard, _Mapping]]] = ...) -> None: ...

class FillRequest(_message.Message):
    __slots__ = ("url", "matrix", "id", "route_version")
    URL_FIELD_NUMBER: _ClassVar[int]
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ROUTE_VERSION_FIELD_NUMBER: _ClassVar[int]
    url: str
    matrix: LoadMatrix
    id: RequestId
    route_version: int
    def __init__(self, url: _Optional[str] = ..., matrix: _Optional[_Union[LoadMatrix, _Mapping]] = ..., id: _Optional[_Union[RequestId, _Mapping]] = ..., route_version: _Optional[int] = ...) -> None: ...

class FillReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class MatrixStatus(_message.Message):
    __slots__ = ("matrix", "spec", "rows", "bytes", "active_keys", "partitions", "slots", "waiting_keys", "admitted_keys", "expired_keys", "evicted_keys", "namespace", "coordinator", "names")
    class NamesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_KEYS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_KEYS_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_KEYS_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_KEYS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_KEYS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    spec: MatrixSpec
    rows: int
    bytes: int
    active_keys: int
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    slots: int
    waiting_keys: int
    admitted_keys: int
    expired_keys: int
    evicted_keys: int
    namespace: str
    coordinator: str
    names: _containers.ScalarMap[str, int]
    def __init__(self, matrix: _Optional[int] = ..., spec: _Optional[_Union[MatrixSpec, _Mapping]] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., active_keys: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., slots: _Optional[int] = ..., waiting_keys: _Optional[int] = ..., admitted_keys: _Optional[int] = ..., expired_keys: _Optional[int] = ..., evicted_keys: _Optional[int] = ..., namespace: _Optional[str] = ..., coordinator: _Optional[str] = ..., names: _Optional[_Mapping[str, int]] = ...) -> None: ...

class OperationStatus(_message.Message):
    __slots__ = ("name", "count", "failures", "seconds", "keys")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    name: str
    count: int
    failures: int
    seconds: float
    keys: int
    def __init__(self, name: _Optional[str] = ..., count: _Optional[int] = ..., failures: _Optional[int] = ..., seconds: _Optional[float] = ..., keys: _Optional[int] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("server_id", "version", "pid", "uptime_s", "memory_bytes", "memory_limit_bytes", "rss_bytes", "requests", "failed", "bytes_in", "bytes_out", "matrices", "outcomes", "in_progress", "waiting", "lock_waits", "lock_wait_s", "key_cache_hits", "key_cache_misses", "key_cache_bytes", "connections", "operations", "route_version", "backup", "copies_bytes", "applied_scopes", "mutations", "behind", "container", "node")
    class OutcomesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    MATRICES_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    IN_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    LOCK_WAITS_FIELD_NUMBER: _ClassVar[int]
    LOCK_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    KEY_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    KEY_CACHE_MISSES_FIELD_NUMBER: _ClassVar[int]
    KEY_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_VERSION_FIELD_NUMBER: _ClassVar[int]
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    COPIES_BYTES_FIELD_NUMBER: _ClassVar[int]
    APPLIED_SCOPES_FIELD_NUMBER: _ClassVar[int]
    MUTATIONS_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    version: str
    pid: int
    uptime_s: float
    memory_bytes: int
    memory_limit_bytes: int
    rss_bytes: int
    requests: int
    failed: int
    bytes_in: int
    bytes_out: int
    matrices: _containers.RepeatedCompositeFieldContainer[MatrixStatus]
    outcomes: _containers.ScalarMap[str, int]
    in_progress: int
    waiting: int
    lock_waits: int
    lock_wait_s: float
    key_cache_hits: int
    key_cache_misses: int
    key_cache_bytes: int
    connections: int
    operations: _containers.RepeatedCompositeFieldContainer[OperationStatus]
    route_version: int
    backup: str
    copies_bytes: int
    applied_scopes: int
    mutations: int
    behind: int
    container: str
    node: str
    def __init__(self, server_id: _Optional[str] = ..., version: _Optional[str] = ..., pid: _Optional[int] = ..., uptime_s: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., requests: _Optional[int] = ..., failed: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., matrices: _Optional[_Iterable[_Union[MatrixStatus, _Mapping]]] = ..., outcomes: _Optional[_Mapping[str, int]] = ..., in_progress: _Optional[int] = ..., waiting: _Optional[int] = ..., lock_waits: _Optional[int] = ..., lock_wait_s: _Optional[float] = ..., key_cache_hits: _Optional[int] = ..., key_cache_misses: _Optional[int] = ..., key_cache_bytes: _Optional[int] = ..., connections: _Optional[int] = ..., operations: _Optional[_Iterable[_Union[OperationStatus, _Mapping]]] = ..., route_version: _Optional[int] = ..., backup: _Optional[str] = ..., copies_bytes: _Optional[int] = ..., applied_scopes: _Optional[int] = ..., mutations: _Optional[int] = ..., behind: _Optional[int] = ..., container: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
