"""Start a stream: with a new model, with a model on the fleet, or from the newest snapshot."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from ps2.algorithms.training.observing import FitWatch
from ps2.algorithms.training.streams.labelled_rows import LabelledReader
from ps2.algorithms.training.streams.learner import BatchLearner, BatchProgress, LearnerOptions
from ps2.algorithms.training.streams.location import FOLDER, StreamRecord, claim_location, read_counts, read_record
from ps2.algorithms.training.streams.spark_checkpoint import SparkCheckpoint
from ps2.algorithms.training.streams.state import StreamState
from ps2.algorithms.training.streams.training import SNAPSHOT_BATCHES, StreamingTraining, StreamOptions
from ps2.coordinator.context import PS2Context
from ps2.coordinator.training_host import training_host
from ps2.errors import CheckpointMissingError, ConfigError, NotFoundError, RecoveryError, UsageError
from ps2.number_checks import is_number
from ps2.run.spark.backend_lookup import backend_of
from ps2.storage import folders


@dataclass(frozen=True)
class ModelFactory:
    """Creates, finds and trains models of a family for ``start_stream``.

    Attributes:
        kind: the kind of the model, such as "logistic".
        settings: JSON data that must be the same when the stream is resumed.
        begin: ``begin(name)`` makes a new model on the fleet; the names of its vectors begin with ``name``.
        existing: ``existing(name, ps)`` returns the fleet's model of this name, or raises NotFoundError.
        program: ``program(model)`` returns the ``LearningProgram`` for the tasks.
    """

    kind: str
    settings: dict[str, Any]
    begin: Callable[[str], Any]
    existing: Callable[[str, Any], Any]
    program: Callable[[Any], Any]
    reader: LabelledReader


def start_stream(  # noqa: PLR0913 - keywords
    frame: Any,
    location: str,
    factory: ModelFactory,
    options: LearnerOptions,
    *,
    requested_model: Any = None,
    snapshot_every: str | float,
    trigger: Mapping[str, Any],
    query_name: str | None,
    on_progress: Callable[[BatchProgress], object] | None,
    watch: Callable[[], FitWatch | None],
    servers: int | None,
) -> StreamingTraining:
    """Start to learn from a streaming DataFrame. For arguments and errors see the estimators' ``fitStream``.

    ``watch`` is called after all checks; it returns the training's ``FitWatch``, or None.
    """
    if not frame.isStreaming:
        raise UsageError("streamingDf: expected a streaming DataFrame (spark.readStream), got a batch: use fit")
    max_batches = batches_of(snapshot_every)
    every_s = seconds_of(snapshot_every, "snapshotEvery") if max_batches is None else math.inf
    record = read_record(location)
    ps = _context(frame, record, servers)
    if ps.conf.recover == "shard":
        raise ConfigError(
            "fitStream: expected recover 'auto' or 'consistent', got 'shard': each row counts once only if "
            "the whole fleet rolls back"
        )
    if requested_model is not None:
        name = requested_model.name
    else:
        name = f"{factory.kind}-{uuid.uuid4().hex[:12]}" if record is None else record.model
    snapshots = ps.conf.checkpointDir or f"{location.rstrip('/')}/{FOLDER}/snapshots"
    checkpoint = SparkCheckpoint(backend_of(frame).checkpoint_files(), location)
    columns = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    expected = StreamRecord("", name, factory.kind, factory.settings, columns, snapshots)
    with ExitStack() as stack:
        stack.enter_context(training_host(ps).streams.stream(name))
        own_record = claim_location(checkpoint, expected)
        model, state = _model_and_state(ps, factory, own_record, requested_model, record is None)
        learner = BatchLearner(ps, factory.program(model), factory.reader, state, options)
        learner.value_counts = read_counts(location)
        if not learner.position.has_complete_batches:
            raise RecoveryError(
                f"checkpointLocation {location}: the fleet holds a part of batch {learner.position.started}, because a "
                f"driver was killed during that batch: start from the snapshot, PS2Context.getOrCreate(..., "
                f"restore={own_record.snapshots!r})"
            )
        stream_options = StreamOptions(
            None if ps.conf.checkpointDir else snapshots,
            every_s,
            min(max_batches or SNAPSHOT_BATCHES, SNAPSHOT_BATCHES),
            trigger=trigger,
            query_name=query_name,
            on_progress=on_progress,
        )
        training = StreamingTraining(ps, frame, learner, checkpoint, stream_options, model)
        training.snapshot()
        training.on_end = stack.pop_all().close
    return training.start(watch())


def _context(frame: Any, record: StreamRecord | None, servers: int | None) -> PS2Context:
    """Return the active context, or a new context, started from the stream's newest snapshot if there is one."""
    if PS2Context.getActive() is None and record is not None and _has_snapshot(record):
        return PS2Context.getOrCreate(frame.sparkSession, servers, restore=record.snapshots)
    return PS2Context.getOrCreate(frame.sparkSession, servers)


def _model_and_state(
    ps: PS2Context, factory: ModelFactory, record: StreamRecord, requested_model: Any, is_new: bool
) -> tuple[Any, StreamState]:
    """Return the model and the state of the stream on the fleet; make them if the stream is new."""
    name = f"stream-{record.stream}"
    try:
        state = StreamState(ps.vector(name))
    except NotFoundError:
        if not is_new and _has_snapshot(record):
            raise UsageError(
                f"the fleet does not hold model {record.model}, which learns from this checkpointLocation: start from "
                f"its snapshot, PS2Context.getOrCreate(..., restore={record.snapshots!r}), or without a context"
            ) from None
        if requested_model is None:
            requested_model = _existing_or_new(ps, factory, record.model)
        return requested_model, StreamState.new(name)
    return (factory.existing(record.model, ps) if requested_model is None else requested_model), state


def _existing_or_new(ps: PS2Context, factory: ModelFactory, name: str) -> Any:
    """Return the fleet's model of a name, which a driver that was killed may have made, or else a new model."""
    try:
        return factory.existing(name, ps)
    except NotFoundError:
        return factory.begin(name)


def _has_snapshot(record: StreamRecord) -> bool:
    try:
        folders.newest(record.snapshots)
    except CheckpointMissingError:
        return False
    return True


# The seconds of each unit of a duration.
UNITS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0}


def batches_of(value: Any) -> int | None:
    """Return 3 for "3 batches"; None: the value is not a text of this form with a positive number."""
    words = value.split() if isinstance(value, str) else []
    if len(words) == 2 and words[1] in ("batch", "batches") and words[0].isdecimal() and int(words[0]):
        return int(words[0])
    return None


def seconds_of(value: Any, name: str) -> float:
    """Return the seconds of a duration: a number, or a text such as "5 minutes". ConfigError: it is not above 0."""
    seconds = -1.0
    if is_number(value):
        seconds = float(value)
    elif isinstance(value, str) and len(words := value.split()) == 2 and words[1].removesuffix("s") in UNITS:
        with suppress(ValueError):  # the error below describes it
            seconds = float(words[0]) * UNITS[words[1].removesuffix("s")]
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"{name}: expected a duration above 0 such as '5 minutes', got {value!r}")
    return seconds
