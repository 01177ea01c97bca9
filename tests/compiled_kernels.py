"""What numba has compiled so far in this process."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import ModuleType
from typing import Any


def compiled(modules: Iterable[ModuleType]) -> dict[str, list[Any]]:
    """Return the compiled signatures of each kernel of modules."""
    return {
        f"{module.__name__}.{name}": list(member.signatures)
        for module in modules
        for name, member in inspect.getmembers(module)
        if hasattr(member, "signatures")
    }
