"""What a notebook shows of vectors and matrices. No server is asked."""

from __future__ import annotations

from ps2.formats import size
from ps2.matrix.partition import MatrixSpec
from ps2.matrix.route import Route
from ps2.text_tables import Column, Table, named_values, to_html

COLUMNS = Column("partition", right=True), Column("columns", right=True), Column("server")
BUCKETS = COLUMNS[0], Column("buckets of keys", right=True), COLUMNS[2]


def matrix_html(title: str, spec: MatrixSpec, route: Route, rows: int) -> str:
    """Return the HTML of some rows of a matrix: what they are, and which server has which columns."""
    is_dense = spec.kind == "dense"
    known = named_values(bytes=size(rows * spec.dim * spec.np_dtype.itemsize) if is_dense else None, wire=spec.wire)
    cut = [
        [str(partition.index), f"{partition.begin:,} to {partition.end - 1:,}", address]
        for partition, address in zip(route.partitions, route.addresses, strict=True)
    ]
    return to_html(title, *([known] if known.rows else []), Table(COLUMNS if is_dense else BUCKETS, cut))
