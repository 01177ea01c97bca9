"""Measured costs, remembered by machine, servers and sizes, so that a second training does not measure them again.

A file for each combination, in the user's cache folder. Programs may write one at the same time: a file is written
aside and renamed into place, so that a reader finds a whole one, whichever that is. If it is of no use, costs are
measured again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ps2.algorithms.embeddings.work import UnitCosts
from ps2.cgroups import usable_cores
from ps2.version import __version__

log = logging.getLogger(__name__)

# The folder of the files instead of ps2/costs in the user's cache folder; "off": costs are measured each time.
VARIABLE = "PS2_COSTS"
OFF = "off"
# The machine, or its other programs, may differ after this time.
MAX_AGE_S = 30 * 24 * 3600.0


def remembered(key: Mapping[str, Any], measure: Callable[[], UnitCosts]) -> UnitCosts:
    """Return remembered costs, or measure and remember them; ``key``: what they depend on beside this machine, plain
    data."""
    folder = _folder()
    if folder is None:
        return measure()
    whole = {"machine": [platform.node(), platform.machine(), usable_cores()], "version": __version__, **key}
    text = json.dumps(whole, sort_keys=True)
    path = folder / f"embeddings-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    costs = _read(path)
    if costs is None:
        costs = measure()
        _write(path, {"key": whole, "measured_s": time.time(), "costs": asdict(costs)})
    return costs


def _folder() -> Path | None:
    setting = os.environ.get(VARIABLE, "")
    if setting.lower() == OFF:
        return None
    if setting:
        return Path(setting)
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification ignores relative paths.
    if os.path.isabs(home):
        return Path(home, "ps2", "costs")
    with suppress(RuntimeError):  # no home
        return Path.home() / ".cache" / "ps2" / "costs"
    return None


def _read(path: Path) -> UnitCosts | None:
    """Return the costs of a file; None if there is none, it is old, or, with a warning, it cannot be used."""
    try:
        content = json.loads(path.read_bytes())
        costs = UnitCosts(**{field.name: float(content["costs"][field.name]) for field in fields(UnitCosts)})
        age_s = time.time() - float(content["measured_s"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s is ignored, and costs are measured again: %r", path, error)
        return None
    if not all(math.isfinite(cost) and cost >= 0 for cost in asdict(costs).values()):
        log.warning("%s is ignored, and costs are measured again: they are %s", path, costs)
        return None
    return costs if 0 <= age_s <= MAX_AGE_S else None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file whole; a folder that cannot be written to is no fault of the training."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.stem, delete=False) as file:
            json.dump(content, file)
        os.replace(file.name, path)
    except OSError as error:
        log.info("costs are not remembered in %s: %s", path, error)
