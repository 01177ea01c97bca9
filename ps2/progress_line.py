"""A line that shows the progress of work, in a terminal or a notebook."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# Called with the number of steps done, and texts, the most important one first.
ShowProgress = Callable[[int, Sequence[str]], None]

# Minimum width of a terminal for the bar; in a narrower one, the words take its place.
WIDTH_WITH_BAR = 110
# Characters of the bar, and of the time that has passed.
BAR, CLOCK = 20, 7
# A notebook gets a message for each change.
NOTEBOOK_INTERVAL_S = 0.2


@contextmanager
def progress_line(name: str, steps: int | None, first_words: str) -> Iterator[ShowProgress | None]:
    """Show a line until the block ends; yield the function that changes it, or None if nobody would see the line.

    Args:
        steps: the maximum number of steps; None: unknown.
        first_words: the words until the first change.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_jupyter:
        # Rich's own display would ask for ipywidgets, with a warning.
        with _in_notebook(name, steps, first_words) as show:
            yield show
    elif console.is_terminal:
        with _in_terminal(console, name, steps, first_words) as show:
            yield show
    else:
        yield None


def join_fitting(parts: Sequence[str], width: int) -> str:
    """Join the parts that fit the width, at least the first one."""
    text = parts[0]
    for part in parts[1:]:
        if len(text) + len(part) + 2 > width:
            break
        text += f", {part}"
    return text


@contextmanager
def _in_terminal(console: Console, name: str, steps: int | None, first_words: str) -> Iterator[ShowProgress]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    is_wide = console.width >= WIDTH_WITH_BAR
    before = [TextColumn("{task.description}"), BarColumn(bar_width=BAR)] if is_wide else []
    after = [TimeElapsedColumn()] if is_wide else []
    width = console.width - (len(name) + BAR + CLOCK + 3 if is_wide else 0)
    columns = *before, TextColumn("{task.fields[words]}", markup=False), *after
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(name, total=steps, words=first_words if is_wide else f"{name}: {first_words}")

        def show(done: int, words: Sequence[str]) -> None:
            shown.update(task, completed=done, words=join_fitting(words, width))

        yield show


@contextmanager
def _in_notebook(name: str, steps: int | None, first_words: str) -> Iterator[ShowProgress]:
    from IPython import display as ipython_display

    display: Any = ipython_display.display  # it has no types
    shown_s = time.monotonic()
    line = display(_notebook_line(name, 0, steps, [first_words]), raw=True, display_id=True)

    def show(done: int, words: Sequence[str]) -> None:
        nonlocal shown_s
        now_s = time.monotonic()
        if now_s - shown_s >= NOTEBOOK_INTERVAL_S:
            shown_s = now_s
            line.update(_notebook_line(name, done, steps, words), raw=True)

    try:
        yield show
    finally:
        line.update({"text/plain": "", "text/html": ""}, raw=True)


def _notebook_line(name: str, done: int, steps: int | None, parts: Sequence[str]) -> dict[str, str]:
    """Return the line in the forms that a notebook chooses from. It sets no colours, for light and dark pages."""
    words = f"{name}: {', '.join(parts)}"
    bar = "" if steps is None else f'<progress value="{done}" max="{steps}"></progress> '
    return {"text/plain": words, "text/html": f"{bar}{escape(words)}"}
