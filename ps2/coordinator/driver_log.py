"""The driver's log as lines of JSON, if ``PS2_LOG=json``."""

from __future__ import annotations

from ps2.logs import JSON, JsonLog, log_format
from ps2.run.host import ActiveRun


def log_of_driver(fleet_id: str, active: ActiveRun) -> JsonLog:
    """Return the JSON log of the loggers ``ps2.*`` in this process. The log is open if ``PS2_LOG=json``.

    Raises:
        ConfigError: ``PS2_LOG`` is not a known format.
    """
    log = JsonLog(lambda: {"fleet": fleet_id, **active.logged()})
    if log_format() == JSON:
        log.open()
    return log
