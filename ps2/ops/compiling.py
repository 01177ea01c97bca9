"""Compilation of kernels, with numba's cache on disk; without a writable cache, every process compiles again."""

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

# A process prints a line after compiling for this time.
PATIENCE_S = 2.0
# The maximum time to wait for a kernel that another process compiles, and the time between two checks.
WAIT_S, POLL_S = 60.0, 0.05
# The first error that prevented caching: a process warns only once.
_warned: set[str] = set()
# The functions that ``compile_inline`` has compiled.
_inline: set[Callable[..., Any]] = set()

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
    """Prints a line, once per process, when kernels have been compiling for some seconds."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        # The number of nested compilations: a kernel compiles the kernels that it calls.
        self._depth = 0

    def on_start(self, event: Any) -> None:
        """Start the timer when numba begins to compile a kernel."""
        if not _is_cached(event):
            return
        if self._depth == 0:
            self._timer = threading.Timer(self._patience_s, self._print)
            self._timer.daemon = True
            self._start_s = time.monotonic()
            self._timer.start()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        """Stop the timer when the compilation has ended; the next kernel gets the remaining time."""
        if not _is_cached(event):
            return
        if event._exc_details is not None:
            event.data["dispatcher"]._cache.end_turn()
        self._depth -= 1
        if self._depth == 0:
            self._timer.cancel()
            self._patience_s = max(self._patience_s - (time.monotonic() - self._start_s), 0.0)

    def _print(self) -> None:
        self._patience_s = threading.TIMEOUT_MAX
        print("ps2: compiling kernels, once for this machine: it may take half a minute", file=sys.stderr, flush=True)


class GarbageCollectionPause(_Listener):  # type: ignore[misc]
    """Disables garbage collection while kernels compile: it would take a tenth of the time, and free little."""

    def __init__(self) -> None:
        self._depth, self._was_on = 0, False

    def on_start(self, event: Any) -> None:
        """Disable garbage collection when numba begins to compile."""
        if self._depth == 0:
            self._was_on = gc.isenabled()
            gc.disable()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        """Enable garbage collection again when the outermost compilation has ended."""
        self._depth -= 1
        if self._depth == 0 and self._was_on:
            gc.enable()


def _is_cached(event: Any) -> bool:
    return isinstance(event.data["dispatcher"]._cache, KernelCache)


def compile_kept(fn: F, fastmath: Any = False) -> F:
    """Compile a function on its first call, and cache the result on disk if numba has a writable cache folder."""
    # ``fastmath`` must be given: otherwise numba would use that of the function's first caller.
    compiled: Any = njit(nogil=True, error_model="numpy", fastmath=fastmath)(fn)
    try:
        compiled._cache = KernelCache(compiled.py_func)  # as ``cache=True`` does
    except RuntimeError as error:  # no folder: a read-only install, and no home directory
        warn_once(error)
    result: F = compiled
    return result


def compile_inline(fn: F, fastmath: Any = False) -> F:
    """Let kernels call a function, which is compiled into each of them; Python calls it uncompiled."""
    result: F = _register_jitable(
        error_model="numpy", fastmath=fastmath, no_cfunc_wrapper=True, pipeline_class=InlineCompiler
    )(fn)
    _inline.add(fn)
    return result


def source_stamp(fn: Callable[..., Any]) -> str:
    """Return a hash of the sources that a kernel's machine code depends on; numba itself checks only the kernel's file.

    The sources are the files of the function and of the functions that it calls, and the constants that they use.
    """
    # The code depends on this file, too.
    files, constants = {_digest(__file__, source_stamp)}, set[tuple[str, str]]()
    for each in _reachable(fn, {fn}):
        files.add(_digest(inspect.getfile(each), each))
        constants.update((name, repr(value)) for name, value in _globals(each) if _is_constant(value))
    return hashlib.sha256(repr((sorted(files), sorted(constants))).encode()).hexdigest()


def _reachable(fn: Any, seen: set[Any]) -> Iterator[Any]:
    """Yield a function and the compiled functions that it calls."""
    yield fn
    for _, value in _globals(fn):
        called = getattr(value, "py_func", None) or getattr(value, "_defn", None) or value  # a kernel, an intrinsic
        if isinstance(called, FunctionType) and called not in seen and (called is not value or called in _inline):
            seen.add(called)
            yield from _reachable(called, seen)


def _globals(fn: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names in a function's code with their values, also attributes of modules."""
    names = fn.__code__.co_names
    for name in names:
        value = fn.__globals__.get(name)
        yield name, value
        if isinstance(value, ModuleType):
            yield from ((f"{name}.{part}", vars(value)[part]) for part in names if part in vars(value))


