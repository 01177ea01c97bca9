"""RunResult: what the workers returned, where their time went, and how it is printed and drawn."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

from ps2.errors import ConfigError, NotFoundError
from ps2.rpc.run_control import ClockTimes, Logged
from ps2.run.result import RunResult
from ps2.run.timeline import progress, shown_ranks, to_table, waited_for


def lane(began_s, *clocks, outside_s=0.5, first=0):
    """One rank's table: ``outside_s`` of reading rows, then clocks, each as (wait, pull, compute, push)."""
    rows = [ClockTimes(first, began_s, outside_s, 0.0, 0.0, 0.0, outside=True)]
    now_s = began_s + outside_s
    for clock, (wait, pull, compute, push) in enumerate(clocks, first):
        rows.append(ClockTimes(clock, now_s, compute, pull, push, wait))
        now_s += wait + pull + compute + push
    rows.append(ClockTimes(first + len(clocks), now_s, 0.0, 0.0, 0.0, 0.0, outside=True))
    return to_table(rows)


def result_of(*lanes, staleness=0, logged=(), first=0):
    return RunResult(tuple(range(len(lanes))), 10.0, staleness, first, lanes, tuple(logged))


# Rank 1 computes longer in clock 0, so that rank 0 waits for it before clock 1; the other way round in clock 1.
FAST, SLOW = (0.0, 0.25, 0.5, 0.25), (0.0, 0.25, 2.5, 0.25)
BSP = (lane(1.0, FAST, (2.0, *SLOW[1:])), lane(1.0, SLOW, FAST))


@pytest.fixture
def bsp():
    return result_of(*BSP)


# -- like a list


def test_result_when_indexed_sliced_looped_then_acts_like_list():
    result = RunResult(("a", "b", "c"), 1.0, 0, 0, ())
    assert (len(result), result[0], result[-1], result[1:], [*result], "b" in result) == (
        3, "a", "c", ["b", "c"], ["a", "b", "c"], True,
    )  # fmt: skip


def test_result_when_compared_then_what_was_returned_counts():
    result = RunResult((1, 2), 1.0, 0, 0, ())
    assert result == [1, 2]
    assert result == RunResult((1, 2), 2.0, None, 5, ())
    assert result != [1, 3]


def test_result_when_shown_then_it_is_short():
    assert repr(RunResult((1, "two"), 1.23456, 0, 0, ())) == "RunResult([1, 'two'], seconds=1.23)"
    assert len(repr(RunResult(tuple("x" * 1000 for _ in range(1000)), 1.0, 0, 0, ()))) < 300


def test_result_when_pickled_then_it_comes_back(bsp):
    again = pickle.loads(pickle.dumps(bsp))
    assert again == bsp
    np.testing.assert_array_equal(again.timeline[0], bsp.timeline[0])


# -- the timeline


def test_timeline_then_has_row_for_each_clock_and_rank(bsp):
    assert [row.clock for row in bsp.timeline[0]] == [0, 1]
    assert bsp.timeline[0][1].tolist() == (1, 2.5, 2.5, 0.25, 0.25, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1, 0.0)
    assert bsp.timeline[1].compute.tolist() == [2.5, 0.5]


def test_outside_then_has_time_outside_clocks(bsp):
    assert [*bsp.outside[0].dtype.names] == [*bsp.timeline[0].dtype.names, "connect", "spark"]
    assert [(row.clock, row.began, row.compute) for row in bsp.outside[0]] == [(0, 1.0, 0.5), (2, 7.5, 0.0)]


def test_timeline_when_a_worker_sent_nothing_then_it_is_empty():
    assert [len(rows) for rows in result_of(to_table([])).timeline] == [0]


def test_progress_when_ranks_end_apart_then_last_one_counts():
    assert progress([lane(0.0, FAST, FAST), lane(0.0, FAST, SLOW)]) == "2 clocks at 0.5 a second"


def test_progress_when_clock_counts_differ_then_reports_them():
    assert progress([lane(0.0), lane(0.0, FAST, SLOW)]) == "0 to 2 clocks a worker, 2 in all, at 0.5 a second"


