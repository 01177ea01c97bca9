from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ReportRequest(_message.Message):
    __slots__ = ("index", "attempt", "container", "node", "version", "order", "ended", "exit_code", "said", "address")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SAID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    index: int
    attempt: int
    container: str
    node: str
    version: str
    order: int
    ended: bool
    exit_code: int
    said: str
    address: str
    def __init__(self, index: _Optional[int] = ..., attempt: _Optional[int] = ..., container: _Optional[str] = ..., node: _Optional[str] = ..., version: _Optional[str] = ..., order: _Optional[int] = ..., ended: bool = ..., exit_code: _Optional[int] = ..., said: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ("order", "arguments", "leave", "refused", "address")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    order: int
    arguments: _containers.RepeatedScalarFieldContainer[str]
    leave: bool
    refused: str
    address: str
    def __init__(self, order: _Optional[int] = ..., arguments: _Optional[_Iterable[str]] = ..., leave: bool = ..., refused: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...
