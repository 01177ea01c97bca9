"""A thread that has to go on does, whatever its turns raise, and says what it was."""

from __future__ import annotations

from ps2.guarded_loop import GuardedLoop


def raising(*errors):
    """A turn that raises one after the other; None is a good one."""
    left = list(errors)

    def turn():
        error = left.pop(0)
        if error is not None:
            raise error

    return turn


def test_take_when_a_turn_raises_then_logged_and_next_comes(caplog):
    loop, turn = GuardedLoop("ps2-monitor"), raising(OSError("/tmp/x: gone"), None)
    loop.run_once(turn)
    loop.run_once(turn)
    assert "ps2-monitor: unexpected error; the thread continues" in caplog.text
    assert [str(record.exc_info[1]) for record in caplog.records] == ["/tmp/x: gone"]


def test_take_when_the_same_error_repeats_then_logged_once(caplog):
    loop, turn = GuardedLoop("t"), raising(KeyError(1), KeyError(1), KeyError(2), KeyError(2), None, KeyError(2))
    for _ in range(6):
        loop.run_once(turn)
    assert [record.exc_info[1].args[0] for record in caplog.records] == [1, 2, 2]
