"""Where trees grow, by the user's wish and by predicted seconds."""

from __future__ import annotations

import pytest

from ps2.algorithms.trees.cost_model import MAX_VALUES, Cores, Work, choose, seconds
from ps2.errors import ConfigError
from tests import plans

SMALL = Work(7000, 28 * 7000, 28, 100)
LARGE = Work(1_500_000, 42_000_000, 28, 50)
SPARSE = Work(11_314, 5_000_000, 1_690_000, 10)
OPTIONS = plans.boosting(maxDepth=6, maxBins=256)
CORES = Cores(2, 2, 1)
CLUSTER = Cores(4, 32, 4)


@pytest.mark.parametrize(
    ("work", "cores", "via"),
    [
        (SMALL, CORES, "local"),
        (SMALL, CLUSTER, "local"),
        (SPARSE, CORES, "local"),
        (LARGE, CORES, "local"),
        (LARGE, CLUSTER, "servers"),
    ],
)
def test_choose_when_auto_then_takes_the_faster(work, cores, via):
    local_s, servers_s = seconds(work, OPTIONS, cores)
    chosen = choose("auto", None, work, OPTIONS, cores)
    assert (chosen.via, local_s < servers_s) == (via, via == "local")
    assert "predicted: local" in chosen.reason
    assert (chosen.workers, chosen.threads) == ((1, cores.one) if via == "local" else (cores.workers, cores.each))


@pytest.mark.parametrize(
    ("given", "via", "reason"),
    [
        (("servers", None, SMALL), "servers", "as requested"),
        (("local", 1, LARGE), "local", "as requested"),
        (("auto", 2, SMALL), "servers", "numWorkers is 2"),
        (("auto", None, Work(10, MAX_VALUES + 1, 9, 1)), "servers", "50,000,001 stored values are more than"),
    ],
)
def test_choose_when_something_decides_then_says_what(given, via, reason):
    chosen = choose(*given, OPTIONS, CORES)
    assert chosen.via == via
    assert reason in chosen.reason


def test_choose_when_training_goes_on_then_stays_in_its_form():
    assert choose("auto", None, SMALL, OPTIONS, CORES, "servers").reason == "as the training began"


def test_choose_when_local_and_several_workers_then_error():
    with pytest.raises(ConfigError, match="via: expected 'servers' or 'auto' for 2 workers"):
        choose("local", 2, SMALL, OPTIONS, CORES)