def test_progress_when_the_pace_is_high_then_it_is_no_power():
    assert progress([lane(0.0, *[(0, 0, 2**-14, 0)] * 1024)]) == "1,024 clocks at 16,384 a second"


def test_progress_when_nobody_did_a_clock_then_it_says_so():
    assert progress([lane(0.0), to_table([])]) == "no clocks"


def test_waited_for_when_one_is_late_then_others_waited_for_it():
    waits = waited_for(BSP, 0)
    assert waits.seconds.tolist() == [0.0, 2.0]
    assert waits.times.tolist() == [0, 1]


def test_waited_for_when_wait_is_longer_then_rest_has_no_cause():
    waits = waited_for([lane(1.0, FAST, (3.0, 0, 0, 0)), lane(1.0, SLOW, FAST)], 0)
    assert waits.seconds.tolist() == [0.0, 2.0]


def test_waited_for_when_workers_may_be_ahead_then_earlier_clock():
    ahead = lane(0.0, FAST, FAST, (1.0, 0, 0, 0), outside_s=0.0)  # at 2 s before clock 2: it waits for clock 0 to end
    waits = waited_for([ahead, lane(0.0, SLOW, FAST, FAST, outside_s=0.0)], 1)
    assert waits.seconds.tolist() == [0.0, 1.0]


def test_waited_for_when_no_one_waits_then_has_no_rank():
    assert not waited_for(BSP, None).times.any()


def test_some_ranks_when_there_are_many_then_includes_busiest():
    lanes = [lane(0.0, SLOW if rank in (7, 13) else FAST) for rank in range(20)]
    chosen = shown_ranks(lanes, 4)
    assert len(chosen) == len(set(chosen)) == 4
    assert {7, 13} < set(chosen)


# -- metrics


LOGGED = [
    (0, Logged("loss", 3.0, 5)),
    (1, Logged("loss", 4.0, 5)),
    (1, Logged("loss", 2.0, 7)),
    (0, Logged("auc", 0.9, 6)),
    (1, Logged("loss", 1.0, 7)),
]


def test_metrics_when_logged_then_last_value_by_rank_and_clock():
    result = result_of(*BSP, logged=LOGGED, first=5)
    np.testing.assert_array_equal(result.metrics("loss"), [[3.0, np.nan, np.nan], [4.0, np.nan, 1.0]])
    assert result.metricNames == ["auc", "loss"]


def test_metrics_when_name_is_unknown_then_lists_known():
    with pytest.raises(NotFoundError, match=r"no worker logged 'los'; logged names: \['auc', 'loss'\]"):
        result_of(*BSP, logged=LOGGED, first=5).metrics("los")


def test_to_pandas_when_metric_was_logged_then_is_beside_times():
    lanes = [lane(0.0, FAST, FAST, first=5), lane(0.0, FAST, FAST, first=5)]
    frame = result_of(*lanes, logged=[*LOGGED, (0, Logged("wait", 8.0, 5))], first=5).toPandas()
    assert [*frame] == [
        "rank",
        "clock",
        "began",
        "compute",
        "pull",
        "push",
        "wait",
        "onClock",
        "checkpoint",
        "coordinator",
        "kernels",
        "imports",
        "block",
        "left",
        "auc",
        "loss",
        "wait_logged",
    ]
    assert frame[["rank", "clock"]].to_numpy().tolist() == [[0, 5], [0, 6], [1, 5], [1, 6], [1, 7]]
    np.testing.assert_array_equal(frame["loss"], [3.0, np.nan, 4.0, np.nan, 1.0])
    np.testing.assert_array_equal(frame["compute"], [0.5, 0.5, 0.5, 0.5, np.nan])


def test_to_pandas_when_the_last_value_is_nan_then_it_is_kept():
    logged = [(0, Logged("loss", 1.0, 0)), (0, Logged("loss", np.nan, 0))]
    assert np.isnan(result_of(*BSP, logged=logged).toPandas()["loss"][0])


