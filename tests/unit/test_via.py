"""The param that says what works on a model between clocks, and the placement that it leads to."""

from __future__ import annotations

import pytest

from ps2.algorithms.frame.shared_settings import ViaSettings
from ps2.algorithms.training.record import Placement
from ps2.errors import ConfigError


def test_via_not_set_is_auto() -> None:
    assert ViaSettings().via == "auto"


def test_via_unknown_name_is_an_error() -> None:
    with pytest.raises(ConfigError, match="via: expected one of auto, local, servers, got 'here'"):
        ViaSettings(via="here")


def test_placement_in_words_says_all() -> None:
    assert str(Placement(1, 2, "local", "as requested")) == "local, 1 worker of 2 threads: as requested"
