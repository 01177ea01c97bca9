"""Columns of what workers add up for the driver in a clock; a family's own follow."""

from __future__ import annotations

LOSS, WEIGHT, HELD_LOSS, HELD_WEIGHT, ROWS, BYTES = range(6)
SUMS = 6
