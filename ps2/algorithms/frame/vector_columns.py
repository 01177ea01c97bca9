"""Columns of pyspark.ml's vectors, as the structs in which Spark stores them."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def unwrapped(vectors: Column) -> Column:
    """Return vectors as the structs in which Spark stores them: type, size, indices, values."""
    return F.unwrap_udt(vectors)


def for_arrow(vectors: Column) -> Column:
    """Return vectors as structs whose lists are never null; a null vector stays null.

    Spark (4.1 and later) asks after each row how many bytes a batch has. Arrow then fills what it has of lists from the
    last one that is not null on, so the null indices of dense vectors cost the square of a batch's rows.
    """
    parts = unwrapped(vectors)
    indices = F.coalesce(parts["indices"], F.array().cast("array<int>"))
    of = {"type": parts["type"], "size": parts["size"], "indices": indices, "values": parts["values"]}
    return F.when(parts.isNotNull(), F.struct(*(part.alias(name) for name, part in of.items())))