def _is_constant(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return isinstance(value, int | float | str | np.generic)


_digests: dict[str, str] = {}


def _digest(file: str, fn: Any) -> str:
    """Return a hash of the file of a function, which may be inside a zip file."""
    if file not in _digests:
        _digests[file] = hashlib.sha256("".join(linecache.getlines(file, fn.__globals__)).encode()).hexdigest()
    return _digests[file]


class InlineLibrary(_Library):  # type: ignore[misc]
    """Code that is optimised and translated only as a part of other code."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@_register_pass(mutates_CFG=True, analysis_only=False)
class InlineLowering(_Lowering):  # type: ignore[misc]
    """Lowers a Python function to LLVM's intermediate language, and stops there."""

    _name = "ps2_inline_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = InlineLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        fndesc, env = state.cr.fndesc, state.cr.env
        # The address is 0: there is no code yet, and nothing calls the function.
        function = _dynfunc.make_function(fndesc.lookup_module(), fndesc.qualname, "", 0, env, (state.library,))
        state.targetctx.insert_user_function(function, fndesc, [state.library])
        state.cr = state.cr._replace(cfunc=function)
        return True


class InlineCompiler(_Compiler):  # type: ignore[misc]
    """Numba's compiler, except that it ends with ``InlineLowering``."""

    def define_pipelines(self) -> list[Any]:
        passes = _default_passes.define_nopython_pipeline(self.state)
        index = [step for step, _ in passes.passes].index(typed_passes.NativeLowering)
        passes.passes[index] = (InlineLowering, "lowering of a part of kernels")
        passes.finalize()
        return [passes]


class KernelIndex(_CacheFile):  # type: ignore[misc]
    """The index of a kernel's cache. It is empty if an update of PS2 has removed a class that the index refers to."""

    def __init__(self, plain: Any) -> None:
        self.__dict__.update(vars(plain))

    def _load_index(self) -> dict[Any, str]:
        try:
            index: dict[Any, str] = super()._load_index()
        except (ImportError, AttributeError):
            return {}
        return index


class KernelCache(_Cache):  # type: ignore[misc]
    """Numba's cache that checks all sources of a kernel, and lets one process compile the kernel for all.

    If the disk is full, read-only or unreadable, kernels are compiled without the cache.
    """

    def __init__(self, fn: Any) -> None:
        super().__init__(fn)
        plain: Any = vars(self)["_cache_file"]
        self._cache_file: Any = KernelIndex(plain)
        self._fn = fn
        self._is_stamped = False
        # The descriptor of a locked file while this process compiles the kernel. Other threads are excluded by numba's
        # lock of the compiler.
        self._turn: int | None = None

    def _stamp(self) -> None:
        """Stamp the cache with the sources, at the first use: a kernel may call functions defined below it."""
        if not self._is_stamped:
            self._cache_file._source_stamp = source_stamp(self._fn)
            self._is_stamped = True

    def is_empty(self) -> bool:
        """Return whether the cache has no compiled version of the kernel."""
        self._stamp()
        try:
            return not self._cache_file._load_index()
        except OSError:
            return True

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        self._stamp()
        try:
            code = super().load_overload(sig, target_context)
            if code is None and self._turn is None:
                self._begin_turn()
                code = super().load_overload(sig, target_context)
                if code is not None:
                    self.end_turn()
            return code
        except OSError as error:
            warn_once(error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        self._stamp()
        try:
            super().save_overload(sig, data)
        except OSError as error:
            warn_once(error)
            self.disable()
        finally:
            self.end_turn()

    def _begin_turn(self) -> None:
        """Wait while another process compiles the kernel; then make the others wait for this process."""
        self._turn = os.open(self._turn_path(), os.O_RDWR | os.O_CREAT, 0o666)
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            try:
                return fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(POLL_S)

    def end_turn(self) -> None:
        """Release the processes that wait."""
        if self._turn is not None:
            # Waiting processes have the file open; processes that come later find the kernel in the cache.
            with suppress(FileNotFoundError):
                os.unlink(self._turn_path())
            os.close(self._turn)
            self._turn = None

    def _turn_path(self) -> str:
        return f"{self._cache_file._index_path}.lock"


def warn_once(error: Exception) -> None:
    """Warn, once per process, that compiled kernels are not cached."""
    if not _warned:
        _warned.add(str(error))
        log.warning(
            "compiled kernels cannot be cached, so each process compiles them again, for seconds: %s; set "
            "NUMBA_CACHE_DIR to a writable folder",
            error,
        )


_register: Any = event.register
for _listener in (CompilingNotice(), GarbageCollectionPause()):
    _register("numba:compile", _listener)
