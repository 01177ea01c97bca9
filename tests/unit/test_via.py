"""The param that says what works on a model between clocks, and the placement that it leads to."""

from __future__ import annotations

import pytest

from ps2.algorithms.estimators.params import check_ranges
from ps2.algorithms.estimators.via import VIA, HasVia
from ps2.algorithms.training.placement import Placement
from ps2.errors import ConfigError


class SomeEstimator(HasVia):
    _RANGES = VIA


def test_via_not_set_is_auto() -> None:
    assert SomeEstimator().getVia() == "auto"


def test_via_unknown_name_is_an_error() -> None:
    with pytest.raises(ConfigError, match="via: expected one of auto, local, servers, got 'here'"):
        check_ranges(SomeEstimator(via="here"))


def test_placement_in_words_says_all() -> None:
    assert str(Placement(1, 2, "local", "as requested")) == "local, 1 worker of 2 threads: as requested"
