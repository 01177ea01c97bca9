"""Parts of dates and times, which hashers compute: ``hour(t)``, ``weekday(t)``, ``month(t)``, ``datediff(end, start)``.

They are the functions of Spark of these names, in the hasher's time zone. A time without a zone is in that zone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np

from ps2.errors import ConfigError, InputError

if TYPE_CHECKING:
    import pyarrow as pa

CALL = re.compile(r"(hour|weekday|month|datediff)\(\s*([^(),]+?)\s*(?:,\s*([^(),]+?)\s*)?\)")
OFFSET = re.compile(r"([+-])(\d\d):(\d\d)")
EXPECTED = "a date or a time, such as 2026-11-30 12:00:00"


@dataclass(frozen=True)
class TimePart:
    """A part of a column of dates or times; ``datediff`` has two columns: the days from the second to the first."""

    function: str
    columns: tuple[str, ...]

    @property
    def takes_dates(self) -> bool:
        """Whether dates have this part, too."""
        return self.function != "hour"


def time_part(name: str) -> TimePart | None:
    """Return the part that a column's name asks for; None: it is a plain name.

    Raise ConfigError for a wrong number of columns.
    """
    call = CALL.fullmatch(name)
    if call is None:
        return None
    columns = tuple(filter(None, call.groups()[1:]))
    if len(columns) != (expected := 2 if call[1] == "datediff" else 1):
        raise ConfigError(f"{name}: expected {expected} columns of {call[1]}, got {len(columns)}")
    return TimePart(call[1], columns)


@lru_cache(maxsize=64)
def time_zone(name: str) -> tzinfo:
    """Return the time zone of a region or an offset; raise ConfigError for another name."""
    if offset := OFFSET.fullmatch(name):
        minutes = int(offset[2]) * 60 + int(offset[3])
        return timezone(timedelta(minutes=-minutes if offset[1] == "-" else minutes))
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ConfigError(f"timeZone: expected one such as Europe/Berlin or +02:00, got {name!r}") from error


def part_of_batch(part: TimePart, batch: pa.RecordBatch, zone: str) -> pa.Array:
    """Return the part for each row, int64; null where a column is null. Raise InputError for a column without times."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from ps2.data.columns import named_column

    def local(name: str) -> pa.Array:
        column = named_column(batch, name)
        if pa.types.is_date(column.type) and part.takes_dates:
            return column
        if not pa.types.is_timestamp(column.type):
            kind = "dates or times" if part.takes_dates else "times"
            raise InputError(f"column {name!r}: expected {kind} for {part.function}, got {column.type}")
        if column.type.tz is None:
            return column
        return pc.local_timestamp(column.cast(pa.timestamp(column.type.unit, zone)))

    columns = [local(name) for name in part.columns]
    if part.function == "datediff":
        end, start = (column.cast(pa.date32(), safe=False).cast(pa.int32()).cast(pa.int64()) for column in columns)
        return pc.subtract(end, start)
    functions = {"hour": pc.hour, "month": pc.month, "weekday": pc.day_of_week}  # Monday is 0
    return functions[part.function](columns[0]).cast(pa.int64())


def part_of_row(part: TimePart, read: Callable[[str], Any], zone: str) -> int | None:
    """Return the part of one row's values; None if a value is missing. Raise ValueError unless they are times."""
    values = [read(name) for name in part.columns]
    if any(value is None for value in values):
        return None
    times = [_local_time(value, zone) for value in values]
    if part.function == "datediff":
        return times[0].toordinal() - times[1].toordinal()
    if part.function == "hour":
        if not isinstance(times[0], datetime):
            raise ValueError("a date has no hour")
        return times[0].hour
    return times[0].weekday() if part.function == "weekday" else times[0].month


def _local_time(value: Any, zone: str) -> date:
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if isinstance(value, str):
        value = datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
    if not isinstance(value, date):
        raise ValueError("no time")
    return value.astimezone(time_zone(zone)) if isinstance(value, datetime) and value.tzinfo is not None else value


def with_parts(parts: Mapping[str, TimePart], batch: pa.RecordBatch, zone: str) -> pa.RecordBatch:
    """Return a batch with a column for each part; a column that has a part's name is replaced."""
    import pyarrow as pa

    arrays = {name: part_of_batch(part, batch, zone) for name, part in parts.items()}
    others = [name for name in batch.schema.names if name not in arrays]
    columns = [batch.column(batch.schema.names.index(name)) for name in others]
    return pa.RecordBatch.from_arrays([*columns, *arrays.values()], names=[*others, *arrays])
