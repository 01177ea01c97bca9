"""Compiles kernels, and caches them on disk (numba's cache). Without a writable cache, every process compiles them."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import inspect
import linecache
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import numba
import numpy as np
from numba import _dynfunc, njit  # type: ignore[attr-defined]
from numba.core import caching, compiler, compiler_machinery, event, typed_passes
from numba.core.codegen import JITCodeLibrary
from numba.extending import register_jitable

from ps2.errors import ConfigError

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

# A process that has compiled for so long prints a notice.
NOTICE_AFTER_S = 2.0
# The maximum time to wait for a kernel that another process compiles, and the time between two checks.
WAIT_S, POLL_S = 60.0, 0.05
# The first error that has prevented caching. A process warns only once.
_warned: set[str] = set()
# The functions that ``compile_inline`` has compiled.
_inline: set[Callable[..., Any]] = set()

# Names of numba with type Any: numba has annotations for some of its functions only.
_settings: Any = numba.config
_Listener: Any = event.Listener
_Cache: Any = caching.FunctionCache
_CacheFile: Any = caching.IndexDataCacheFile
_register_pass: Any = compiler_machinery.register_pass
_default_passes: Any = compiler.DefaultPassBuilder
_register_jitable: Any = register_jitable
_Compiler: Any = compiler.CompilerBase
_Library: Any = JITCodeLibrary
_Lowering: Any = typed_passes.NativeLowering
if _settings.DISABLE_JIT:
    raise ConfigError(
        "NUMBA_DISABLE_JIT is set, but PS2's loops over arrays need compilation: unset it for this process and for the "
        "processes that it starts"
    )


class CompilingNotice(_Listener):  # type: ignore[misc]
    """Prints a notice, once per process, after kernels have been compiled for ``notice_after_s`` seconds in total."""

    def __init__(self, notice_after_s: float = NOTICE_AFTER_S) -> None:
        self._notice_after_s = notice_after_s
        # The depth of nested compilations: the compilation of a kernel includes the kernels that it calls.
        self._depth = 0

    def on_start(self, event: Any) -> None:
        """Start the timer when numba starts to compile a kernel."""
        if not _is_cached(event):
            return
        if self._depth == 0:
            self._timer = threading.Timer(self._notice_after_s, self._print)
            self._timer.daemon = True
            self._start_s = time.monotonic()
            self._timer.start()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        """Stop the timer when the compilation has ended. The timer of the next kernel has the remaining time."""
        if not _is_cached(event):
            return
        if event._exc_details is not None:
            event.data["dispatcher"]._cache.unlock_kernel()
        self._depth -= 1
        if self._depth == 0:
            self._timer.cancel()
            self._notice_after_s = max(self._notice_after_s - (time.monotonic() - self._start_s), 0.0)

    def _print(self) -> None:
        self._notice_after_s = threading.TIMEOUT_MAX
        print("ps2: compiling kernels, once for this machine: it may take half a minute", file=sys.stderr, flush=True)


class GarbageCollectionPause(_Listener):  # type: ignore[misc]
    """Disables garbage collection during compilations: it would take a tenth of their time, and free little memory."""

    def __init__(self) -> None:
        self._depth, self._was_enabled = 0, False

    def on_start(self, event: Any) -> None:
        """Disable garbage collection when numba starts to compile."""
        if self._depth == 0:
            self._was_enabled = gc.isenabled()
            gc.disable()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        """Enable garbage collection again when the outermost compilation has ended."""
        self._depth -= 1
        if self._depth == 0 and self._was_enabled:
            gc.enable()


def _is_cached(event: Any) -> bool:
    """Return True if numba compiles a kernel, False if it compiles another function."""
    return isinstance(event.data["dispatcher"]._cache, KernelCache)


def compile_cached(fn: F, fastmath: Any = False) -> F:
    """Compile a function on its first call, and cache the result on disk if numba has a writable cache folder."""
    # Without ``fastmath``, numba would use the flags of the function's first caller.
    compiled: Any = njit(nogil=True, error_model="numpy", fastmath=fastmath)(fn)
    try:
        compiled._cache = KernelCache(compiled.py_func)  # ``cache=True`` sets numba's own class here
    except RuntimeError as error:  # no folder is writable: a read-only installation without a home directory
        warn_once(error)
    result: F = compiled
    return result


def compile_inline(fn: F, fastmath: Any = False) -> F:
    """Let kernels call a function. It is compiled as a part of each kernel; Python code calls it uncompiled."""
    result: F = _register_jitable(
        error_model="numpy", fastmath=fastmath, no_cfunc_wrapper=True, pipeline_class=InlineCompiler
    )(fn)
    _inline.add(fn)
    return result


def source_stamp(fn: Callable[..., Any]) -> str:
    """Return a hash of all sources that determine a kernel's machine code. Numba itself checks only the kernel's file.

    The sources are the files of the function and of all functions that it calls, and the constants that they use.
    """
    # This file also determines the machine code.
    files, constants = {_digest(__file__, source_stamp)}, set[tuple[str, str]]()
    for function in _reachable(fn, {fn}):
        files.add(_digest(inspect.getfile(function), function))
        constants.update((name, repr(value)) for name, value in _globals(function) if _is_constant(value))
    return hashlib.sha256(repr((sorted(files), sorted(constants))).encode()).hexdigest()


def _reachable(fn: Any, seen: set[Any]) -> Iterator[Any]:
    """Yield a function and all compiled functions that it calls, directly or indirectly."""
    yield fn
    for _, value in _globals(fn):
        called = (
            getattr(value, "py_func", None) or getattr(value, "_defn", None) or value
        )  # kernel, intrinsic, or other
        if isinstance(called, FunctionType) and called not in seen and (called is not value or called in _inline):
            seen.add(called)
            yield from _reachable(called, seen)


def _globals(fn: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of the globals in a function's code, including attributes of modules."""
    names = fn.__code__.co_names
    for name in names:
        value = fn.__globals__.get(name)
        yield name, value
        if isinstance(value, ModuleType):
            attributes = vars(value)
            yield from ((f"{name}.{other}", attributes[other]) for other in names if other in attributes)


