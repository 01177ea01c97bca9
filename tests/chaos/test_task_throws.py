"""Tasks that throw at random places: after none of their adds, after some, after all."""

from __future__ import annotations

from faults import counting

from ps2 import PS2Context


def test_count_when_attempts_throw_at_random_then_exact(spark, job, counted):
    throwing = job(tasks=16, throwing=0.4)
    with PS2Context.getOrCreate(spark, servers=2):
        assert counted(spark, throwing) == [throwing.total]
    thrown = [one for one in counting.attempts(throwing.folder) if one.thrown]
    assert len(thrown) >= 5
    assert any(one.adds for one in thrown)
