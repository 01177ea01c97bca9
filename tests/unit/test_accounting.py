"""The time of a run's workers, divided into categories that add up to all of it."""

from __future__ import annotations

import re
from importlib.resources import files

import numpy as np
import pytest

from ps2.rpc.run_control import ClockTimes
from ps2.run.result import RunResult
from ps2.run.timeline import NAMES, ROW_ORDER, to_table


def lane(compute_s, wait_s):
    """One rank's table: half a second of reading, from second 1 on, and two clocks."""
    return to_table(
        [
            ClockTimes(0, 1.0, 0.5, 0.0, 0.0, 0.0, outside=True),
            ClockTimes(0, 1.5, compute_s[0], 0.25, 0.25, 0.0),
            ClockTimes(1, 2.0 + compute_s[0], compute_s[1], 0.25, 0.25, wait_s),
            ClockTimes(2, 2.5 + sum(compute_s) + wait_s, 0.0, 0.0, 0.0, 0.0, outside=True),
        ]
    )


LANES = (lane((0.5, 2.5), 2.0), lane((2.5, 0.5), 0.0))


def result_of(*lanes, has_daemon=True):
    return RunResult(tuple(range(len(lanes))), 10.0, 0, 0, lanes, _has_daemon=has_daemon)


def around(table, seconds):
    """The same rank's table with what comes before and after its work, until the run has taken so many seconds."""
    start = ClockTimes(0, 0.0, 0.0, 0.0, 0.0, 0.0, True, spark=0.4, imports=0.5, connect=0.1)
    end_s = float(table.began[-1])
    end = ClockTimes(2, end_s, 0.0, 0.0, 0.0, 0.0, True, coordinator=0.25, spark=seconds - end_s - 0.25)
    return np.concatenate([to_table([start]), table[:-1], to_table([end])]).view(np.recarray)


def test_shares_when_all_was_measured_then_nothing_is_other():
    result = result_of(*(around(table, 10.0) for table in LANES)).shares
    assert result["other"] == pytest.approx(0.0, abs=1e-12)
    assert sum(result.values()) == pytest.approx(1.0, abs=1e-12)
    assert result["imports"] == pytest.approx(0.05)
    assert result["spark"] == pytest.approx((2 * 0.4 + 2 * 9.75 - sum(table.began[-1] for table in LANES)) / 20)


def test_shares_when_time_is_missing_then_it_is_other():
    result = result_of(*LANES).shares
    assert result["other"] == pytest.approx(9 / 20)
    assert sum(result.values()) == pytest.approx(1.0, abs=1e-12)


def test_shares_when_clocks_of_hosts_differ_then_sum_is_one():
    result = result_of(to_table([ClockTimes(0, 0.0, 20.0, 0.0, 0.0, 0.0)])).shares
    assert result == {**dict.fromkeys(result, 0.0), "compute": 1.0}


def test_categories_when_shown_then_page_and_chart_have_each():
    from ps2.run.gantt import COLORS, ORDER

    assets = files("ps2.dashboard") / "assets"
    script, style = (assets / "gantt.js").read_text(), (assets / "style.css").read_text()
    listed = [re.findall(r'"(\w+)"', part) for part in re.findall(r"export const [A-Z_]+ = \[(.*?)\];", script, re.S)]
    assert listed == [[*NAMES, "other"], [*ROW_ORDER]]
    assert all(len(re.findall(rf"--{name}: #", style)) == 2 for name in (*NAMES, "other"))
    assert set(ORDER) == set(COLORS) == set(NAMES)


def test_summary_when_python_began_in_the_run_then_it_says_so(capsys):
    lanes = [around(table, 10.0) for table in LANES]
    result_of(*lanes, has_daemon=False).summary()
    message = " ".join(capsys.readouterr().out.split())
    assert "before workers: 1.000 s: 0.4000 s of Spark's plan and tasks, 0.5000 s of Python's start" in message
    assert "ps2.run.daemon" in message
    result_of(*lanes).summary()
    assert "ps2.run.daemon" not in capsys.readouterr().out
