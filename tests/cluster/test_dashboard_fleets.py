"""The live page of fleets that come, go, and lose servers."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from ps2 import PS2Conf, PS2Context
from ps2.config import new_token, write_token
from ps2.errors import ConfigError, LaunchError
from tests.viewer import Viewer


def test_page_when_a_server_is_killed_then_says_so(leaves_nothing, tmp_path):
    conf = PS2Conf(lostAfterS=2.0, heartbeatS=0.5, startTimeoutS=60.0)
    with PS2Context.getOrCreate(servers=2, replicas=1, conf=conf) as ps:
        viewer = Viewer(ps.dashboardUrl)
        viewer.see(lambda s: s["fleet"]["running"] == 2 and s["fleet"]["memory_limit_bytes"])
        pid = ps._coordinator.fleet.control.status(ps.servers[1]).pid
        os.kill(pid, signal.SIGKILL)
        result = viewer.see(lambda s: any(event["kind"] == "lost" for event in s["events"]))
        assert "server 1 is lost" in " ".join(event["text"] for event in result["events"])
        result = viewer.see(lambda s: s["recoveries"])
        assert result["recoveries"][0]["source"] == "replica"
        viewer.see(lambda s: s["fleet"]["running"] == 2)
        viewer.close()


def test_page_when_the_context_is_made_again_then_goes_on(leaves_nothing):
    with PS2Context.getOrCreate(servers=1, conf=PS2Conf(dashboardListen="127.0.0.1:0")) as ps:
        viewer = Viewer(ps.dashboardUrl)
        fleet = viewer.see(lambda s: True)["fleet_id"]
        port = ps.dashboardUrl.rpartition(":")[2].partition("/")[0]
    with PS2Context.getOrCreate(servers=1, conf=PS2Conf(dashboardListen=f"127.0.0.1:{port}")):
        assert viewer.see(lambda s: True)["fleet_id"] != fleet
    viewer.close()


def test_link_when_the_token_is_in_a_file_then_has_it(leaves_nothing, tmp_path):
    token = new_token()
    write_token(tmp_path / "token", token)
    with PS2Context.getOrCreate(servers=1, conf=PS2Conf(dashboardTokenFile=str(tmp_path / "token"))) as ps:
        assert ps.dashboardUrl.endswith(f"?token={token}")


def test_context_when_dashboard_is_false_then_has_no_page(leaves_nothing, capsys):
    with PS2Context.getOrCreate(servers=1, dashboard=False) as ps:
        assert ps.dashboardUrl is None
        assert "page" not in repr(ps)
    assert "live page" not in capsys.readouterr().err


def test_context_when_metrics_port_is_taken_then_says_so(leaves_nothing):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"port {port} of 127\.0\.0\.1 \(metricsListen\): .*in use"):
            PS2Context.getOrCreate(servers=1, dashboard=False, conf=PS2Conf(metricsListen=f"127.0.0.1:{port}"))


@pytest.mark.parametrize(
    "given", [{"dashboard": "yes"}, {"dashboardListen": 4070}, {"metricsListen": "9091"}, {"tracing": "yes"}]
)
def test_settings_when_the_page_s_are_wrong_then_config_error(given):
    with pytest.raises(ConfigError, match=next(iter(given))):
        PS2Conf(**given)
