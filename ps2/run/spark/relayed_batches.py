"""Streaming queries whose batches a client of Spark Connect handles in its own process.

Spark calls the function of ``foreachBatch`` in a Python process on the Connect server's host. But the batches must be
handled in the client, where PS2's coordinator is. So the function sends a request to the client and waits for the
answer. Request and answer are settings of the client's session, which both processes can read and write through the
server. The rows stay on the server.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ps2.errors import StoppedError, WorkerError

log = logging.getLogger(__name__)

# The interval in which both sides read the other side's setting.
POLL_S = 0.05
# The function of ``foreachBatch`` fails after this time without a new ``beat`` of the client.
SILENCE_S = 60.0
# The interval of checks that the server is reachable.
WATCH_S = 0.5
# The maximum number of attempts to start a query.
STARTS = 5
# Spark's error if the Python process of a query starts too slowly.
SLOW_START = "Python worker failed to connect back"
# The environment variable with the server's address for Python processes on its host.
LOCAL_URL = "SPARK_CONNECT_LOCAL_URL"


@dataclass(frozen=True)
class Ask:
    """The function's request to the client.

    Attributes:
        id: a random id of the request.
        batch: the number of the batch.
        relation: the server's id of the batch's DataFrame.
        session: the id of the DataFrame's session; Spark 4.3 clones the client's session for each query.
    """

    id: str
    batch: int
    relation: str
    session: str


@dataclass(frozen=True)
class Answer:
    """The client's answer. While the client is alive, it repeats the answer with another ``beat``.

    Attributes:
        beat: a number that grows with each repetition.
        ask: the id of the last handled request, or "".
        error: the error of that request's batch, or "".
    """

    beat: int = 0
    ask: str = ""
    error: str = ""


class BatchRefusedError(Exception):
    """The client could not handle a batch, or does not answer. Spark reports this error as the query's."""


@dataclass(frozen=True)
class AskClient:
    """The function of ``foreachBatch``.

    ``session`` is the id of the client's session, and ``key`` the prefix of the settings with request and answer.
    """

    session: str
    key: str

    def __call__(self, frame: Any, batch: int) -> None:
        settings = _server_session(self.session).conf
        ask = Ask(uuid.uuid4().hex, batch, frame._plan._relation_id, frame.sparkSession.session_id)
        settings.set(f"{self.key}.ask", json.dumps(asdict(ask)))
        beat, last_beat_s = -1, time.monotonic()
        while True:
            answer = Answer(**json.loads(settings.get(f"{self.key}.answer")))
            if answer.ask == ask.id:
                break
            if answer.beat != beat:
                beat, last_beat_s = answer.beat, time.monotonic()
            if time.monotonic() - last_beat_s > SILENCE_S:
                raise BatchRefusedError(f"batch {batch}: the client has not answered for {SILENCE_S:.0f} s")
            time.sleep(POLL_S)
        if answer.error:
            raise BatchRefusedError(answer.error)


_server_sessions: dict[str, Any] = {}


def _server_session(id: str) -> Any:
    """Return this process's connection to the session with an id."""
    if id not in _server_sessions:
        from pyspark.sql.connect.session import SparkSession

        _server_sessions[id] = SparkSession(connection=f"{os.environ[LOCAL_URL]};session_id={id}")
    return _server_sessions[id]


class ConnectedSession(Protocol):
    """A session of a Spark Connect server, with checks that the server is reachable."""

    @property
    def session(self) -> Any:
        """The SparkSession."""

    def check_alive(self) -> None:
        """Raise StoppedError, and end calls that wait for the server, if the server is lost."""

    def calling(self) -> AbstractContextManager[None]:
        """Raise StoppedError instead of Spark's error if the session is over."""


