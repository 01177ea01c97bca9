"""The HTML of a training in a notebook: a table, and a plot where matplotlib is installed."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from importlib.util import find_spec

from ps2.algorithms.training.by_step import cells, spaced, titles
from ps2.algorithms.training.record import TrainingHistory


def to_html(history: TrainingHistory) -> str:
    """Return the history of a training as HTML, without computing anything."""
    step = history.words.step
    taken_s = sum(history.seconds)
    pace = f", {1e3 * taken_s / history.steps:.3g} ms {history.words.a_step}" if history.steps else ""
    said = f"{history.steps:,} {plural(step)} in {taken_s:.1f} s{pace}: {history.reason}"
    return f"<div><p>{escape(said)}</p>{_table(history)}{_picture(history)}</div>"


def plural(noun: str) -> str:
    """Return the plural of a noun."""
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def _table(history: TrainingHistory) -> str:
    rows = [_row(values, "td") for values in spaced(cells(history))]
    return f"<table>{_row(titles(history), 'th')}{''.join(rows)}</table>" if rows else ""


def _row(values: list[str], tag: str) -> str:
    opening = f'<{tag} style="text-align: right">'
    return f"<tr>{''.join(f'{opening}{escape(value)}</{tag}>' for value in values)}</tr>"


def _picture(history: TrainingHistory) -> str:
    if not history.steps or find_spec("matplotlib") is None:
        return ""
    from ps2.algorithms.estimators.pictures import draw_losses

    return f'<img src="data:image/png;base64,{b64encode(draw_losses(history)._repr_png_()).decode()}">'
