from ps2.protocol.pb import server_pb2 as _server_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerMessage(_message.Message):
    __slots__ = ("join", "arrive", "barrier", "once", "once_made", "leave", "note", "ahead", "read_messages", "metrics", "number", "epoch", "log_lines", "left_out_lines")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    ARRIVE_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FIELD_NUMBER: _ClassVar[int]
    ONCE_FIELD_NUMBER: _ClassVar[int]
    ONCE_MADE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    READ_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_LINES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_LINES_FIELD_NUMBER: _ClassVar[int]
    join: Join
    arrive: Arrive
    barrier: Barrier
    once: Once
    once_made: OnceMade
    leave: Leave
    note: Note
    ahead: Ahead
    read_messages: ReadMessages
    metrics: _containers.RepeatedCompositeFieldContainer[Metric]
    number: int
    epoch: int
    log_lines: _containers.RepeatedCompositeFieldContainer[LogLine]
    left_out_lines: int
    def __init__(self, join: _Optional[_Union[Join, _Mapping]] = ..., arrive: _Optional[_Union[Arrive, _Mapping]] = ..., barrier: _Optional[_Union[Barrier, _Mapping]] = ..., once: _Optional[_Union[Once, _Mapping]] = ..., once_made: _Optional[_Union[OnceMade, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., note: _Optional[_Union[Note, _Mapping]] = ..., ahead: _Optional[_Union[Ahead, _Mapping]] = ..., read_messages: _Optional[_Union[ReadMessages, _Mapping]] = ..., metrics: _Optional[_Iterable[_Union[Metric, _Mapping]]] = ..., number: _Optional[int] = ..., epoch: _Optional[int] = ..., log_lines: _Optional[_Iterable[_Union[LogLine, _Mapping]]] = ..., left_out_lines: _Optional[int] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("joined", "enter", "go", "once", "left", "seen", "messages", "error")
    JOINED_FIELD_NUMBER: _ClassVar[int]
    ENTER_FIELD_NUMBER: _ClassVar[int]
    GO_FIELD_NUMBER: _ClassVar[int]
    ONCE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    joined: Joined
    enter: Enter
    go: Go
    once: OnceAnswer
    left: Left
    seen: Seen
    messages: Messages
    error: _server_pb2.ErrorDetail
    def __init__(self, joined: _Optional[_Union[Joined, _Mapping]] = ..., enter: _Optional[_Union[Enter, _Mapping]] = ..., go: _Optional[_Union[Go, _Mapping]] = ..., once: _Optional[_Union[OnceAnswer, _Mapping]] = ..., left: _Optional[_Union[Left, _Mapping]] = ..., seen: _Optional[_Union[Seen, _Mapping]] = ..., messages: _Optional[_Union[Messages, _Mapping]] = ..., error: _Optional[_Union[_server_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class Metric(_message.Message):
    __slots__ = ("name", "value", "clock")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    clock: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., clock: _Optional[int] = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("level", "logger", "text", "clock")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    LOGGER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    level: int
    logger: str
    text: str
    clock: int
    def __init__(self, level: _Optional[int] = ..., logger: _Optional[str] = ..., text: _Optional[str] = ..., clock: _Optional[int] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("rank", "attempt", "host", "pid", "python_s", "daemon_s", "connect_s")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PYTHON_S_FIELD_NUMBER: _ClassVar[int]
    DAEMON_S_FIELD_NUMBER: _ClassVar[int]
    CONNECT_S_FIELD_NUMBER: _ClassVar[int]
    rank: int
    attempt: int
    host: str
    pid: int
    python_s: float
    daemon_s: float
    connect_s: float
    def __init__(self, rank: _Optional[int] = ..., attempt: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., python_s: _Optional[float] = ..., daemon_s: _Optional[float] = ..., connect_s: _Optional[float] = ...) -> None: ...

class Joined(_message.Message):
    __slots__ = ("workers", "clock", "epoch", "run_s", "done")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RUN_S_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    workers: int
    clock: int
    epoch: int
    run_s: float
    done: bool
    def __init__(self, workers: _Optional[int] = ..., clock: _Optional[int] = ..., epoch: _Optional[int] = ..., run_s: _Optional[float] = ..., done: bool = ...) -> None: ...

class Arrive(_message.Message):
    __slots__ = ("clock", "applied", "times", "messages", "reports", "until")
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    clock: int
    applied: int
    times: ClockTimes
    messages: int
    reports: _containers.RepeatedCompositeFieldContainer[Report]
    until: int
    def __init__(self, clock: _Optional[int] = ..., applied: _Optional[int] = ..., times: _Optional[_Union[ClockTimes, _Mapping]] = ..., messages: _Optional[int] = ..., reports: _Optional[_Iterable[_Union[Report, _Mapping]]] = ..., until: _Optional[int] = ...) -> None: ...

class ClockTimes(_message.Message):
    __slots__ = ("clock", "began", "compute", "pull", "push", "wait", "outside", "on_clock", "block", "left", "work", "transfer", "kernels", "checkpoint", "coordinator", "imports")
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_FIELD_NUMBER: _ClassVar[int]
    ON_CLOCK_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    IMPORTS_FIELD_NUMBER: _ClassVar[int]
    clock: int
    began: float
    compute: float
    pull: float
    push: float
    wait: float
    outside: bool
    on_clock: float
    block: int
    left: float
    work: float
    transfer: float
    kernels: float
    checkpoint: float
    coordinator: float
    imports: float
    def __init__(self, clock: _Optional[int] = ..., began: _Optional[float] = ..., compute: _Optional[float] = ..., pull: _Optional[float] = ..., push: _Optional[float] = ..., wait: _Optional[float] = ..., outside: bool = ..., on_clock: _Optional[float] = ..., block: _Optional[int] = ..., left: _Optional[float] = ..., work: _Optional[float] = ..., transfer: _Optional[float] = ..., kernels: _Optional[float] = ..., checkpoint: _Optional[float] = ..., coordinator: _Optional[float] = ..., imports: _Optional[float] = ...) -> None: ...

class Enter(_message.Message):
    __slots__ = ("clock", "horizon", "epoch", "on_clock", "messages", "message", "end", "budget", "checkpoint", "others")
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ON_CLOCK_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    clock: int
    horizon: int
    epoch: int
    on_clock: float
    messages: int
    message: bytes
    end: int
    budget: float
    checkpoint: float
    others: float
    def __init__(self, clock: _Optional[int] = ..., horizon: _Optional[int] = ..., epoch: _Optional[int] = ..., on_clock: _Optional[float] = ..., messages: _Optional[int] = ..., message: _Optional[bytes] = ..., end: _Optional[int] = ..., budget: _Optional[float] = ..., checkpoint: _Optional[float] = ..., others: _Optional[float] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("clock", "merge", "value")
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    clock: int
    merge: str
    value: bytes
    def __init__(self, clock: _Optional[int] = ..., merge: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class ReadMessages(_message.Message):
    __slots__ = ("begin", "end")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    begin: int
    end: int
    def __init__(self, begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Messages(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, messages: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PlainData(_message.Message):
    __slots__ = ("none", "flag", "integer", "number", "text", "array", "list", "dict")
    class Array(_message.Message):
        __slots__ = ("dtype", "shape", "data")
        DTYPE_FIELD_NUMBER: _ClassVar[int]
        SHAPE_FIELD_NUMBER: _ClassVar[int]
        DATA_FIELD_NUMBER: _ClassVar[int]
        dtype: str
        shape: _containers.RepeatedScalarFieldContainer[int]
        data: bytes
        def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...
    class List(_message.Message):
        __slots__ = ("items",)
        ITEMS_FIELD_NUMBER: _ClassVar[int]
        items: _containers.RepeatedCompositeFieldContainer[PlainData]
        def __init__(self, items: _Optional[_Iterable[_Union[PlainData, _Mapping]]] = ...) -> None: ...
    class Dict(_message.Message):
        __slots__ = ("items",)
        class Item(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: PlainData
            def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PlainData, _Mapping]] = ...) -> None: ...
        ITEMS_FIELD_NUMBER: _ClassVar[int]
        items: _containers.RepeatedCompositeFieldContainer[PlainData.Dict.Item]
        def __init__(self, items: _Optional[_Iterable[_Union[PlainData.Dict.Item, _Mapping]]] = ...) -> None: ...
    NONE_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    DICT_FIELD_NUMBER: _ClassVar[int]
    none: bool
    flag: bool
    integer: int
    number: float
    text: str
    array: PlainData.Array
    list: PlainData.List
    dict: PlainData.Dict
    def __init__(self, none: bool = ..., flag: bool = ..., integer: _Optional[int] = ..., number: _Optional[float] = ..., text: _Optional[str] = ..., array: _Optional[_Union[PlainData.Array, _Mapping]] = ..., list: _Optional[_Union[PlainData.List, _Mapping]] = ..., dict: _Optional[_Union[PlainData.Dict, _Mapping]] = ...) -> None: ...

class Journal(_message.Message):
    __slots__ = ("entries", "stopped", "end", "called", "finished", "pending")
    class Entry(_message.Message):
        __slots__ = ("clock", "message")
        CLOCK_FIELD_NUMBER: _ClassVar[int]
        MESSAGE_FIELD_NUMBER: _ClassVar[int]
        clock: int
        message: bytes
        def __init__(self, clock: _Optional[int] = ..., message: _Optional[bytes] = ...) -> None: ...
    class Pending(_message.Message):
        __slots__ = ("rank", "report")
        RANK_FIELD_NUMBER: _ClassVar[int]
        REPORT_FIELD_NUMBER: _ClassVar[int]
        rank: int
        report: Report
        def __init__(self, rank: _Optional[int] = ..., report: _Optional[_Union[Report, _Mapping]] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CALLED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Journal.Entry]
    stopped: int
    end: int
    called: int
    finished: int
    pending: _containers.RepeatedCompositeFieldContainer[Journal.Pending]
    def __init__(self, entries: _Optional[_Iterable[_Union[Journal.Entry, _Mapping]]] = ..., stopped: _Optional[int] = ..., end: _Optional[int] = ..., called: _Optional[int] = ..., finished: _Optional[int] = ..., pending: _Optional[_Iterable[_Union[Journal.Pending, _Mapping]]] = ...) -> None: ...

class Barrier(_message.Message):
    __slots__ = ("phase", "number")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    phase: int
    number: int
    def __init__(self, phase: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class Go(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Once(_message.Message):
    __slots__ = ("phase", "number")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    phase: int
    number: int
    def __init__(self, phase: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class OnceAnswer(_message.Message):
    __slots__ = ("make", "value")
    MAKE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    make: bool
    value: bytes
    def __init__(self, make: bool = ..., value: _Optional[bytes] = ...) -> None: ...

class OnceMade(_message.Message):
    __slots__ = ("phase", "number", "value")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    phase: int
    number: int
    value: bytes
    def __init__(self, phase: _Optional[int] = ..., number: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("result", "error", "clock", "fatal", "times")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    FATAL_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    result: bytes
    error: str
    clock: int
    fatal: bool
    times: ClockTimes
    def __init__(self, result: _Optional[bytes] = ..., error: _Optional[str] = ..., clock: _Optional[int] = ..., fatal: bool = ..., times: _Optional[_Union[ClockTimes, _Mapping]] = ...) -> None: ...

class Left(_message.Message):
    __slots__ = ("again",)
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    again: bool
    def __init__(self, again: bool = ...) -> None: ...

class Note(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Ahead(_message.Message):
    __slots__ = ("rank", "attempt", "applied", "clock", "epoch")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    rank: int
    attempt: int
    applied: int
    clock: int
    epoch: int
    def __init__(self, rank: _Optional[int] = ..., attempt: _Optional[int] = ..., applied: _Optional[int] = ..., clock: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Seen(_message.Message):
    __slots__ = ("horizon", "epoch")
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    horizon: int
    epoch: int
    def __init__(self, horizon: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...
