"""Numbers that callers give: NumPy's count as Python's, and True is none."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ps2 import PS2Conf
from ps2.data.hashing import Field
from ps2.errors import ConfigError
from ps2.number_checks import is_number, is_whole


@pytest.mark.parametrize(
    ("value", "whole", "number"),
    [
        (3, True, True),
        (np.int64(3), True, True),
        (np.uint8(3), True, True),
        (3.0, False, True),
        (np.float32(3), False, True),
        (float("nan"), False, True),
        (True, False, False),
        (np.bool_(True), False, False),
        ("3", False, False),
        (None, False, False),
        (3j, False, False),
    ],
)
def test_numbers_when_checked_then_true_is_none(value, whole, number):
    assert (is_whole(value), is_number(value)) == (whole, number)


def test_settings_when_of_numpy_then_held_as_plain_numbers():
    """They go to JSON: settings of a fleet, and the field of a hasher in an export."""
    assert json.dumps([PS2Conf(servers=np.int64(2)).servers, Field.keys("ids", width=np.int32(3)).to_json()])


@pytest.mark.parametrize("width", [2.5, True, 0])
def test_width_when_it_is_no_count_then_refused(width):
    with pytest.raises(ConfigError, match="expected a width of at least 1"):
        Field.keys("ids", width=width)
