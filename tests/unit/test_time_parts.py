"""Hours, weekdays, months and days between times as keys: batches and rows agree, with Python's calendar."""

from __future__ import annotations

from datetime import date, datetime, timezone

import numpy as np
import pyarrow as pa
import pytest

from ps2.data.hashing import Field, FieldHasher
from ps2.errors import ConfigError, InputError

ZONE = "Europe/Berlin"
# In summer and winter, at both ends of a day, before 1970, and missing.
TIMES = [
    datetime(2026, 7, 31, 22, 30, tzinfo=timezone.utc),
    datetime(2026, 1, 1, 22, 59, 59, 999999, tzinfo=timezone.utc),
    datetime(1969, 12, 31, 23, 0, tzinfo=timezone.utc),
    datetime(1912, 2, 29, 3, 0, tzinfo=timezone.utc),
    None,
]
BORN = [date(2026, 7, 1), date(2026, 1, 1), date(1970, 1, 2), date(1900, 1, 1), date(2000, 1, 1)]
FIELDS = (
    Field.categorical("hour(t)"),
    Field.categorical("weekday(t)"),
    Field.categorical("month(t)"),
    Field.buckets("datediff(t, born)", (0, 1, 31)),
    Field.cross("site", "hour(t)"),
)
HASHER = FieldHasher(FIELDS, time_zone=ZONE)
SITES = list("abcde")


def batch(unit="us", zone="UTC"):
    times = pa.array(TIMES, pa.timestamp(unit, zone))
    return pa.RecordBatch.from_pydict({"t": times, "born": pa.array(BORN, pa.date32()), "site": SITES})


def key_names(hasher, rows):
    """Return the distinct (field, value) of the keys of a batch."""
    return set(hasher.inverse(rows).values())


def test_parts_when_zone_has_summer_time_then_are_local():
    assert HASHER.columns == ("t", "born", "site")
    names = key_names(HASHER, batch())
    assert {value for name, value in names if name == "hour(t)"} == {"0", "23", "4"}
    assert {value for name, value in names if name == "weekday(t)"} == {"5", "3"}  # Saturday, Thursdays
    assert {value for name, value in names if name == "month(t)"} == {"8", "1", "2"}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_keys_when_rows_are_dicts_then_are_those_of_batches(unit, zone):
    rows = HASHER.rows(batch(unit, zone))
    dicts = [{"t": t, "born": born, "site": site} for t, born, site in zip(TIMES, BORN, SITES, strict=True)]
    texts = [{**row, "t": row["t"] and row["t"].isoformat(), "born": str(row["born"])} for row in dicts]
    for other in (HASHER.rows_of_dicts(dicts), HASHER.rows_of_dicts(texts)):
        np.testing.assert_array_equal(other.keys, rows.keys)
        np.testing.assert_array_equal(other.indptr, rows.indptr)
    assert np.diff(rows.indptr).tolist() == [5, 5, 5, 5, 0]


def test_times_without_zone_then_are_local_already():
    hasher = FieldHasher((Field.categorical("hour(t)"),), time_zone=ZONE)
    rows = pa.RecordBatch.from_pydict({"t": pa.array([datetime(1969, 12, 31, 7)], pa.timestamp("us"))})
    assert key_names(hasher, rows) == {("hour(t)", "7")}
    np.testing.assert_array_equal(hasher.rows(rows).keys, hasher.rows_of_dicts(rows.to_pylist()).keys)


def test_hasher_when_read_from_json_then_has_its_zone():
    assert FieldHasher.from_json(HASHER.to_json()) == HASHER
    assert "timeZone" not in FieldHasher((Field.categorical("hour"),)).to_json()


@pytest.mark.parametrize(
    ("name", "zone", "message"),
    [
        ("hour(t)", "Mars/Olympus", "timeZone: expected one such as Europe/Berlin or .02:00, got 'Mars/Olympus'"),
        ("hour(t, born)", ZONE, r"hour\(t, born\): expected 1 columns of hour, got 2"),
        ("datediff(t)", ZONE, r"datediff\(t\): expected 2 columns of datediff, got 1"),
    ],
)
def test_hasher_when_part_is_wrong_then_error_names_it(name, zone, message):
    with pytest.raises(ConfigError, match=message):
        FieldHasher((Field.categorical(name),), time_zone=zone)


def test_parts_when_values_are_no_times_then_error_names_column():
    with pytest.raises(InputError, match=r"column 'born': expected times for hour, got date32"):
        FieldHasher((Field.categorical("hour(born)"),)).rows(batch())
    for value in ("noon", 12, date(2026, 1, 1)):
        with pytest.raises(InputError, match=r"column 't', row 0: expected a date or a time, .* for hour\(t\), got"):
            FieldHasher((Field.categorical("hour(t)"),)).rows_of_dicts([{"t": value}])


def test_offset_when_it_is_the_zone_then_shifts_hours():
    hasher = FieldHasher((Field.categorical("hour(t)"),), time_zone="-02:30")
    assert {value for _, value in key_names(hasher, batch())} == {"20", "0"}