def test_to_pandas_when_nothing_was_logged_then_is_timeline(bsp):
    frame = bsp.toPandas()
    assert len(frame) == 4
    assert frame.groupby("rank")["wait"].sum().tolist() == [2.0, 0.0]


# -- what was waited for the driver


@pytest.fixture
def called():
    """A worker that waited two seconds for the other one, and then three for ``onClock``, which the other one did."""
    late = ClockTimes(1, 5.0, 1.0, 0.0, 0.0, 0.0, on_clock=3.0)
    early = ClockTimes(1, 3.0, 1.0, 0.0, 0.0, 2.0, on_clock=3.0)
    first = [ClockTimes(0, 0.0, seconds, 0.0, 0.0, 0.0) for seconds in (3.0, 5.0)]
    return result_of(to_table([first[0], early]), to_table([first[1], late]))


def test_onclock_wait_when_shown_then_is_separate_from_others(called, capsys):
    called.summary()
    message = capsys.readouterr().out
    assert "onClock    6.000   30.0  for the driver's functions" in message
    assert "rank 1, 1 time, 2.000 s of all 2.000 s waited for others" in message
    assert [table.onClock.tolist() for table in called.timeline] == [[0.0, 3.0]] * 2
    assert sizes(called.plot())["onClock"] == 6.0


# -- the summary


def test_summary_when_printed_then_has_shares_pace_and_waits(bsp, capsys):
    assert bsp.summary() is None
    assert capsys.readouterr().out == (
        "2 workers, BSP: 2 clocks at 0.333 a second; 10.00 s from call to return\n"
        "\n"
        "where the workers' time went, in seconds of all workers (or hours, h) and %:\n"
        "      compute    6.000   30.0  the function's own work in clocks\n"
        "         pull    1.000    5.0  reading vectors\n"
        "         push    1.000    5.0  changing vectors\n"
        "         wait    2.000   10.0  for other workers\n"
        "      outside    1.000    5.0  outside of clocks, such as reading rows\n"
        "        other    9.000   45.0  unmeasured time\n"
        "\n"
        "seconds by rank, of 10.00:\n"
        "rank  clocks compute    pull    push    wait onClock kernels outside    rest\n"
        "   0       2   3.000  0.5000  0.5000   2.000  0.0000  0.0000  0.5000   3.500\n"
        "   1       2   3.000  0.5000  0.5000  0.0000  0.0000  0.0000  0.5000   5.500\n"
        "\n"
        "slowest clock: 1 of rank 0, 3.000 s without waiting; the median is 2.000 s\n"
        "most waited for: rank 1, 1 time, 2.000 s of all 2.000 s waited for others\n"
    )


def test_summary_when_many_ranks_and_long_times_then_fits_width(capsys):
    lanes = [lane(0.0, *[(1e5, 1e5, 1e5, 1e5)] * 3, outside_s=12345.6) for _ in range(1000)]
    lanes[7] = lane(0.0)
    result_of(*lanes, staleness=3).summary()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 60


def test_summary_when_clocks_were_done_again_then_it_says_so(capsys):
    table = to_table([ClockTimes(clock, began, 1.0, 0, 0, 0) for began, clock in enumerate((0, 1, 0, 1, 2))])
    result_of(table, staleness=None).summary()
    out = capsys.readouterr().out
    assert "1 worker, ASP: 3 clocks" in out
    assert "repeated: 2 clocks" in out


def test_summary_when_there_was_no_clock_then_shows_rest(capsys):
    result_of(lane(1.0)).summary()
    assert "1 worker, BSP: no clocks; 10.00 s from call to return" in capsys.readouterr().out


# -- the chart


def sizes(chart):
    """Total seconds drawn by kind, of a chart with bars."""
    from ps2.run.gantt import ORDER

    result = dict.fromkeys(ORDER, 0.0)
    bars = [each for each in chart.collections if hasattr(each, "get_sizes")]
    for number, each in enumerate(bars):
        for path in each.get_paths():
            result[ORDER[number % len(ORDER)]] += np.ptp(path.vertices[:, 0])
    return result


