"""Where a training runs, by what values, weights and clocks cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ps2.algorithms.training.placement_costs import Work, place
from ps2.errors import ConfigError

SMALL = Work(values=1e5, weights=100, clocks=100, value_s=4e-9)


def test_place_when_rows_are_few_then_one_worker_trains_locally():
    placement = place(SMALL, slots=8, partitions=8, wanted=None, via="auto")
    assert (placement.workers, placement.via) == (1, "local")
    assert "100,000 values and rows" in placement.reason


def test_place_when_rows_are_many_then_workers_share_them():
    placement = place(replace(SMALL, values=1e9), slots=8, partitions=6, wanted=None, via="auto")
    assert (placement.workers, placement.via) == (6, "servers")


@pytest.mark.parametrize(
    ("wanted", "via", "found"),
    [
        (3, "auto", (3, "servers")),
        (1, "auto", (1, "local")),
        (1, "servers", (1, "servers")),
        (None, "local", (1, "local")),
    ],
)
def test_place_when_user_asks_then_that_is_chosen(wanted, via, found):
    placement = place(SMALL, slots=8, partitions=8, wanted=wanted, via=via)
    assert (placement.workers, placement.via) == found


def test_place_when_model_must_be_on_servers_then_says_why():
    placement = place(replace(SMALL, why_not_local="it is too large"), slots=2, partitions=4, wanted=None, via="auto")
    assert (placement.workers, placement.via, placement.reason) == (2, "servers", "it is too large")


@pytest.mark.parametrize(("wanted", "why"), [(2, ""), (None, "it is too large")])
def test_place_when_local_is_asked_in_vain_then_config_error(wanted, why):
    with pytest.raises(ConfigError, match="via: 'local'"):
        place(replace(SMALL, why_not_local=why), slots=2, partitions=2, wanted=wanted, via="local")
