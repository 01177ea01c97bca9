"""How kernels are compiled, and kept where numba may write; where it may not, they are compiled anew."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba import njit
from numba.core import caching

from ps2.errors import ConfigError

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

# Who has been told is told no more: one warning stands for all kernels of a process.
_told: set[str] = set()

_settings: Any = numba.config
_Cache: Any = caching.FunctionCache
if _settings.DISABLE_JIT:
    raise ConfigError(
        "NUMBA_DISABLE_JIT is set, and PS2's loops over arrays work compiled alone: unset it, for this process and for "
        "those that it starts"
    )


def compile_kept(fn: F, **options: Any) -> F:
    """Compile a function on its first call; keep that in numba's cache if there is one that can be written to."""
    compiled: Any = njit(nogil=True, error_model="numpy", **options)(fn)
    try:
        compiled._cache = KernelCache(compiled.py_func)  # as ``cache=True`` does
    except RuntimeError as error:  # no folder: a read-only install, and no home directory
        warn_once(error)
    kept: F = compiled
    return kept


class KernelCache(_Cache):  # type: ignore[misc]
    """Numba's, but that a disk that is full, or may not be written or read, ends no call: it goes on without."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except OSError as error:
            warn_once(error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            warn_once(error)
            self.disable()


def warn_once(error: Exception) -> None:
    """Say, once in a process, that compiled kernels are not kept."""
    if not _told:
        _told.add(str(error))
        log.warning(
            "compiled kernels cannot be kept, and are compiled anew in each process, for seconds: %s; NUMBA_CACHE_DIR "
            "names another folder for them",
            error,
        )
