"""The live page of a running fleet, as a browser reads it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ps2 import DCV
from ps2.config import new_token, write_token
from ps2.errors import ConfigError
from tests.commands import ps2
from tests.viewer import Viewer


@pytest.fixture(scope="module")
def viewer(ps):
    viewer = Viewer(ps.dashboardUrl)
    yield viewer
    viewer.close()


def test_page_when_vectors_are_used_then_figures_move(ps, viewer):
    vector = DCV.dense(1000, 2, name="weight of the page")
    vector.fill(1.0)
    first = viewer.see(lambda s: s["fleet"]["memory_limit_bytes"] and s["operations"])
    assert [server["state"] for server in first["fleet"]["shown"]] == ["running", "running"]
    (matrix,) = [one for one in first["vectors"]["shown"] if "weight of the page" in one["names"]]
    assert (matrix["dim"], matrix["rows"], matrix["reserved"], matrix["bytes"]) == (1000, 1, 2, 8000)
    assert matrix["partitions"] == [1, 1]
    runs = sum(finished["count"] for finished in first["operations"])
    for _ in range(100):
        vector.pull()
    later = viewer.see(lambda s: sum(finished["count"] for finished in s["operations"]) >= runs + 200)
    assert later["fleet"]["shown"][0]["uptime_s"] > first["fleet"]["shown"][0]["uptime_s"]
    assert viewer.vectors(find="OF THE PAGE")["found"] == 1
    assert viewer.vectors(find="no such name")["shown"] == []
    vector.free()


def test_servers_when_nobody_looks_then_report_nothing(ps, viewer, until):
    reports = ps._coordinator.fleet.master.reports
    until(lambda: not reports.are_requested, "nobody looks")
    viewer.see(lambda s: s["fleet"]["memory_limit_bytes"])
    assert reports.are_requested


def test_run_when_it_fails_before_it_starts_then_in_history(ps, viewer):
    def never_started(worker, rows): ...

    with pytest.raises(ConfigError, match="has no SparkContext") as refused:
        ps.run([1], never_started)
    result = viewer.see(lambda snapshot: [one for one in snapshot["history"] if "never_started" in one["name"]])
    (line,) = [one for one in result["history"] if "never_started" in one["name"]]
    assert line["outcome"] == f"ConfigError: {refused.value}"
    assert line["detail"] == "no worker started"
    assert line["seconds"] < 60


def test_repr_when_the_page_is_on_then_has_the_link(ps):
    assert ps.dashboardUrl in repr(ps)


def command_of(ps, token_file):
    fleet = ("--fleet", ",".join(ps.servers), "--token-file", str(token_file))
    return ["dashboard", *fleet, "--listen", "127.0.0.1:0"]


def test_command_when_its_page_is_opened_then_shows_the_fleet(ps, tmp_path):
    write_token(tmp_path / "token", ps._coordinator.token)
    command = [sys.executable, "-m", "ps2.cli.main", *command_of(ps, tmp_path / "token")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            viewer = Viewer(process.stdout.readline().split()[-1])
            result = viewer.see(lambda snapshot: snapshot["fleet"]["memory_limit_bytes"])
            viewer.close()
        finally:
            process.terminate()
    assert [server["address"] for server in result["fleet"]["shown"]] == ps.servers
    assert "ps.dashboardUrl" in result["note"]
    assert process.returncode == 0


def test_command_when_the_token_is_wrong_then_exits_6(ps, tmp_path):
    write_token(tmp_path / "token", new_token())
    finished = ps2(*command_of(ps, tmp_path / "token"))
    assert finished.returncode == 6, finished.stderr
