"""What workers log: warnings reach the driver, and with PS2_LOG=json each line is one of JSON."""

from __future__ import annotations

import json
import logging

import pytest

pytestmark = pytest.mark.usefixtures("by_value")


@pytest.fixture
def rdd(sc):
    return sc.parallelize(range(4), 2)


def test_worker_when_it_warns_then_driver_and_page_have_it(ps, rdd, caplog):
    def work(worker, rows):
        import logging

        for t in worker.clocks(2):
            if worker.rank == t == 1:
                logging.getLogger("user.code").warning("loss is %g", 2.5)

    ps.run(rdd, work)
    (record,) = [record for record in caplog.records if record.name == "ps2.workers"]
    assert (record.levelno, record.rank, record.clock) == (logging.WARNING, 1, 1)
    newest = ps._coordinator.monitoring.watcher.snapshot().events[0]
    assert (newest.kind, newest.text) == ("worker", "rank 1, clock 1: user.code: loss is 2.5")


def test_worker_when_it_fails_then_its_warnings_came_before(ps, rdd, caplog):
    from ps2.errors import WorkerError

    def work(worker, rows):
        import logging

        for _ in worker.clocks(1):
            logging.getLogger("user.code").error("about to fail")
            raise ValueError("failed")

    with pytest.raises(WorkerError, match="failed"):
        ps.run(rdd, work)
    assert "about to fail" in [r.getMessage().rsplit(": ", 1)[1] for r in caplog.records if r.name == "ps2.workers"]


def test_worker_when_json_is_asked_for_then_lines_have_fields(ps, rdd, tmp_path, monkeypatch):
    monkeypatch.setenv("PS2_LOG", "json")

    def work(worker, rows):
        import logging

        (handler,) = logging.root.handlers
        with open(f"{tmp_path}/{worker.rank}", "w") as file:
            before = handler.setStream(file)
            for _ in worker.clocks(3):
                logging.getLogger("user.code").warning("one\nevent")
            handler.setStream(before)
        return before is not None

    number = ps._coordinator.runs.count
    assert ps.run(rdd, work) == [True, True]
    for rank in range(2):
        lines = [json.loads(line) for line in (tmp_path / f"{rank}").read_text().splitlines()]
        assert [line["clock"] for line in lines] == [0, 1, 2]
        for line in lines:
            assert (line["rank"], line["run"], line["fleet"]) == (rank, number, ps._coordinator.fleet.master.id)
            assert (line["level"], line["logger"], line["message"]) == ("WARNING", "user.code", "one\nevent")
            assert line["ts"].endswith("Z")
