"""The messages between a run's workers and its driver as plain data, and their one binary form.

A class has the fields of its message in run.proto, which documents them. An optional field that is not set is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, get_args

from google.protobuf.message import DecodeError, Message

from ps2.errors import ProtocolError, PS2Error
from ps2.protocol.error_details import from_detail, to_detail
from ps2.protocol.pb import run_pb2 as pb

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Report:
    """A worker's small result of a clock; ``value`` is encoded plain data."""

    clock: int
    merge: str
    value: bytes


@dataclass(frozen=True)
class Logged:
    """A number that a worker logged in a clock."""

    name: str
    value: float
    clock: int


@dataclass(frozen=True)
class LogLine:
    """What a worker's Python has logged in a clock."""

    level: int
    logger: str
    text: str
    clock: int


@dataclass(frozen=True)
class LogLines:
    """What one attempt has logged since its last message, and how many lines there were beside these."""

    lines: tuple[LogLine, ...] = ()
    left_out: int = 0

    def __bool__(self) -> bool:
        return bool(self.lines or self.left_out)


@dataclass(frozen=True)
class ClockTimes:
    """How one worker's time was spent, in one clock or between clocks, in seconds.

    Attributes:
        connect, imports, spark: before a worker had joined, and after it had left: opening connections; starting Python
            and importing modules; what Spark does. The coordinator's own entries have them; workers send ``imports``.
    """

    clock: int
    began: float
    compute: float
    pull: float
    push: float
    wait: float
    outside: bool = False
    on_clock: float = 0.0
    block: int = -1
    left: float = 0.0
    work: float = 0.0
    transfer: float = 0.0
    kernels: float = 0.0
    checkpoint: float = 0.0
    coordinator: float = 0.0
    connect: float = 0.0
    imports: float = 0.0
    spark: float = 0.0


# -- requests of workers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Join:
    rank: int
    attempt: int
    host: str = ""
    pid: int = 0
    python_s: float = 0.0
    daemon_s: float = 0.0
    connect_s: float = 0.0


@dataclass(frozen=True)
class Arrive:
    clock: int
    applied: int
    times: ClockTimes | None = None
    messages: int = 0
    reports: Sequence[Report] = ()
    until: int = 0


@dataclass(frozen=True)
class ReadMessages:
    begin: int
    end: int


@dataclass(frozen=True)
class Ahead:
    rank: int
    attempt: int
    applied: int
    clock: int
    epoch: int


@dataclass(frozen=True)
class Barrier:
    phase: int
    number: int


@dataclass(frozen=True)
class Once:
    phase: int
    number: int


@dataclass(frozen=True)
class OnceMade:
    phase: int
    number: int
    value: bytes


@dataclass(frozen=True)
class Leave:
    result: bytes = b""
    error: str = ""
    clock: int = 0
    fatal: bool = False
    times: ClockTimes | None = None


@dataclass(frozen=True)
class Note:
    pass


Ask = Join | Arrive | ReadMessages | Ahead | Barrier | Once | OnceMade | Leave | Note


@dataclass(frozen=True)
class WorkerMessage:
    """A request, and what a worker has logged since the last one."""

    ask: Ask
    metrics: Sequence[Logged] = ()
    number: int = 0
    epoch: int = 0
    lines: LogLines = LogLines()

    @property
    def name(self) -> str:
        """The name of the request in run.proto."""
        return _ASKS[type(self.ask)]


# -- answers of the driver -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joined:
    workers: int
    clock: int
    epoch: int
    run_s: float
    done: bool


@dataclass(frozen=True)
class Entered:
    clock: int
    horizon: int
    epoch: int
    on_clock: float = 0.0
    messages: int = 0
    message: bytes = b""
    end: int | None = None
    budget: float | None = None
    checkpoint: float = 0.0
    others: float = 0.0


@dataclass(frozen=True)
class Go:
    pass


@dataclass(frozen=True)
class OnceAnswer:
    make: bool
    value: bytes = b""


@dataclass(frozen=True)
class Left:
    again: bool = False


@dataclass(frozen=True)
class Seen:
    horizon: int
    epoch: int


@dataclass(frozen=True)
class Messages:
    messages: Sequence[bytes]


