"""The live page of a context: its web server, and its link, which is printed once."""

from __future__ import annotations

import logging
import sys

from ps2.config import is_loopback, read_token, split_listen
from ps2.coordinator.application import driver_secret
from ps2.coordinator.conf import PS2Conf
from ps2.coordinator.driver_watcher import DriverWatcher
from ps2.dashboard.browser_sessions import BrowserSessions
from ps2.dashboard.encoding import to_json
from ps2.dashboard.page_server import PageServer
from ps2.logs import JSON, log_format

log = logging.getLogger(__name__)


class LivePage:
    """The web server of the live page."""

    def __init__(self, conf: PS2Conf, watcher: DriverWatcher) -> None:
        """Start the page, and print its link.

        Raises:
            LaunchError: the host of ``dashboardListen`` is not this machine's.
        """
        fixed = None if conf.dashboardTokenFile is None else read_token(conf.dashboardTokenFile).split()[0]
        sessions = BrowserSessions(driver_secret() if fixed is None else fixed, fixed)
        listen = split_listen(conf.dashboardListen, "dashboardListen")
        self._page = PageServer(
            lambda: to_json(watcher.snapshot()),
            lambda begin, find: to_json(watcher.vectors(begin, find)),
            *(sessions, listen),
        )
        taken = "" if self._page.is_first else f" (port {listen[1][0]} is taken)"
        open_ = "" if is_loopback(listen[0]) else "; what it shows travels unencrypted"
        said = f"live page at {self._page.url}{taken}{open_}"
        if log_format() == JSON:
            log.info("%s", said)
        else:
            print(f"PS2: {said}", file=sys.stderr)

    @property
    def url(self) -> str:
        """The link of the page."""
        return self._page.url

    def stop(self) -> None:
        self._page.stop()
