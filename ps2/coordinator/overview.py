"""The HTML of a context in a notebook. It shows the coordinator's own knowledge and asks no server."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ps2.formats import size
from ps2.text_tables import Column, Link, Table, named_values, to_html

if TYPE_CHECKING:
    from ps2.coordinator.catalog import Entry
    from ps2.coordinator.conf import PS2Conf
    from ps2.coordinator.master import Master

SERVERS = (Column("server"), Column("state"), Column("partitions", right=True), Column("dense rows", right=True))
MATRICES = (
    *(Column("matrix"), Column("kind"), Column("layout"), Column("dim", right=True), Column("dtype")),
    *(Column("rows", right=True), Column("in use", right=True), Column("bytes", right=True)),
    *(Column("servers", right=True), Column("names", folds=True)),
)


def overview(master: Master, conf: PS2Conf, page: str | None = None) -> str:
    """Return the HTML of a running context, with a link to its live page if it has one."""
    entries, present, names = master.entries(), master.present(), master.rows_by_name()
    properties = named_values(
        launcher="attach" if conf.addresses else conf.launcher,
        memory_limit=None if conf.memoryLimit is None else f"{size(conf.memoryLimit)} on each server",
        copies=conf.replicas or None,
        checkpoints=conf.checkpointDir,
    )
    matrices = Table(MATRICES, [_matrix_row(entry, sorted(names.get(entry.id, ()))) for entry in entries])
    return to_html(
        f"PS2Context: {len(present)} of {len(master.registry.members())} servers are running",
        *([] if page is None else [Link(page)]),
        properties,
        _servers(master, entries),
        matrices if entries else "no vectors yet",
    )


def _servers(master: Master, entries: list[Entry]) -> Table:
    partitions: Counter[str] = Counter()
    dense_bytes: Counter[str] = Counter()
    for entry in entries:
        for partition, address in zip(entry.route.partitions, entry.route.addresses, strict=True):
            partitions[address] += 1
            if entry.spec.kind == "dense":
                dense_bytes[address] += partition.width * entry.spec.block_bytes
    present = master.present()
    rows = [
        [address, "running" if id in present else "lost", f"{partitions[address]:,}", size(dense_bytes[address])]
        for id, address in master.registry.members()
    ]
    return Table(SERVERS, rows)


def _matrix_row(entry: Entry, names: list[str]) -> list[str]:
    spec = entry.spec
    # Only the servers know the number of keys of a sparse matrix.
    nbytes = size(spec.dim * spec.block_bytes) if spec.kind == "dense" else "-"
    return [
        *(f"{entry.id:x}", spec.kind, spec.layout, f"{spec.dim:,}", spec.dtype, f"{spec.rows:,}"),
        *(f"{len(entry.used):,}", nbytes, f"{len(entry.route.servers):,}", ", ".join(names) or "-"),
    ]