Answer = Joined | Entered | Go | OnceAnswer | Left | Seen | Messages


# -- binary form -----------------------------------------------------------------------------------------------------


def write_request(message: WorkerMessage) -> bytes:
    encoded = pb.WorkerMessage(
        **{message.name: to_fields(message.ask)},
        metrics=to_fields(message.metrics),
        number=message.number,
        epoch=message.epoch,
        log_lines=to_fields(message.lines.lines),
        left_out_lines=message.lines.left_out,
    )
    return encoded.SerializeToString()


def read_request(encoded: bytes) -> WorkerMessage:
    """Decode a worker's message.

    Raises:
        ProtocolError: the bytes are not a message, or it has no request.
    """
    message = _decoded(pb.WorkerMessage, encoded)
    lines = LogLines(tuple(map(from_message, message.log_lines)), message.left_out_lines)
    metrics = tuple(map(from_message, message.metrics))
    return WorkerMessage(_part(message, "ask"), metrics, message.number, message.epoch, lines)


def write_answer(answer: Answer | PS2Error) -> bytes:
    if isinstance(answer, PS2Error):
        return pb.CoordinatorMessage(error=to_detail(answer)).SerializeToString()
    return pb.CoordinatorMessage(**{_ANSWERS[type(answer)]: to_fields(answer)}).SerializeToString()


def read_answer(encoded: bytes) -> Answer:
    """Decode the driver's answer.

    Raises:
        ProtocolError: the bytes are not an answer.
        PS2Error: the answer is an error, which ends the connection.
    """
    message = _decoded(pb.CoordinatorMessage, encoded)
    if message.HasField("error"):
        raise from_detail(message.error)
    answer: Answer = _part(message, "answer")
    return answer


def _decoded(kind: type[M], encoded: bytes) -> M:
    try:
        return kind.FromString(encoded)
    except DecodeError as error:
        raise ProtocolError(f"a message {kind.__name__} cannot be read: {error}") from error


def _part(message: Message, oneof: str) -> Any:
    name = message.WhichOneof(oneof)
    if name is None:
        raise ProtocolError(f"a message {type(message).__name__} has no {oneof}")
    return from_message(getattr(message, name))


class _Sent(NamedTuple):
    """The names of a class's fields that its message has.

    Attributes:
        all: all of them.
        optional: those that may be unset.
        repeated: those that hold several values.
    """

    all: list[str]
    optional: list[str]
    repeated: list[str]


# The class of each message, by its name in run.proto.
_CLASSES: dict[str, type[Any]] = {"Metric": Logged, "Enter": Entered}
_CLASSES |= {cls.__name__: cls for cls in (Report, LogLine, ClockTimes, *get_args(Ask), *get_args(Answer))}
_SENT = {
    _CLASSES[name]: _Sent(
        [field.name for field in message.fields],
        [field.name for field in message.fields if field.has_presence],
        [field.name for field in message.fields if field.is_repeated],
    )
    for name, message in pb.DESCRIPTOR.message_types_by_name.items()
    if name in _CLASSES
}
# The name of each request and answer in its message.
_ASKS, _ANSWERS = (
    {_CLASSES[field.message_type.name]: field.name for field in oneof.fields if field.name != "error"}
    for oneof in (
        pb.WorkerMessage.DESCRIPTOR.oneofs_by_name["ask"],
        pb.CoordinatorMessage.DESCRIPTOR.oneofs_by_name["answer"],
    )
)


def to_fields(value: Any) -> Any:
    """Return a value as protobuf's constructors take it; they leave out what is None."""
    sent = _SENT.get(type(value))
    if sent is not None:
        return {name: to_fields(getattr(value, name)) for name in sent.all}
    return [to_fields(item) for item in value] if isinstance(value, (tuple, list)) else value


def from_message(value: Any) -> Any:
    """Return a message as an object of its class, and anything else as it is."""
    if not isinstance(value, Message):
        return value
    cls = _CLASSES[value.DESCRIPTOR.name]
    sent = _SENT[cls]
    values = {name: getattr(value, name) for name in sent.all}
    for name in sent.optional:
        values[name] = from_message(values[name]) if value.HasField(name) else None
    for name in sent.repeated:
        values[name] = tuple(map(from_message, values[name]))
    return cls(**values)
