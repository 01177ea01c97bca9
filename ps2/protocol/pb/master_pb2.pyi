from ps2.protocol.pb import server_pb2 as _server_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterRequest(_message.Message):
    __slots__ = ("index", "server_id", "address", "protocol")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    index: int
    server_id: str
    address: str
    protocol: int
    def __init__(self, index: _Optional[int] = ..., server_id: _Optional[str] = ..., address: _Optional[str] = ..., protocol: _Optional[int] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("heartbeat_interval_s",)
    HEARTBEAT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    heartbeat_interval_s: float
    def __init__(self, heartbeat_interval_s: _Optional[float] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("index", "server_id", "mutations", "status")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    MUTATIONS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    index: int
    server_id: str
    mutations: int
    status: _server_pb2.StatusReply
    def __init__(self, index: _Optional[int] = ..., server_id: _Optional[str] = ..., mutations: _Optional[int] = ..., status: _Optional[_Union[_server_pb2.StatusReply, _Mapping]] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("watched",)
    WATCHED_FIELD_NUMBER: _ClassVar[int]
    watched: bool
    def __init__(self, watched: bool = ...) -> None: ...

class Route(_message.Message):
    __slots__ = ("version", "bounds", "addresses")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    version: int
    bounds: _containers.RepeatedScalarFieldContainer[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[int] = ..., bounds: _Optional[_Iterable[int]] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class Matrix(_message.Message):
    __slots__ = ("id", "spec", "route", "lost", "recovering", "epoch", "step", "row")
    ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    RECOVERING_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    id: int
    spec: _server_pb2.MatrixSpec
    route: Route
    lost: _containers.RepeatedScalarFieldContainer[str]
    recovering: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    step: int
    row: int
    def __init__(self, id: _Optional[int] = ..., spec: _Optional[_Union[_server_pb2.MatrixSpec, _Mapping]] = ..., route: _Optional[_Union[Route, _Mapping]] = ..., lost: _Optional[_Iterable[str]] = ..., recovering: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., row: _Optional[int] = ...) -> None: ...

class NewMatrixRequest(_message.Message):
    __slots__ = ("spec", "id", "name", "holder", "reuse")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    REUSE_FIELD_NUMBER: _ClassVar[int]
    spec: _server_pb2.MatrixSpec
    id: _server_pb2.RequestId
    name: str
    holder: str
    reuse: bool
    def __init__(self, spec: _Optional[_Union[_server_pb2.MatrixSpec, _Mapping]] = ..., id: _Optional[_Union[_server_pb2.RequestId, _Mapping]] = ..., name: _Optional[str] = ..., holder: _Optional[str] = ..., reuse: bool = ...) -> None: ...

class TakeRowsRequest(_message.Message):
    __slots__ = ("matrix", "count", "reserved", "id", "name", "holder")
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    count: int
    reserved: bool
    id: _server_pb2.RequestId
    name: str
    holder: str
    def __init__(self, matrix: _Optional[int] = ..., count: _Optional[int] = ..., reserved: bool = ..., id: _Optional[_Union[_server_pb2.RequestId, _Mapping]] = ..., name: _Optional[str] = ..., holder: _Optional[str] = ...) -> None: ...

class TakeRowsReply(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rows: _Optional[_Iterable[int]] = ...) -> None: ...

class FreeRowsRequest(_message.Message):
    __slots__ = ("matrix", "rows", "id", "holder")
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    rows: _containers.RepeatedScalarFieldContainer[int]
    id: _server_pb2.RequestId
    holder: str
    def __init__(self, matrix: _Optional[int] = ..., rows: _Optional[_Iterable[int]] = ..., id: _Optional[_Union[_server_pb2.RequestId, _Mapping]] = ..., holder: _Optional[str] = ...) -> None: ...

class FreeRowsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetMatrixRequest(_message.Message):
    __slots__ = ("matrix",)
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    def __init__(self, matrix: _Optional[int] = ...) -> None: ...

class FindVectorRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class FindVectorReply(_message.Message):
    __slots__ = ("matrix", "row")
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    matrix: int
    row: int
    def __init__(self, matrix: _Optional[int] = ..., row: _Optional[int] = ...) -> None: ...
