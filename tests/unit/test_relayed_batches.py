"""Streaming queries of Spark Connect: the connections that a client opens for their batches are closed."""

from __future__ import annotations

import json
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from ps2.errors import StoppedError
from ps2.run.spark import relayed_batches
from ps2.run.spark.relayed_batches import Ask, RelayedQuery


class Settings(dict):
    """Settings of a session; once it is lost, nothing can be set."""

    is_lost = False

    def set(self, name, value):
        if self.is_lost:
            raise StoppedError("the session has ended")
        self[name] = value

    def unset(self, name):
        self.pop(name, None)


class Session:
    def __init__(self, id):
        self.session_id, self.conf, self.is_closed = id, Settings(), False
        self.client = SimpleNamespace(close=lambda: setattr(self, "is_closed", True))

    def _create_remote_dataframe(self, relation):
        return relation


class Spark:
    def __init__(self):
        self.session = Session("client")

    def calling(self):
        return nullcontext()

    def check_alive(self): ...


class Writer:
    """A DataStreamWriter, and its query, which has ended."""

    def foreachBatch(self, function):
        self.key = function.key
        return self

    def start(self):
        return self

    def awaitTermination(self, timeout):
        return True


@pytest.fixture
def opened(monkeypatch):
    """The connections that were opened; each begins to be opened, and then waits until it may be."""
    created = SimpleNamespace(sessions=[], begun=threading.Event(), may_open=threading.Event())

    def connect(session, id):
        created.begun.set()
        assert created.may_open.wait(10)
        created.sessions.append(Session(id))
        return created.sessions[-1]

    monkeypatch.setattr(relayed_batches, "_connection_to", connect)
    return created


def ask(spark, writer, number):
    request = Ask(f"{number}", number, f"relation {number}", "query's")
    spark.session.conf[f"{writer.key}.ask"] = json.dumps(vars(request))


def test_query_when_it_has_ended_then_its_connection_is_closed(opened, until):
    spark, writer, batches = Spark(), Writer(), []
    opened.may_open.set()
    query = RelayedQuery(writer, spark, lambda frame, batch: batches.append((frame, batch)))
    for number in range(2):
        ask(spark, writer, number)
        until(lambda: len(batches) > number, "the batch is handled")  # noqa: B023 - called here
    assert query.awaitTermination(1)
    assert batches == [("relation 0", 0), ("relation 1", 1)]
    assert [session.is_closed for session in opened.sessions] == [True]


def test_query_when_session_ends_in_a_batch_begun_then_is_closed(opened, until):
    spark, writer, batches = Spark(), Writer(), []
    query = RelayedQuery(writer, spark, lambda frame, batch: batches.append(batch))
    ask(spark, writer, 0)
    assert opened.begun.wait(10)
    spark.session.conf.is_lost = True
    until(lambda: query._loss is not None, "the query notices")
    assert query.awaitTermination(1)
    opened.may_open.set()
    until(lambda: opened.sessions and opened.sessions[0].is_closed, "the late connection is closed")
    assert batches == []
