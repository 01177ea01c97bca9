"""Lines of JSON, and the lines of workers that travel to the driver."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone

import pytest

from ps2.errors import ConfigError
from ps2.logs import JsonFormatter, JsonLog, log_format
from ps2.rpc.run_control import LogLine, LogLines
from ps2.run.worker_log import MAX_CHARS, MAX_LINES, MAX_RUN_LINES, WORKERS, LineCollector, RunLines


def line_of(record, **fields):
    text = JsonFormatter(lambda: fields).format(record)
    assert "\n" not in text
    return json.loads(text)


def record(message="it is %s", args=("so",), **extra):
    return logging.getLogger("ps2.some").makeRecord("ps2.some", logging.ERROR, "f", 1, message, args, None, extra=extra)


def test_line_when_formatted_then_has_time_and_known_fields():
    created = record()
    line = line_of(created, fleet="f", run=3, clock=7, server=None)
    at = datetime.fromisoformat(line.pop("ts").replace("Z", "+00:00"))
    assert abs(at - datetime.fromtimestamp(created.created, timezone.utc)).total_seconds() < 0.002
    assert line == {"level": "ERROR", "logger": "ps2.some", "message": "it is so", "fleet": "f", "run": 3, "clock": 7}


def test_line_when_record_has_fields_then_they_win():
    assert line_of(record(rank=1, clock=2), clock=7, rank=None)["clock"] == 2


def test_line_when_there_is_an_exception_then_is_one_line():
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        created = logging.getLogger("x").makeRecord(
            "x", logging.ERROR, "f", 1, "two\nlines", (), logging.sys.exc_info()
        )
    line = line_of(created)
    assert line["message"] == "two\nlines"
    assert line["exception"].endswith("ValueError: first\nsecond")


@pytest.mark.parametrize(("given", "expected"), [({}, "text"), ({"PS2_LOG": "json"}, "json")])
def test_format_when_asked_then_is_that_of_variable(given, expected):
    assert log_format(given) == expected


def test_format_when_unknown_then_error_names_the_formats():
    with pytest.raises(ConfigError, match=r"PS2_LOG: expected 'text' or 'json', got 'JSON'"):
        log_format({"PS2_LOG": "JSON"})


def test_json_log_when_closed_then_logger_is_as_before(capsys):
    logger = logging.getLogger("ps2.of_this_test")
    before = logger.level, logger.propagate, list(logger.handlers)
    log = JsonLog(lambda: {"fleet": "f"}, logger.name)
    log.open()
    logger.info("heard")
    log.close()
    logger.info("not heard")
    assert (logger.level, logger.propagate, logger.handlers) == before
    (line,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert (line["message"], line["level"], line["fleet"]) == ("heard", "INFO", "f")


def test_collector_when_users_log_then_takes_warnings():
    collector, users = LineCollector(lambda: 4), logging.getLogger("user.code")
    with collector.collecting():
        users.info("nothing")
        users.warning("loss is %g", 2.5)
        assert collector.take() == LogLines((LogLine(logging.WARNING, "user.code", "loss is 2.5", 4),))
        assert not collector.take()
    users.warning("later")
    assert not collector.take()


def test_collector_when_lines_are_many_then_counts_the_rest():
    collector = LineCollector(lambda: 0)
    with collector.collecting():
        for _ in range(MAX_LINES + 5):
            logging.getLogger("user.code").error("x" * (MAX_CHARS + 1))
    taken = collector.take()
    assert (len(taken.lines), taken.left_out, len(taken.lines[0].text)) == (MAX_LINES, 5, MAX_CHARS)


def test_collector_when_a_message_is_wrong_then_keeps_it():
    collector = LineCollector(lambda: 0)
    with collector.collecting():
        logging.getLogger("user.code").makeRecord("user.code", logging.ERROR, "f", 1, "%d rows", ("no",), None)
    assert collector.take().lines[0].text.startswith("%d rows (TypeError: ")


def test_run_lines_when_logged_then_name_rank_and_clock(caplog):
    lines = RunLines()
    lines.add(2, LogLines((LogLine(logging.ERROR, "user.code", "broken", 9),)))
    lines.add(0, LogLines(tuple(LogLine(30, "user.code", "x", 0) for _ in range(MAX_RUN_LINES)), left_out=3))
    lines.log()
    lines.log_left_out()
    first, *_, last = caplog.records
    assert (first.name, first.levelno, first.rank, first.clock) == (WORKERS, logging.ERROR, 2, 9)
    assert first.getMessage() == "rank 2, clock 9: user.code: broken"
    assert (len(caplog.records), last.getMessage()[:13]) == (MAX_RUN_LINES + 1, "4 more lines ")
