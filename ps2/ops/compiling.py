"""Compilation of kernels, with numba's cache on disk; without a writable cache, every process compiles anew."""

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

# The first reason why kernels could not be cached: a process warns once for all its kernels.
_warned: set[str] = set()

_settings: Any = numba.config
_Cache: Any = caching.FunctionCache
if _settings.DISABLE_JIT:
    raise ConfigError(
        "NUMBA_DISABLE_JIT is set, but PS2's loops over arrays need compilation: unset it for this process and for the "
        "processes that it starts"
    )


def compile_kept(fn: F, **options: Any) -> F:
    """Compile a function on its first call, and cache the result on disk if numba has a writable cache folder."""
    compiled: Any = njit(nogil=True, error_model="numpy", **options)(fn)
    try:
        compiled._cache = KernelCache(compiled.py_func)  # as ``cache=True`` does
    except RuntimeError as error:  # no folder: a read-only install, and no home directory
        warn_once(error)
    kept: F = compiled
    return kept


class KernelCache(_Cache):  # type: ignore[misc]
    """Numba's cache, except that a call goes on without it if the disk is full, read-only or unreadable."""

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
    """Warn, once a process, that compiled kernels are not cached."""
    if not _warned:
        _warned.add(str(error))
        log.warning(
            "compiled kernels cannot be cached, so each process compiles them anew, for seconds: %s; set "
            "NUMBA_CACHE_DIR to a writable folder",
            error,
        )
