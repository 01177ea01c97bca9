"""Monitoring of a context: the live page, the metrics for Prometheus, and traces."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ps2.config import is_loopback, read_token, split_listen
from ps2.coordinator.application import driver_secret
from ps2.coordinator.conf import PS2Conf
from ps2.coordinator.driver_watcher import DriverWatcher
from ps2.coordinator.fleet import Fleet
from ps2.coordinator.recovery import RecoveryLog
from ps2.coordinator.tracing import Tracing
from ps2.dashboard.browser_sessions import BrowserSessions
from ps2.dashboard.page_server import PageServer
from ps2.dashboard.snapshot import to_json
from ps2.logs import JSON, log_format
from ps2.run.host import ActiveRun

if TYPE_CHECKING:
    from ps2.transport.exposition import Exposition

log = logging.getLogger(__name__)

T = TypeVar("T")


class Monitoring:
    """The live page, the metrics and the traces of one context; ``watcher`` collects their content."""

    def __init__(self, conf: PS2Conf, fleet: Fleet, active: ActiveRun, recoveries: RecoveryLog) -> None:
        """Start the views that the settings ask for."""
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
        """The link of the page; None: there is none."""
        return None if self._page is None else self._page.url

    @property
    def metrics_url(self) -> str | None:
        """The URL that Prometheus scrapes; None: there is none."""
        return None if self._metrics is None else f"http://{self._metrics.address}/metrics"

    def record_run(self, call: Callable[[], T], worker_fn: Callable[..., object]) -> T:
        """Run workers by ``call``, within a span if tracing is on; record the outcome in the history."""
        tracing = self._tracing
        traced = call if tracing is None else lambda: tracing.run(call)
        return self.watcher.record_run(traced, worker_fn)

    def describe(self, servers: list[str]) -> str:
        """Return a text with servers and link, for a context's ``repr``."""
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
    fixed = None if conf.dashboardTokenFile is None else read_token(conf.dashboardTokenFile).split()[0]
    page = PageServer(
        lambda: to_json(watcher.snapshot()),
        lambda begin, find: to_json(watcher.vectors(begin, find)),
        BrowserSessions(driver_secret() if fixed is None else fixed, fixed),
        split_listen(conf.dashboardListen, "dashboardListen"),
    )
    if log_format() == JSON:
        log.info("%s", page.description)
    else:
        print(f"PS2: {page.description}", file=sys.stderr)
    return page


def _expose(listen: str, watcher: DriverWatcher) -> Exposition:
    # The import takes half a second.
    from ps2.dashboard.driver_metrics import DriverCollector
    from ps2.transport.exposition import Exposition

    host, ports = split_listen(listen, "metricsListen")
    exposition = Exposition(DriverCollector(watcher.figures), (host, ports), "metricsListen")
    if not is_loopback(host):
        log.warning("metrics on http://%s/metrics: whoever reaches the port may read them", exposition.address)
    return exposition
