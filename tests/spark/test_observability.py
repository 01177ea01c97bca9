"""Metrics and traces of a driver, during and after real runs and fits."""

from __future__ import annotations

import urllib.request

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families as parse

from ps2 import PS2Conf, PS2Context
from ps2.dashboard.driver_metrics import category_metric
from ps2.run.timeline import NAMES

pytestmark = pytest.mark.usefixtures("by_value")
CLOCKS = 4


@pytest.fixture(scope="module")
def exporter():
    """The spans that end in this process; it has one provider for good."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        trace.set_tracer_provider(TracerProvider())
    kept = InMemorySpanExporter()
    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(kept))
    return kept


@pytest.fixture(scope="module")
def observed(spark, exporter, tmp_path_factory):
    """A context with metrics and traces."""
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    conf = PS2Conf(servers=1, metricsListen="127.0.0.1:0", tracing=True, checkpointDir=folder, dashboard=False)
    with PS2Context.getOrCreate(spark, conf=conf) as ps:
        yield ps


@pytest.fixture(scope="module")
def scrape(observed):
    """``scrape()``: the samples, {(name, label): value}."""

    def read():
        with urllib.request.urlopen(observed.metricsUrl, timeout=10) as answer:
            families = list(parse(answer.read().decode()))
        return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}

    return read


@pytest.fixture(scope="module")
def run(observed, sc, scrape, exporter):
    """A run with a checkpoint: its result, the scrapes before, in it and after it, and its spans by name."""
    before, seen = scrape(), []

    def work(worker, rows):
        for _ in worker.clocks(CLOCKS):
            pass

    def on_clock(t):
        if t == 1:
            observed.checkpoint()
        seen.append(scrape())

    exporter.clear()
    result = observed.run(sc.parallelize(range(4), 2), work, onClock=on_clock)
    spans = {}
    for span in exporter.get_finished_spans():
        spans.setdefault(span.name, []).append(span)
    return result, before, seen[-1], scrape(), spans


def test_metrics_when_a_run_is_under_way_then_tell_its_state(run):
    _, _, during, _, _ = run
    assert during["ps2_run_active",] == 1
    assert sum(during["ps2_run_workers", state] for state in ("working", "wait", "onClock", "no_task", "returned")) == 2
    assert [during["ps2_run_clock", rank] for rank in "01"] == [CLOCKS, CLOCKS]
    assert (during["ps2_run_staleness",], during["ps2_run_staleness_limit",]) == (0, 0)
    assert during["ps2_checkpoint_timestamp_seconds",] > 1.7e9


def test_metrics_when_a_run_is_over_then_times_add_up(run):
    result, before, during, after, _ = run
    assert (after["ps2_run_active",], after["ps2_runs_total",]) == (0, before["ps2_runs_total",] + 1)
    assert after["ps2_checkpoints_total",] > before["ps2_checkpoints_total",]
    for rank in "01":
        assert after["ps2_run_clocks_total", rank] - before.get(("ps2_run_clocks_total", rank), 0) == CLOCKS
        names = [(f"{category_metric(category)}_total", rank) for category in NAMES]
        assert all(after[name] >= during[name] >= before.get(name, 0) for name in names)
        whole_s = sum(after[name] - before.get(name, 0) for name in names)
        assert 0 < whole_s <= 1.01 * result.seconds


def test_spans_when_a_run_is_over_then_clocks_are_its_children(run, observed):
    *_, spans = run
    (of_run,) = spans["ps2.run"]
    assert of_run.attributes["ps2.fleet"] == observed._coordinator.fleet.master.id
    clocks = spans["ps2.clock"]
    messages = sorted((span.attributes["ps2.rank"], span.attributes["ps2.clock"]) for span in clocks)
    assert messages == [(rank, clock) for rank in range(2) for clock in range(CLOCKS)]
    assert {span.parent.span_id for span in clocks} == {of_run.context.span_id}
    assert {span.attributes["ps2.run"] for span in clocks} == {of_run.attributes["ps2.run"]}
    for span in clocks:
        mine = span.context.span_id
        parts = [one for each in spans.values() for one in each if one.parent and one.parent.span_id == mine]
        assert {one.name for one in parts} <= {f"ps2.worker.{category}" for category in NAMES}
        assert sum(one.end_time - one.start_time for one in parts) == pytest.approx(span.end_time - span.start_time)
        assert of_run.start_time <= span.start_time <= span.end_time <= of_run.end_time


def test_spans_when_a_checkpoint_was_made_then_is_in_the_run(run):
    *_, spans = run
    (of_run,) = spans["ps2.run"]
    assert all(span.parent.span_id == of_run.context.span_id for span in spans["ps2.checkpoint"])
    assert all(span.attributes["ps2.pause_s"] >= 0 for span in spans["ps2.checkpoint"])


def test_spans_when_the_fleet_rolls_back_then_one_is_recovery(run, observed, exporter, until):
    exporter.clear()
    observed.rollBack()
    until(lambda: "ps2.recovery" in [span.name for span in exporter.get_finished_spans()], "the recovery has a span")


def test_fit_when_done_then_has_span_and_loss(observed, spark, scrape, exporter):
    from pyspark.ml.linalg import Vectors

    from ps2.algorithms.classification import LogisticRegression

    exporter.clear()
    rows = [(float(i % 2), Vectors.dense([i % 2, 1.0])) for i in range(20)]
    model = LogisticRegression(maxIter=5).fit(spark.createDataFrame(rows, ["label", "features"]))
    result = scrape()
    assert result["ps2_training_loss",] == pytest.approx(model.summary.history.objective[-1])
    assert result["ps2_training_step",] == model.summary.history.steps
    spans = exporter.get_finished_spans()
    (fit,) = [span for span in spans if span.name == "ps2.fit LogisticRegression"]
    assert {span.context.trace_id for span in spans if span.name == "ps2.run"} == {fit.context.trace_id}