def drawn(figure):
    """The kinds that are drawn, with their seconds."""
    return {kind: seconds for kind, seconds in sizes(figure).items() if seconds}


def test_plot_when_clocks_are_few_then_bar_lengths_are_times(bsp):
    assert drawn(bsp.plot()) == {"compute": 6.0, "outside": 1.0, "pull": 1.0, "push": 1.0, "wait": 2.0}


def test_plot_when_a_rank_did_no_clock_then_it_has_what_it_did():
    idle = result_of(lane(0.0, outside_s=3.0), lane(0.0, FAST), staleness=None)
    assert drawn(idle.plot()) == {"compute": 0.5, "outside": 3.5, "pull": 0.25, "push": 0.25}


def test_plot_when_chosen_clocks_miss_ranks_then_those_are_empty():
    uneven = result_of(lane(0.0, FAST), lane(0.0, FAST, SLOW), staleness=None)
    chart = uneven.plot(clocks=(1, 2))
    assert sizes(chart)["compute"] == 2.5
    assert written(chart) == ["no clocks"]


def test_plot_when_rank_ended_before_clock_0_then_lane_says_so():
    chart = result_of(lane(1.0), lane(1.0, FAST, outside_s=90.0), staleness=None).plot()
    assert written(chart) == ["◀ setup from 1 s", "no clocks, at work from 1 to 1.5 s"]


def test_plot_when_no_rank_did_a_clock_then_all_is_outside():
    chart = result_of(lane(1.0, outside_s=2.0), lane(1.0, outside_s=1.0)).plot()
    assert sizes(chart)["outside"] == 3.0
    assert chart.get_xlim() == pytest.approx((1.0, 3.0), abs=0.01)


def test_plot_when_nothing_took_any_time_then_it_is_drawn():
    assert sizes(result_of(lane(1.0, outside_s=0.0)).plot())["outside"] == 0.0


def written(chart):
    return [each.get_text() for each in chart.texts if not each.get_text().isdigit()]


def test_plot_when_setup_is_long_then_axis_starts_near_clock_0():
    chart = result_of(lane(1.0, *[FAST] * 10, outside_s=90.0)).plot()
    assert chart.get_xlim() == pytest.approx((90.0, 101.0), abs=0.1)
    assert written(chart) == ["◀ setup from 1 s"]


def test_plot_when_tail_is_long_then_axis_ends_near_last_clock():
    tail = to_table([ClockTimes(10, 10.0, 90.0, 0.0, 0.0, 0.0, outside=True)])
    table = np.concatenate([lane(0.0, *[FAST] * 10, outside_s=0.0)[:-1], tail]).view(np.recarray)
    chart = result_of(table).plot()
    assert chart.get_xlim() == pytest.approx((0.0, 11.0), abs=0.1)
    assert written(chart) == ["outside of clocks until 100 s ▶"]


def test_plot_when_the_setup_was_short_then_nothing_is_cut_off(bsp):
    chart = bsp.plot()
    assert chart.get_xlim()[0] == 1.0
    assert written(chart) == []


def test_plot_when_setup_is_long_then_columns_span_visible_part():
    chart = result_of(lane(1.0, *[FAST] * 1000, outside_s=9000.0)).plot()
    compute = chart.collections[0].get_paths()[0].vertices
    assert compute[:, 0].min() == pytest.approx(8901.0)


def test_plot_when_clocks_are_chosen_then_only_they_are_drawn(bsp):
    assert sizes(bsp.plot(clocks=(1, 2)))["compute"] == 3.0
    assert sizes(bsp.plot(clocks=range(1)))["outside"] == 0.0


def test_plot_when_drawn_then_the_title_tells_staleness_and_pace(bsp):
    chart = result_of(*BSP, staleness=3).plot()
    assert chart.get_title(loc="left") == "2 workers, SSP, staleness 3: 2 clocks at 0.333 a second"


