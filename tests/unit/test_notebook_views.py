"""What a notebook shows of PS2's objects: escaped HTML without colours, made without asking servers."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from pyspark.ml.param import Params

from ps2 import DCV, progress_line
from ps2.client.fleet import FleetRef
from ps2.client.matrix import DCVMatrix
from ps2.coordinator.catalog import Entry
from ps2.coordinator.conf import PS2Conf
from ps2.coordinator.fleet_status import FleetServer, FleetStatus
from ps2.coordinator.monitoring import overview
from ps2.matrix.partition import MatrixSpec
from ps2.matrix.route import Route
from ps2.rpc.run_control import ClockTimes
from ps2.run.result import RunResult
from ps2.run.timeline import to_table
from ps2.text_tables import MAX_HTML_ROWS, Column, Table, to_html

SPEC = MatrixSpec(1000, 4, dtype="float64")
ROUTE = Route(1, (0, 500, 1000), ("host:1", "host:2"))
FLEET = FleetRef("fleet", "host:9", False, 1.0, (), "")


def cells(html):
    """The text of all cells, in order."""
    return re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", html)


@pytest.fixture
def vector():
    handle = DCV(FLEET, 7, 0, SPEC, ROUTE)
    handle._name = "<b>weight</b>"
    return handle


def test_html_when_text_has_markup_then_escapes_all_of_it():
    bad = "<script>&\"'"
    html = to_html(bad, bad, Table([Column(bad)], [[bad]]))
    assert html.count("&lt;script&gt;&amp;&quot;&#x27;") == 4
    assert "<script" not in html


def test_html_when_rows_are_many_then_says_how_many_more():
    html = Table([Column("n")], [["1"]] * (MAX_HTML_ROWS + 1000)).html()
    assert (html.count("<tr>"), cells(html)[-1]) == (MAX_HTML_ROWS + 2, "and 1,000 more")


def test_html_when_table_is_shown_then_sets_no_colours(vector):
    assert not re.search("color|background|#[0-9a-f]{3}", vector._repr_html_())


def test_vector_when_shown_then_has_bytes_and_places(vector):
    html = vector._repr_html_()
    assert "&lt;b&gt;weight" in html
    assert cells(html)[:2] == ["bytes", "7.8 KiB"]
    assert cells(html)[-6:] == ["0", "0 to 499", "host:1", "1", "500 to 999", "host:2"]


def test_matrix_when_shown_then_counts_all_its_rows(vector):
    html = DCVMatrix(vector, 4, [])._repr_html_()
    assert "DCVMatrix(dense, rows=4, dim=1000" in html
    assert cells(html)[:2] == ["bytes", "31.2 KiB"]


def test_context_when_shown_then_has_servers_and_matrices():
    members = [("a", "host:1"), ("b", "host:2")]
    master = SimpleNamespace(
        entries=lambda: [Entry(7, SPEC, ROUTE, used={0, 1})],
        rows_by_name=lambda: {7: {"weight": 0}},
        present=lambda: {"a": "host:1"},
        registry=SimpleNamespace(members=lambda: members),
    )
    html = overview(master, PS2Conf(servers=2), "http://host:4/?a=<b>&c")
    assert '<a href="http://host:4/?a=&lt;b&gt;&amp;c"' in html
    assert "1 of 2 servers are running" in html
    assert cells(html)[:2] == ["launcher", "local"]
    assert cells(html)[6:14] == ["host:1", "running", "1", "15.6 KiB", "host:2", "lost", "1", "15.6 KiB"]
    assert cells(html)[-10:] == ["7", "dense", "row", "1,000", "float64", "4", "2", "31.2 KiB", "2", "weight"]


def test_status_when_shown_then_has_its_tables():
    lost = FleetServer("host:1", None, "gone")
    assert cells(FleetStatus([lost], [], [])._repr_html_())[13:16] == ["host:1", "unreachable", "-"]


def test_result_when_shown_then_has_times_by_rank():
    result = RunResult((1,), 4.0, 0, 0, (to_table([ClockTimes(0, 0.0, 3.0, 1.0, 0.0, 0.0)]),))
    html = result._repr_html_()
    assert "1 worker, BSP" in html
    assert cells(html)[4:7] == ["compute", "3.000", "75.0"]
    assert cells(html)[-10:] == ["0", "1", "3.000", "1.000", *["0.0000"] * 6]


def test_model_when_shown_then_has_the_params_that_were_set():
    from ps2.algorithms.classification import LogisticRegression
    from ps2.algorithms.frame.summaries import model_html

    estimator: Params = LogisticRegression(labelCol="<y>")
    html = model_html(estimator, None)
    assert cells(html)[-2:] == ["labelCol", "&#x27;&lt;y&gt;&#x27;"]


def test_progress_when_in_a_notebook_then_words_are_escaped():
    shown = progress_line._notebook_line("fit", 3, 10, ["<step>", "loss 1"])
    html = '<progress value="3" max="10"></progress> fit: &lt;step&gt;, loss 1'
    assert shown == {"text/plain": "fit: <step>, loss 1", "text/html": html}
