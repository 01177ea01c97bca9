"""What all benchmarks report alike: the machine they ran on, and files of JSON."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import psutil

import ps2


def machine(load_before: float, **versions: str) -> dict[str, Any]:
    """Describe the machine; the load before a benchmark is other work's, the load after is mostly its own.

    Args:
        load_before: of the last minute, before anything was measured.
        versions: of the packages that matter, by name.
    """
    return {
        "cores": os.cpu_count(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "load before": round(load_before, 1),
        "load after": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **versions,
        "ps2": ps2.__version__,
    }


def facts(values: dict[str, Any]) -> str:
    """Return facts as one line for people."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def write_json(path: Path, text: str) -> None:
    """Write text to a file, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
