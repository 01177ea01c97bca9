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

class ErrorDetail(_message.Message):
    __slots__ = ("type", "message")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ArraySpec(_message.Message):
    __slots__ = ("dtype", "count")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    count: int
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., count: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("name", "matrix", "partition", "rows", "params", "arrays", "keys", "reply_dtype")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    REPLY_DTYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    matrix: int
    partition: int
    rows: _containers.RepeatedScalarFieldContainer[int]
    params: _containers.RepeatedCompositeFieldContainer[Param]
    arrays: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    keys: Keys
    reply_dtype: DType
    def __init__(self, name: _Optional[str] = ..., matrix: _Optional[int] = ..., partition: _Optional[int] = ..., rows: _Optional[_Iterable[int]] = ..., params: _Optional[_Iterable[_Union[Param, _Mapping]]] = ..., arrays: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ..., keys: _Optional[_Union[Keys, _Mapping]] = ..., reply_dtype: _Optional[_Union[DType, str]] = ...) -> None: ...

class RequestId(_message.Message):
    __slots__ = ("scope", "number", "settled", "part", "parts")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    scope: str
    number: int
    settled: int
    part: int
    parts: int
    def __init__(self, scope: _Optional[str] = ..., number: _Optional[int] = ..., settled: _Optional[int] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ...) -> None: ...

class RequestHeader(_message.Message):
    __slots__ = ("id", "operations")
    ID_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    id: RequestId
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    def __init__(self, id: _Optional[_Union[RequestId, _Mapping]] = ..., operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ...) -> None: ...

class RequestFrame(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("scalar", "arrays")
    SCALAR_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    scalar: float
    arrays: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    def __init__(self, scalar: _Optional[float] = ..., arrays: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ...) -> None: ...

class ReplyHeader(_message.Message):
    __slots__ = ("results", "replayed", "error")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Result]
    replayed: bool
    error: ErrorDetail
    def __init__(self, results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ..., replayed: bool = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ...) -> None: ...

class ReplyFrame(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: ReplyHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[ReplyHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("protocol",)
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    def __init__(self, protocol: _Optional[int] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("protocol", "server_id", "version", "data_port", "data_socket")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    DATA_SOCKET_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    server_id: str
    version: str
    data_port: int
    data_socket: str
    def __init__(self, protocol: _Optional[int] = ..., server_id: _Optional[str] = ..., version: _Optional[str] = ..., data_port: _Optional[int] = ..., data_socket: _Optional[str] = ...) -> None: ...

class Greeting(_message.Message):
    __slots__ = ("protocol", "token", "server_id")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    token: str
    server_id: str
    def __init__(self, protocol: _Optional[int] = ..., token: _Optional[str] = ..., server_id: _Optional[str] = ...) -> None: ...

class MatrixSpec(_message.Message):
    __slots__ = ("dim", "rows", "dtype", "sparse", "align", "partitions_per_server", "wire")
    DIM_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    ALIGN_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_PER_SERVER_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    dim: int
    rows: int
    dtype: DType
    sparse: bool
    align: int
    partitions_per_server: int
    wire: DType
    def __init__(self, dim: _Optional[int] = ..., rows: _Optional[int] = ..., dtype: _Optional[_Union[DType, str]] = ..., sparse: bool = ..., align: _Optional[int] = ..., partitions_per_server: _Optional[int] = ..., wire: _Optional[_Union[DType, str]] = ...) -> None: ...

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
    __slots__ = ("matrix", "spec", "partitions")
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    spec: MatrixSpec
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    def __init__(self, matrix: _Optional[int] = ..., spec: _Optional[_Union[MatrixSpec, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...

class CreateMatrixReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UpdateRowsRequest(_message.Message):
    __slots__ = ("matrix", "rows", "freed", "reused")
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FREED_FIELD_NUMBER: _ClassVar[int]
    REUSED_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    rows: int
    freed: _containers.RepeatedScalarFieldContainer[int]
    reused: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, matrix: _Optional[int] = ..., rows: _Optional[int] = ..., freed: _Optional[_Iterable[int]] = ..., reused: _Optional[_Iterable[int]] = ...) -> None: ...

class UpdateRowsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FreeMatrixRequest(_message.Message):
    __slots__ = ("matrix",)
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    def __init__(self, matrix: _Optional[int] = ...) -> None: ...

class FreeMatrixReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MatrixStatus(_message.Message):
    __slots__ = ("matrix", "spec", "rows", "bytes", "active_keys", "partitions")
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_KEYS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    spec: MatrixSpec
    rows: int
    bytes: int
    active_keys: int
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    def __init__(self, matrix: _Optional[int] = ..., spec: _Optional[_Union[MatrixSpec, _Mapping]] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., active_keys: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("server_id", "version", "pid", "uptime_s", "memory_bytes", "memory_limit_bytes", "rss_bytes", "requests", "failed", "bytes_in", "bytes_out", "matrices", "outcomes", "in_progress", "waiting", "lock_waits", "lock_wait_s", "key_cache_hits", "key_cache_misses", "key_cache_bytes", "connections", "operations")
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
    def __init__(self, server_id: _Optional[str] = ..., version: _Optional[str] = ..., pid: _Optional[int] = ..., uptime_s: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., requests: _Optional[int] = ..., failed: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., matrices: _Optional[_Iterable[_Union[MatrixStatus, _Mapping]]] = ..., outcomes: _Optional[_Mapping[str, int]] = ..., in_progress: _Optional[int] = ..., waiting: _Optional[int] = ..., lock_waits: _Optional[int] = ..., lock_wait_s: _Optional[float] = ..., key_cache_hits: _Optional[int] = ..., key_cache_misses: _Optional[int] = ..., key_cache_bytes: _Optional[int] = ..., connections: _Optional[int] = ..., operations: _Optional[_Iterable[_Union[OperationStatus, _Mapping]]] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
