"""When the supervisor of a launched fleet starts a server anew, and when it gives the server up."""

from __future__ import annotations

from ps2.cli.supervisor import MAX_EARLY_DEATHS, MAX_FAILED_STARTS, PAUSES_S, STABLE_S, RestartPlan


def lives(plan, now_s, life_s, deaths, has_listened=True):
    """Let a server die so often, each time after so long; return the pauses before its starts, and the time."""
    pauses = []
    for _ in range(deaths):
        now_s += life_s
        start_s = plan.start_time(now_s, has_listened)
        pauses.append(None if start_s is None else start_s - now_s)
        if start_s is not None:
            plan.begin(now_s := start_s)
    return pauses, now_s


def test_server_when_it_never_listens_then_fails_after_pauses():
    pauses, _ = lives(RestartPlan(0.0), 0.0, 0.5, MAX_FAILED_STARTS, has_listened=False)
    assert pauses == [*PAUSES_S, None]


def test_server_when_slow_and_never_listens_then_fails():
    pauses, _ = lives(RestartPlan(0.0), 0.0, 2 * STABLE_S, MAX_FAILED_STARTS, has_listened=False)
    assert pauses == [*[0.0] * (MAX_FAILED_STARTS - 1), None]


def test_server_when_it_listens_between_deaths_then_tried_longer():
    pauses, _ = lives(RestartPlan(0.0), 0.0, 0.5, MAX_EARLY_DEATHS)
    assert pauses == [*PAUSES_S, *[PAUSES_S[-1]] * (MAX_EARLY_DEATHS - len(PAUSES_S) - 1), None]


def test_server_when_it_lives_long_then_starts_at_once_forever():
    pauses, _ = lives(RestartPlan(0.0), 0.0, STABLE_S, 2 * MAX_EARLY_DEATHS)
    assert pauses == [0.0] * 2 * MAX_EARLY_DEATHS


def test_server_when_it_was_stable_then_pauses_begin_again():
    plan = RestartPlan(0.0)
    _, now_s = lives(plan, 0.0, 0.5, len(PAUSES_S))
    _, now_s = lives(plan, now_s, STABLE_S, 1)
    pauses, _ = lives(plan, now_s, 0.5, 2)
    assert pauses == [*PAUSES_S[1:3]]