class RelayedQuery:
    """A StreamingQuery of Spark Connect whose batches are handled by threads of this process."""

    def __init__(self, writer: Any, spark: ConnectedSession, handle: Callable[[Any, int], None]) -> None:
        """Start the query; an error of ``handle`` fails it."""
        self._spark, self._session, self._handle = spark, spark.session, handle
        self._key = f"ps2.batches.{uuid.uuid4().hex}"
        self._frame_session = self._session  # the connection to the session of the batches' DataFrames
        self._frame_session_lock = threading.Lock()
        self._closing = threading.Event()
        self._loss: StoppedError | None = None
        self._answer = Answer()
        with spark.calling():
            self._publish()
            self._query = _start(writer.foreachBatch(AskClient(self._session.session_id, self._key)))
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in ((self._relay, "ps2-batches"), (self._watch, "ps2-batches-watch"))
        ]
        for thread in self._threads:
            thread.start()

    def __getattr__(self, name: str) -> Any:
        with self._spark.calling():
            return getattr(self._query, name)

    def exception(self) -> Any:
        """Return the error that ended the query; None if there is none."""
        with self._spark.calling():
            return self._query.exception()

    def processAllAvailable(self) -> None:
        """Wait until the batches of all present rows of the source are handled."""
        with self._spark.calling():
            self._query.processAllAvailable()

    def awaitTermination(self, timeout: float) -> bool:
        """Wait for the query's end, and then for the batch that is being handled.

        Raise StoppedError if the server is lost.
        """
        ended = True
        try:
            with self._spark.calling():
                ended = bool(self._query.awaitTermination(timeout))
        except Exception:  # the query failed, or Spark's client has stopped retrying
            if self._loss is not None:
                raise self._loss from None
            raise
        finally:
            if ended:
                self._close()
        return ended

    def stop(self) -> None:
        """Stop the query after the batch that is being handled."""
        self._closing.set()  # the next batch is refused: the query must not wait for it
        with suppress(StoppedError), self._spark.calling():  # if the session has ended, the query has, too
            self._query.stop()
        self._close()

    def _close(self) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join()
        self._close_connection()
        if self._loss is None:
            with suppress(StoppedError), self._spark.calling():
                for name in ("ask", "answer"):
                    self._session.conf.unset(f"{self._key}.{name}")

    def _close_connection(self) -> None:
        """Close the connection to the query's session, but not the session."""
        with self._frame_session_lock:
            connection, self._frame_session = self._frame_session, self._session
        if connection is not self._session:
            connection.client.close()

    def _watch(self) -> None:
        while not self._closing.wait(WATCH_S):
            try:
                self._spark.check_alive()
            except StoppedError as error:
                self._loss = error
                return

    def _relay(self) -> None:
        """Answer the function's requests until the query has ended."""
        try:
            with self._spark.calling():
                while not self._closing.is_set():
                    self._answer_next()
                    self._closing.wait(POLL_S)
                self._answer_next()
        except StoppedError as error:  # ``awaitTermination`` raises it
            self._loss = error
        except Exception as error:  # Spark's client has stopped retrying; the function on the server will also fail
            log.warning("a streaming query's batches are no longer handled: %s", error)

    def _answer_next(self) -> None:
        text = self._session.conf.get(f"{self._key}.ask", None)
        ask = None if text is None else Ask(**json.loads(text))
        if ask is not None and ask.id != self._answer.ask:
            error = self._handle_request(ask)
            self._answer = Answer(self._answer.beat, ask.id, error)
        self._publish()

    def _handle_request(self, ask: Ask) -> str:
        """Handle a batch in another thread, while this thread repeats the answer; return the batch's error, or ""."""
        if self._closing.is_set():
            return f"batch {ask.batch}: the query is being stopped"
        errors: list[str] = []

        def handle() -> None:
            try:
                self._handle(self._batch_frame(ask), ask.batch)
            except Exception as error:  # the function of ``foreachBatch`` raises it
                errors.append(str(error) or type(error).__name__)

        thread = threading.Thread(target=handle, name="ps2-batch", daemon=True)
        thread.start()
        while thread.is_alive():
            self._publish()
            thread.join(POLL_S)
        return errors[0] if errors else ""

    def _publish(self) -> None:
        self._answer = Answer(self._answer.beat + 1, self._answer.ask, self._answer.error)
        self._session.conf.set(f"{self._key}.answer", json.dumps(asdict(self._answer)))

    def _batch_frame(self, ask: Ask) -> Any:
        if ask.session != self._frame_session.session_id:
            # A restarted query has another session.
            self._close_connection()
            connection = _connection_to(self._session, ask.session)
            with self._frame_session_lock:
                # This connection would never be closed, and an open client calls the server when the program ends.
                if self._closing.is_set():
                    connection.client.close()
                    raise StoppedError(f"batch {ask.batch}: the query is being stopped")
                self._frame_session = connection
        return self._frame_session._create_remote_dataframe(ask.relation)


def _start(writer: Any) -> Any:
    """Start a query, with retries: Spark waits only 10 s for the function's process, which a busy host can exceed."""
    from pyspark.errors import PySparkException

    for _ in range(STARTS):
        try:
            return writer.start()
        except PySparkException as error:
            if SLOW_START not in str(error):
                raise
            log.warning("the Python process of a stream's batches started too slowly on the Connect server's host")
    raise WorkerError(
        f"the Python process of a stream's batches did not start within Spark's 10 s, {STARTS} times: the Connect "
        "server's host is too busy, or its Python does not run (see the server's log)"
    )


def _connection_to(session: Any, id: str) -> Any:
    """Return a SparkSession of the same server and user for the session with this id."""
    from pyspark.sql.connect.session import SparkSession

    builder = copy.copy(session.client._builder)
    builder._params = {**builder._params, "session_id": id}
    if session.client._user_id is not None:
        builder.set("user_id", session.client._user_id)
    return SparkSession(connection=builder)
