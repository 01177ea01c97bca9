"""A fast path's loop is used where it works, and the lock of a shard is one for Python and for compiled loops."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest
from numba.core.errors import TypingError

from ps2.server import fast_path, fast_path_compiled, fast_path_loop, shard
from ps2.server.engine import Engine
from ps2.server.fast_path import FIRST_BYTES, MEMORY_DIVISOR, CompiledFastPath
from ps2.server.shard import ShardLock

BUSY = 16  # EBUSY


def test_loop_when_it_is_tried_out_then_it_works():
    assert fast_path_compiled.works(fast_path_compiled.load())


@pytest.mark.parametrize(
    "serve",
    [
        lambda *arguments: fast_path_loop.OTHER,
        lambda *arguments: fast_path_loop.serve(*arguments) and fast_path_loop.CLOSED,
    ],
    ids=["does nothing", "ends otherwise"],
)
def test_loop_when_self_test_fails_then_no_lanes(monkeypatch, caplog, serve):
    broken = SimpleNamespace(**{**vars(fast_path_loop), "serve": serve})
    monkeypatch.setattr(fast_path, "load", lambda: broken)
    fast_paths = Engine(1 << 20, allow_udf=False).fast_paths
    fast_paths.load()
    assert fast_paths.loop is None
    assert "fast paths do not work on this system" in caplog.text


def test_loop_when_it_cannot_be_compiled_then_there_are_no_lanes(monkeypatch, caplog):
    def fails():
        raise TypingError("no such thing in this version")

    monkeypatch.setattr(fast_path, "load", fails)
    fast_paths = Engine(1 << 20, allow_udf=False).fast_paths
    fast_paths.load()
    assert fast_paths.loop is None
    assert "no such thing in this version" in caplog.text


def test_loop_when_the_system_is_another_then_nothing_is_loaded(monkeypatch):
    monkeypatch.setattr(fast_path_compiled, "HAS_MUTEX", False)
    assert fast_path_compiled.load() is None
    assert not fast_path_compiled.is_compiled()
    fast_paths = Engine(1 << 20, allow_udf=False).fast_paths
    fast_paths.load()
    assert fast_paths.loop is None


def test_loop_when_loaded_then_is_compiled_until_source_changes(monkeypatch, tmp_path):
    fast_path_compiled.load()
    assert fast_path_compiled.is_compiled()
    (tmp_path / "other.py").write_text("")
    monkeypatch.setattr(fast_path_compiled, "_sources", lambda: [tmp_path / "other.py"])
    assert not fast_path_compiled.is_compiled()


def test_memory_when_lanes_have_their_share_then_no_more_lanes():
    engine = Engine(MEMORY_DIVISOR * 3 * FIRST_BYTES, allow_udf=False)
    some = [CompiledFastPath(engine.fast_paths, fast_path_loop, engine.fence, engine.shard) for _ in range(5)]
    assert [engine.fast_paths.resize(one, FIRST_BYTES) for one in some] == [True, True, True, False, False]
    assert engine.memory.used_bytes == engine.fast_paths.nbytes == 3 * FIRST_BYTES
    some[1].close()
    assert engine.fast_paths.resize(some[4], FIRST_BYTES)
    for one in some:
        one.close()
    assert engine.memory.used_bytes == engine.fast_paths.nbytes == 0


def test_memory_when_others_need_lane_share_then_get_it():
    limit = MEMORY_DIVISOR * 3 * FIRST_BYTES
    engine = Engine(limit, allow_udf=False)
    some = [CompiledFastPath(engine.fast_paths, fast_path_loop, engine.fence, engine.shard) for _ in range(3)]
    for one in some:
        assert engine.fast_paths.resize(one, FIRST_BYTES)
    engine.memory.admit(limit - 2 * FIRST_BYTES, "a request")
    assert engine.fast_paths.nbytes == 2 * FIRST_BYTES
    engine.memory.take(FIRST_BYTES, "data")
    assert engine.fast_paths.nbytes == FIRST_BYTES
    assert [one.generation[0] for one in some].count(1) == 2
    engine.memory.release(limit - 2 * FIRST_BYTES)
    engine.memory.admit(limit - FIRST_BYTES, "a request")
    assert engine.fast_paths.nbytes == 0


def test_loop_when_any_source_changes_then_old_build_is_removed(monkeypatch, tmp_path):
    """Numba would go by the file of the loop alone."""

    class Loop(SimpleNamespace):
        __name__ = "a_loop"

    def serve(*arguments):
        (tmp_path / "a_loop.serve.nbi").touch()

    serve.stats = SimpleNamespace(cache_path=str(tmp_path))
    source, others = tmp_path / "short.py", tmp_path / "another_loop.serve.nbi"
    source.write_text("1")
    others.touch()
    monkeypatch.setitem(sys.modules, "ps2.server.a_loop", Loop(serve=serve))
    monkeypatch.setattr(fast_path_compiled, "LOOP", "ps2.server.a_loop")
    monkeypatch.setattr(fast_path_compiled, "_sources", lambda: [source])
    stale = tmp_path / "a_loop._settle.1.nbc"
    stale.touch()
    fast_path_compiled.load()
    assert not stale.exists()
    stale.touch()
    fast_path_compiled.load()
    assert stale.exists()
    source.write_text("22")
    fast_path_compiled.load()
    assert not stale.exists()
    assert others.exists()


# -- the lock ----------------------------------------------------------------------------------------------------------


def test_lock_when_python_holds_it_then_no_loop_has_it():
    held = ShardLock()
    with held, held:
        assert shard._try_mutex(held.address) == BUSY
    assert shard._try_mutex(held.address) == 0
    shard._free_mutex(held.address)


def test_lock_when_a_loop_holds_it_then_python_waits():
    held, came = ShardLock(), threading.Event()

    def take():
        with held:
            came.set()

    assert shard._try_mutex(held.address) == 0
    thread = threading.Thread(target=take)
    thread.start()
    assert not came.wait(0.1)
    shard._free_mutex(held.address)
    assert came.wait(10)
    thread.join()


def test_lock_when_other_thread_holds_it_then_acquire_gives_up():
    held, results = ShardLock(), []

    def attempt():
        results.extend([held.acquire(blocking=False), held.acquire(timeout=0.01)])

    with held:
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
    assert results == [False, False]
    assert held.acquire(blocking=False)
    held.release()


def test_lock_when_python_and_native_threads_mix_then_exclusive():
    held, inside, worst = ShardLock(), [0], []

    def as_python():
        for _ in range(2000):
            with held:
                inside[0] += 1
                worst.append(inside[0])
                inside[0] -= 1

    def as_loop():
        for _ in range(2000):
            shard._wait_for_mutex(held.address)
            inside[0] += 1
            worst.append(inside[0])
            inside[0] -= 1
            shard._free_mutex(held.address)

    threads = [threading.Thread(target=target) for target in (as_python, as_loop, as_python, as_loop)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(worst) == 8000
    assert max(worst) == 1
