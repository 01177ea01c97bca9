"""Monitoring of a context: its live page, metrics for Prometheus, traces, and the HTML that notebooks show."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ps2.config import is_loopback, read_token, split_listen
from ps2.coordinator.application import driver_secret
from ps2.coordinator.catalog import Entry
from ps2.coordinator.conf import PS2Conf
from ps2.coordinator.driver_watcher import DriverWatcher
from ps2.coordinator.fleet import Fleet
from ps2.coordinator.master import Master
from ps2.coordinator.recovery import RecoveryLog
from ps2.coordinator.tracing import Tracing
from ps2.dashboard.browser_sessions import BrowserSessions
from ps2.dashboard.page_server import PageServer
from ps2.dashboard.snapshot import to_json
from ps2.formats import size
from ps2.logs import JSON, log_format
from ps2.run.host import ActiveRuns
from ps2.text_tables import Column, Link, Table, named_values, to_html

if TYPE_CHECKING:
    from ps2.transport.exposition import Exposition

log = logging.getLogger(__name__)

T = TypeVar("T")


class Monitoring:
    """The live page, the metrics and the traces of one context; ``watcher`` collects the data that they show."""

    def __init__(self, conf: PS2Conf, fleet: Fleet, active: ActiveRuns, recoveries: RecoveryLog) -> None:
        """Start the page, the metrics and the traces that the settings enable."""
        # The coordinator asks for the status of a server that has been silent for this long.
        self.watcher = DriverWatcher(fleet, active, recoveries, conf.lostAfterS / 2)
        self._page: PageServer | None = None
        self._metrics: Exposition | None = None
        self._tracing: Tracing | None = None
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            if conf.metricsListen is not None:
                self._metrics = _expose(conf.metricsListen, self.watcher)
            if conf.dashboard:
                self._page = _live_page(conf, self.watcher)
            if self._page is not None or self._metrics is not None:
                self.watcher.open()
            if conf.tracing:
                self._tracing = Tracing(fleet, active, recoveries)
            undo.pop_all()

    @property
    def page_url(self) -> str | None:
        """The link to the live page; None: there is no page."""
        return None if self._page is None else self._page.url

    @property
    def metrics_url(self) -> str | None:
        """The URL that Prometheus scrapes; None: metrics are off."""
        return None if self._metrics is None else f"http://{self._metrics.address}/metrics"

    def record_run(self, call: Callable[[], T], worker_fn: Callable[..., object]) -> T:
        """Run workers by ``call``, within a span if tracing is on; record the outcome in the history."""
        tracing = self._tracing
        traced = call if tracing is None else lambda: tracing.run(call)
        return self.watcher.record_run(traced, worker_fn)

    def describe(self, servers: list[str]) -> str:
        """Return the servers and the page's link as text, for a context's ``repr``."""
        return ", ".join(servers) + ("" if self.page_url is None else f"; live page at {self.page_url}")

    def stop(self) -> None:
        self.watcher.close()
        if self._tracing is not None:
            self._tracing.stop()
        if self._page is not None:
            self._page.stop()
        if self._metrics is not None:
            self._metrics.stop()


def _live_page(conf: PS2Conf, watcher: DriverWatcher) -> PageServer:
    """Start the live page, and print its link."""
    fixed_token = None if conf.dashboardTokenFile is None else read_token(conf.dashboardTokenFile).split()[0]
    page = PageServer(
        lambda: to_json(watcher.snapshot()),
        lambda begin, find: to_json(watcher.vectors(begin, find)),
        BrowserSessions(driver_secret() if fixed_token is None else fixed_token, fixed_token),
        split_listen(conf.dashboardListen, "dashboardListen"),
    )
    if log_format() == JSON:
        log.info("%s", page.description)
    else:
        print(f"PS2: {page.description}", file=sys.stderr)
    return page


def _expose(listen: str, watcher: DriverWatcher) -> Exposition:
    # Import late: the import takes half a second, and most contexts have no metrics.
    from ps2.dashboard.driver_metrics import DriverCollector
    from ps2.transport.exposition import Exposition

    host, ports = split_listen(listen, "metricsListen")
    exposition = Exposition(DriverCollector(watcher.figures), (host, ports), "metricsListen")
    if not is_loopback(host):
        log.warning(
            "metrics on http://%s/metrics: anybody who can connect to the port can read them", exposition.address
        )
    return exposition


SERVERS = (Column("server"), Column("state"), Column("partitions", right=True), Column("dense rows", right=True))
MATRICES = (
    *(Column("matrix"), Column("kind"), Column("layout"), Column("dim", right=True), Column("dtype")),
    *(Column("rows", right=True), Column("in use", right=True), Column("bytes", right=True)),
    *(Column("servers", right=True), Column("names", folds=True)),
)


def overview(master: Master, conf: PS2Conf, page: str | None = None) -> str:
    """Return the HTML that shows a running context; ``page``: the link to its live page, None if there is none."""
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