def _is_constant(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return isinstance(value, int | float | str | np.generic)


_digests: dict[str, str] = {}  # hashes of source files, by path


def _digest(file: str, fn: Any) -> str:
    """Return a hash of a function's source file, which may be inside a zip file."""
    if file not in _digests:
        _digests[file] = hashlib.sha256("".join(linecache.getlines(file, fn.__globals__)).encode()).hexdigest()
    return _digests[file]


class InlineLibrary(_Library):  # type: ignore[misc]
    """LLVM code of an inline function. It is optimized and compiled only as a part of a kernel."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@_register_pass(mutates_CFG=True, analysis_only=False)
class InlineLowering(_Lowering):  # type: ignore[misc]
    """Lowers a Python function to LLVM's intermediate representation, without machine code."""

    _name = "ps2_inline_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = InlineLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        fndesc, env = state.cr.fndesc, state.cr.env
        # The address is 0: there is no machine code, and nothing calls the function directly.
        function = _dynfunc.make_function(fndesc.lookup_module(), fndesc.qualname, "", 0, env, (state.library,))
        state.targetctx.insert_user_function(function, fndesc, [state.library])
        state.cr = state.cr._replace(cfunc=function)
        return True


class InlineCompiler(_Compiler):  # type: ignore[misc]
    """Numba's compiler, but its last pass is ``InlineLowering``."""

    def define_pipelines(self) -> list[Any]:
        passes = _default_passes.define_nopython_pipeline(self.state)
        index = [step for step, _ in passes.passes].index(typed_passes.NativeLowering)
        passes.passes[index] = (InlineLowering, "lowering of an inline function")
        passes.finalize()
        return [passes]


class KernelIndex(_CacheFile):  # type: ignore[misc]
    """The index of a kernel's cache. If an update of PS2 has removed a class that the index refers to, it is empty."""

    def __init__(self, numba_index: Any) -> None:
        self.__dict__.update(vars(numba_index))

    def _load_index(self) -> dict[Any, str]:
        try:
            index: dict[Any, str] = super()._load_index()
        except (ImportError, AttributeError):
            return {}
        return index


class KernelCache(_Cache):  # type: ignore[misc]
    """Numba's cache, but it checks all sources of a kernel, and only one process compiles the kernel for all.

    If the disk is full, read-only or unreadable, kernels are compiled without the cache.
    """

    def __init__(self, fn: Any) -> None:
        super().__init__(fn)
        self._cache_file: Any = KernelIndex(vars(self)["_cache_file"])
        self._fn = fn
        self._is_stamped = False
        # The descriptor of the locked file while this process compiles the kernel; else None. Numba's own lock excludes
        # other threads.
        self._lock_file: int | None = None

    def _set_source_stamp(self) -> None:
        """Set the hash of the sources. This is done at the first use: a kernel may call functions defined below it."""
        if not self._is_stamped:
            self._cache_file._source_stamp = source_stamp(self._fn)
            self._is_stamped = True

    def is_empty(self) -> bool:
        """Return True if the cache has no compiled version of the kernel."""
        self._set_source_stamp()
        try:
            return not self._cache_file._load_index()
        except OSError:
            return True

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        self._set_source_stamp()
        try:
            code = super().load_overload(sig, target_context)
            if code is None and self._lock_file is None:
                self._lock_kernel()
                code = super().load_overload(sig, target_context)
                if code is not None:
                    self.unlock_kernel()
            return code
        except OSError as error:
            warn_once(error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        self._set_source_stamp()
        try:
            super().save_overload(sig, data)
        except OSError as error:
            warn_once(error)
            self.disable()
        finally:
            self.unlock_kernel()

    def _lock_kernel(self) -> None:
        """Wait while another process compiles the kernel; then let other processes wait for this process."""
        self._lock_file = os.open(self._lock_path(), os.O_RDWR | os.O_CREAT, 0o666)
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            try:
                return fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(POLL_S)

    def unlock_kernel(self) -> None:
        """Let waiting processes continue."""
        if self._lock_file is not None:
            # Waiting processes have opened the file already; later processes find the kernel in the cache.
            with suppress(FileNotFoundError):
                os.unlink(self._lock_path())
            os.close(self._lock_file)
            self._lock_file = None

    def _lock_path(self) -> str:
        return f"{self._cache_file._index_path}.lock"


def warn_once(error: Exception) -> None:
    """Warn that compiled kernels are not cached, once per process."""
    if not _warned:
        _warned.add(str(error))
        log.warning(
            "compiled kernels cannot be cached, so each process compiles them again, which takes seconds: %s; set "
            "NUMBA_CACHE_DIR to a writable folder",
            error,
        )


_register: Any = event.register
for _listener in (CompilingNotice(), GarbageCollectionPause()):
    _register("numba:compile", _listener)
