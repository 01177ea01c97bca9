"""How a training went: rows by step, plots, and what a notebook shows; plots of topics."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from ps2.algorithms.frame.plotting import draw_importances, draw_losses
from ps2.algorithms.frame.summaries import history_html
from ps2.algorithms.topics.model import LDATopics
from ps2.algorithms.training.record import Placement, TrainingHistory, Words, best_step, by_step, cells, thin, titles
from ps2.cli.training.printed import print_pace
from ps2.errors import ConfigError


def history(objective=(0.7, 0.5, 0.4, 0.3), validation=(0.6, 0.45, 0.5), steps=3, **known):
    seconds = [0.1] * steps
    return TrainingHistory([*objective], seconds, [*validation], steps, rows=9, bytes=8, reason="a < b", **known)


OF_TREES = history(metrics={"leaves": (4, 5, 6), "of features": (1.0, 2.0)}, words=Words("tree", "loss"))


def test_by_step_when_initial_loss_is_known_then_uses_loss_after():
    assert [step.objective for step in by_step(history())] == [0.5, 0.4, 0.3]


def test_cells_when_a_metric_is_large_then_has_all_digits():
    result = history(metrics={"ratings_per_s": (1649130.4, 12.5, 0.25)})
    assert [row[3] for row in cells(result)] == ["1,649,130", "12.5", "0.25"]


@pytest.mark.parametrize(
    ("via", "servers", "where"),
    [("local", 2, " in one worker"), ("servers", 1, " on 1 server"), ("rows", 3, " on 3 servers")],
)
def test_pace_when_printed_then_says_where_it_ran(via, servers, where, capsys):
    print_pace(history(placement=Placement(1, 1, via, "")), "trees", SimpleNamespace(fleet=None, servers=servers))
    assert capsys.readouterr().out.startswith(f"3 trees{where} in 0.3 s, 100.0 ms")


def test_by_step_when_losses_precede_steps_then_each_has_its_own():
    assert [step.objective for step in by_step(history(objective=(0.7, 0.5, 0.4)))] == [0.7, 0.5, 0.4]


def test_by_step_when_fewer_steps_were_validated_then_are_last():
    assert [step.validation for step in by_step(history(validation=(0.6, 0.5)))] == [None, 0.6, 0.5]


def test_cells_when_family_has_step_values_then_adds_column():
    assert titles(OF_TREES) == ["tree", "loss", "validation", "leaves", "ms"]
    assert cells(OF_TREES)[0] == ["1", "0.5000", "0.6000", "4", "100.0"]


def test_cells_when_no_rows_were_held_out_then_omits_column():
    assert titles(history(validation=())) == ["step", "objective", "ms"]
    assert cells(history(validation=()))[2] == ["3", "0.3000", "100.0"]


def test_spaced_when_there_are_many_then_keeps_first_and_last():
    assert thin(range(100)) == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]
    assert (thin(range(3)), thin([])) == ([0, 1, 2], [])


def test_best_step_when_rows_were_held_out_then_has_least_loss():
    assert (best_step(OF_TREES), best_step(history(validation=()))) == (2, None)


def lines_of(chart):
    return {line.get_label(): line.get_xydata().tolist() for line in chart.get_lines()}


def test_losses_when_drawn_then_are_at_step_that_preceded_them():
    lines = lines_of(draw_losses(OF_TREES))
    assert lines["training"] == [[0, 0.7], [1, 0.5], [2, 0.4], [3, 0.3]]
    assert lines["held out"] == [[1, 0.6], [2, 0.45], [3, 0.5]]
    assert [x for x, _ in lines["minimum: tree 2"]] == [2, 2]


def test_losses_when_no_step_was_taken_then_config_error():
    with pytest.raises(ConfigError, match="the training took no step"):
        draw_losses(history(objective=(0.7,), validation=(), steps=0))


def labels_of(chart):
    return [label.get_text() for label in chart.get_yticklabels()]


def test_importances_when_drawn_then_sorted_without_zeros():
    assert labels_of(draw_importances(np.array([0.2, 0.0, 0.5, 0.3]), [], 20)) == [
        "feature 2",
        "feature 3",
        "feature 0",
    ]


def test_importances_when_features_have_names_then_long_are_cut():
    chart = draw_importances(np.array([0.6, 0.4]), ["age", "x" * 100], 20)
    assert labels_of(chart) == ["age", "x" * 37 + "..."]


def test_importances_when_too_many_then_title_says_so():
    chart = draw_importances(np.full(50, 0.02), [], 3)
    assert labels_of(chart) == ["feature 0", "feature 1", "feature 2"]
    assert chart.get_title(loc="left") == "trees split by 50 of 50 features; the first 3"


def test_importances_when_no_splits_then_config_error():
    with pytest.raises(ConfigError, match="trees split by no feature"):
        draw_importances(np.zeros(3), [], 20)


def test_html_when_shown_in_notebook_then_has_table_and_picture():
    shown = history_html(OF_TREES)
    assert "3 trees in 0.3 s, 100 ms a tree: a &lt; b" in shown
    assert ("<th" in shown, ">0.4500</td>" in shown, '<img src="data:image/png;base64,' in shown) == (True, True, True)


def test_html_when_matplotlib_is_missing_then_it_is_the_table(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert ("<td" in history_html(OF_TREES), "<img" in history_html(OF_TREES)) == (True, False)


def test_html_when_no_step_was_taken_then_it_says_so():
    assert history_html(history(objective=(0.7,), validation=(), steps=0)) == (
        "<div><p>0 steps in 0.0 s: a &lt; b</p></div>"
    )


def test_losses_when_axes_are_given_then_drawn_there_by_pair():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert draw_losses(OF_TREES, left) is left
    assert (len(left.get_lines()), len(right.get_lines())) == (3, 0)


def test_losses_when_ax_is_a_figure_then_config_error_names_both():
    with pytest.raises(ConfigError, match=r"ax: expected Axes of matplotlib, such as plt.gca\(\), got Figure"):
        draw_losses(OF_TREES, Figure())


TOPICS = LDATopics(np.array([[9, 0], [1, 5], [0, 5]]), np.full(2, 0.1), 0.01)


def panels_of(axes):
    return [(panel.get_title("left"), [text.get_text() for text in panel.texts]) for panel in axes.child_axes]


def test_topics_when_plotted_then_panels_have_likely_words_first(tmp_path):
    axes = TOPICS.plotTopics(tmp_path / "topics.svg", 2, ["oak", "cow", "hen"])
    assert panels_of(axes) == [
        ("topic 0 (50% of tokens)", ["oak", "cow"]),
        ("topic 1 (50% of tokens)", ["cow", "hen"]),
    ]
    assert (tmp_path / "topics.svg").stat().st_size > 1000


def test_topics_when_some_are_chosen_then_title_says_of_how_many():
    axes = TOPICS.plotTopics(topics=[1])
    assert panels_of(axes) == [("topic 1 (50% of tokens)", ["1", "2", "0"])]
    assert axes.get_title("left").startswith("1 of 2 topics over 3 words; the longest bar is 50.0%")


@pytest.mark.parametrize("given", [{"topics": [2]}, {"topics": []}, {"maxTermsPerTopic": 0}])
def test_topics_when_argument_is_out_of_range_then_config_error(given):
    with pytest.raises(ConfigError, match=rf"{next(iter(given))}: expected"):
        TOPICS.plotTopics(**given)