def test_plot_when_clocks_are_many_then_shares_sum_to_one():
    from ps2.run.gantt import ORDER, _bars, _time_fractions

    table = lane(0.0, *np.random.default_rng(1).exponential(size=(1000, 4)), outside_s=3.0)
    edges = np.linspace(0.0, table.began[-1], 101)
    shares = _time_fractions(_bars(table), edges)
    np.testing.assert_allclose(shares.sum(axis=0), 1.0)
    seconds = dict(zip(ORDER, (shares * np.diff(edges)).sum(axis=1), strict=True))
    inside = table[~table.outside]
    for kind in ("wait", "pull", "compute", "push"):
        assert seconds[kind] == pytest.approx(inside[kind].sum())
    assert seconds["outside"] == pytest.approx(3.0)


def test_plot_when_clocks_are_very_many_then_file_stays_small(tmp_path):
    lanes = [lane(0.0, *np.random.default_rng(rank).exponential(size=(50_000, 4))) for rank in range(2)]
    result_of(*lanes).plot(tmp_path / "many.png")
    assert (tmp_path / "many.png").stat().st_size < 500_000


def test_plot_when_ranks_exceed_lanes_then_title_says_so():
    axes = result_of(*[lane(0.0, FAST) for _ in range(50)]).plot()
    assert len(axes.get_yticks()) == 32
    assert axes.get_title(loc="left").endswith("(the 16 busiest ranks and others)")


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_plot_when_a_path_is_given_then_the_suffix_decides(bsp, tmp_path, suffix, magic):
    bsp.plot(tmp_path / f"chart{suffix}")
    assert (tmp_path / f"chart{suffix}").read_bytes().startswith(magic)


def test_plot_when_notebook_shows_figure_then_has_image(bsp):
    assert bsp.plot()._repr_png_().startswith(b"\x89PNG")


def test_plot_when_drawn_then_leaves_pyplot_and_backend_alone(bsp, tmp_path):
    pickled = tmp_path / "result.pkl"
    pickled.write_bytes(pickle.dumps(bsp))
    code = (
        "import pickle, sys; result = pickle.load(open(sys.argv[1], 'rb')); assert 'matplotlib' not in sys.modules; "
        "result.plot(sys.argv[2]); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, pickled, tmp_path / "chart.png"], check=True, timeout=60)
    assert (tmp_path / "chart.png").exists()


def test_plot_when_nothing_is_there_then_it_says_so(bsp):
    with pytest.raises(ConfigError, match=r"nothing to draw in clocks \(7, 9\)"):
        bsp.plot(clocks=(7, 9))


@pytest.mark.parametrize("clocks", [5, "ab", (1, 2, 3), (None, "x")])
def test_plot_when_clocks_are_no_interval_then_it_says_so(bsp, clocks):
    with pytest.raises(ConfigError, match="clocks: expected two numbers"):
        bsp.plot(clocks=clocks)


def test_plot_when_matplotlib_is_missing_then_says_to_install(bsp, monkeypatch):
    monkeypatch.delitem(sys.modules, "ps2.run.gantt", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"matplotlib is not installed; pip install 'ps2-spark\[plot\]'"):
        bsp.plot()


# -- rotations


ROTATED = tuple(
    to_table(
        ClockTimes(clock, 2.0 * clock, 1.5, 0.0, 0.5, 0.0, block=(clock + rank) % 3 - (clock == 4), left=0.25 * rank)
        for clock in range(5)
    )
    for rank in range(2)
)


def test_summary_when_rotation_left_work_then_names_ranks(capsys):
    result_of(*ROTATED, staleness=1).summary()
    assert "left for the next rotation: 12% of the work, mostly by rank 1: 25%" in capsys.readouterr().out


def test_summary_when_there_was_no_rotation_then_none_was_left(bsp, capsys):
    bsp.summary()
    assert "left" not in capsys.readouterr().out


def test_plot_when_of_rotation_then_clocks_show_blocks():
    axes = result_of(*ROTATED, staleness=1).plot()
    assert {text.get_text() for text in axes.texts} >= {"0, 0", "0, 1", "1, 2", "2, 0"}
    assert "block" in axes.get_xlabel()
