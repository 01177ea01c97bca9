"""The Grafana dashboard: its form, and that every query asks for metrics that servers or drivers have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ps2.dashboard.driver_metrics import category_metric
from ps2.run.timeline import NAMES
from tests.promql import metric_names

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "ps2.json").read_text())
TARGETS = [target for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
DOCUMENTED = set(re.findall(r"^\| `(\w+)", (ROOT / "docs" / "metrics.md").read_text(), flags=re.MULTILINE))
# Of the Python client.
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
ENDINGS = ("_bucket", "_sum", "_count")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("ps2_a", {"ps2_a"}),
        ('sum by (le, operation) (rate(ps2_a_bucket{operation=~"x|ps2_c", rank!="1"}[5m]))', {"ps2_a_bucket"}),
        ("time() - max(ps2_a) > 3 and on(rank) ps2_b offset 5m", {"ps2_a", "ps2_b"}),
        ("sum(rate(a:b:c[$__rate_interval])) / 2e3 < Inf", {"a:b:c"}),
        ('label_values(ps2_a{x="}"}, instance)', {"ps2_a", "instance"}),
    ],
)
def test_expression_when_read_then_its_metrics_are_found(expression, expected):
    assert metric_names(expression) == expected


def test_queries_when_read_then_ask_for_known_metrics():
    asked = {name for target in TARGETS for name in metric_names(target["expr"])}
    unknown = {name for name in asked - PROCESS if name not in DOCUMENTED}
    assert {
        name for name in unknown if not name.endswith(ENDINGS) or name.rpartition("_")[0] not in DOCUMENTED
    } == set()
    assert {f"{category_metric(category)}_total" for category in NAMES} <= asked


def test_promql_in_docs_when_read_then_asks_for_known_metrics():
    blocks = re.findall(r"```promql\n(.*?)```", (ROOT / "docs" / "metrics.md").read_text(), flags=re.DOTALL)
    asked = {name for block in blocks for name in metric_names(block)}
    assert {name.removesuffix("_bucket") for name in asked} <= DOCUMENTED


def test_dashboard_when_read_then_panels_have_ids_and_places():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        position = panel["gridPos"]
        cells = {(position["x"] + x, position["y"] + y) for x in range(position["w"]) for y in range(position["h"])}
        assert not cells & taken, panel["title"]
        assert position["x"] + position["w"] <= 24
        taken |= cells
        assert len({target["refId"] for target in panel.get("targets", ())}) == len(panel.get("targets", ()))
        assert panel["type"] == "row" or panel["targets"]


def test_dashboard_when_read_then_its_variables_are_there():
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    sources = {target["datasource"]["uid"] for target in TARGETS}
    sources |= {panel["datasource"]["uid"] for panel in DASHBOARD["panels"] if panel["type"] != "row"}
    sources |= {variable["datasource"]["uid"] for name, variable in variables.items() if name != "datasource"}
    assert sources == {"${datasource}"}
    used = {name for target in TARGETS for name in re.findall(r"\$(\w+)", target["expr"]) if not name.startswith("__")}
    assert used == variables.keys() - {"datasource"}
