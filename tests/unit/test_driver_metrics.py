"""A driver's metrics: valid, of bounded labels, monotone over runs."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

from ps2.dashboard.driver_metrics import MAX_RANKS, DriverCollector, category_metric
from ps2.dashboard.run_view import NO_COUNTS, sum_counts
from ps2.run.timeline import NAMES
from tests.driver_figures import figures_of, run_of


def scrape(figures):
    """The samples of a scrape, read by the strict parser: {(name, labels): value}."""
    registry = CollectorRegistry()
    registry.register(DriverCollector(lambda: figures))
    families = list(parse(generate_latest(registry).decode()))
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_figures_when_scraped_then_are_those_of_the_driver():
    result = scrape(figures_of())
    assert result["ps2_driver_info", "abc", "1.2"] == 1
    states = [result["ps2_fleet_servers", state] for state in ("running", "silent", "recovering", "lost")]
    assert states == [1, 0, 1, 0]
    assert result["ps2_fleet_recoveries_total", "replica"] == 2
    assert (result["ps2_checkpoint_timestamp_seconds",], result["ps2_checkpoint_pause_seconds",]) == (1e9, 0.25)
    assert result["ps2_events_total", "warning"] == 4
    assert (result["ps2_runs_total",], result["ps2_run_active",], result["ps2_run_stragglers",]) == (5, 1, 1)
    assert (result["ps2_run_workers", "working"], result["ps2_run_workers", "no_task"]) == (2, 1)
    assert (result["ps2_run_staleness",], result["ps2_run_staleness_limit",]) == (2, 2)
    assert [result["ps2_run_clock", str(rank)] for rank in range(3)] == [5, 6, 7]
    table = run_of(3)[1].counts
    assert result["ps2_run_lost_attempts_total", "1"] == table[1, 1]
    for column, category in enumerate(NAMES):
        assert result[f"{category_metric(category)}_total", "2"] == table[2, 2 + column]
    assert (result["ps2_training_loss",], result["ps2_training_remaining_seconds",]) == (0.5, 12)


def test_labels_when_users_give_names_then_none_is_a_label():
    assert not [key for key in scrape(figures_of()) if "free text" in key]


def test_loss_when_it_is_no_number_then_is_told():
    assert math.isnan(scrape(figures_of(value=float("nan")))["ps2_training_loss",])


def test_staleness_when_asp_then_limit_is_infinite():
    assert scrape(figures_of(staleness=None))["ps2_run_staleness_limit",] == math.inf


def test_ranks_when_there_are_many_then_rest_is_one_sum():
    workers = MAX_RANKS + 10
    result = scrape(figures_of(workers))
    waits = {key[1]: value for key, value in result.items() if key[0] == "ps2_run_wait_seconds_total"}
    assert len(waits) == MAX_RANKS + 1
    column = 2 + NAMES.index("wait")
    assert sum(waits.values()) == pytest.approx(run_of(workers)[1].counts[:, column].sum())
    assert result["ps2_run_clock", "others"] == 5


def test_counts_when_a_smaller_run_follows_then_never_go_back():
    first, second = run_of(3)[1].counts, run_of(2)[1].counts
    both = sum_counts(sum_counts(NO_COUNTS, first), second)
    assert both.shape == first.shape
    assert (both >= first).all()
    assert both.sum() == first.sum() + second.sum()
