"""The HTML of models and their trainings in a notebook: tables, and a plot where matplotlib is installed."""

from __future__ import annotations

import reprlib
from base64 import b64encode
from html import escape
from importlib.util import find_spec

from pyspark.ml.param import Params

from ps2.algorithms.training.record import TrainingHistory, cells, spaced, titles
from ps2.formats import short_time
from ps2.text_tables import Column, Table, named_values, to_html


def history_html(history: TrainingHistory) -> str:
    """Return the history of a training as HTML, without computing anything."""
    step = history.words.step
    total_s = sum(history.seconds)
    pace = f", {short_time(total_s / history.steps)} {history.words.a_step}" if history.steps else ""
    sentence = f"{history.steps:,} {plural(step)} in {total_s:.1f} s{pace}: {history.reason}"
    return f"<div><p>{escape(sentence)}</p>{_table(history)}{_picture(history)}</div>"


def model_html(model: Params, history: TrainingHistory | None) -> str:
    """Return a model as HTML: its repr, the params that were set, and its training, without computing anything."""
    set_params = {param.name: reprlib.repr(model.getOrDefault(param)) for param in model.params if model.isSet(param)}
    trained = "" if history is None else history_html(history)
    return f"{to_html(repr(model), named_values(**set_params))}{trained}"


def plural(noun: str) -> str:
    """Return the plural of a noun."""
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def _table(history: TrainingHistory) -> str:
    columns = [Column(title, right=True) for title in titles(history)]
    rows = spaced(cells(history))
    return Table(columns, rows).html() if rows else ""


def _picture(history: TrainingHistory) -> str:
    if not history.steps or find_spec("matplotlib") is None:
        return ""
    from ps2.algorithms.frame.plotting import draw_losses
    from ps2.plot_style import png_of

    return f'<img src="data:image/png;base64,{b64encode(png_of(draw_losses(history))).decode()}">'
