"""A line that shows the progress of work, in a terminal or a notebook."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# Called with the number of finished steps, and texts to show, the most important text first.
ShowProgress = Callable[[int, Sequence[str]], None]

# The minimum width of a terminal for the bar. In a narrower terminal, only the texts are shown.
WIDTH_WITH_BAR = 110
# The widths of the bar and of the elapsed time, in characters.
BAR_WIDTH, CLOCK_WIDTH = 20, 7
# The minimum time between two changes in a notebook, as each change is a message.
NOTEBOOK_INTERVAL_S = 0.2

_line = threading.Lock()  # held while a line is shown in the terminal


@contextmanager
def progress_line(name: str, steps: int | None, first_text: str) -> Iterator[ShowProgress | None]:
    """Show a line in the with-block; yield the function that changes the line.

    Yield None outside of terminals, and while another thread shows its line in the terminal.
    ``steps`` is the maximum number of steps, None if unknown; ``first_text`` is shown until the first change.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_jupyter:
        # Rich's own display would need ipywidgets.
        with _in_notebook(name, steps, first_text) as show:
            yield show
    elif console.is_terminal and _line.acquire(blocking=False):
        try:
            with _in_terminal(console, name, steps, first_text) as show:
                yield show
        finally:
            _line.release()
    else:
        yield None


def join_fitting(texts: Sequence[str], width: int) -> str:
    """Join texts with commas while they fit the width; return at least the first text."""
    line = texts[0]
    for text in texts[1:]:
        if len(line) + len(text) + 2 > width:
            break
        line += f", {text}"
    return line


@contextmanager
def _in_terminal(console: Console, name: str, steps: int | None, first_text: str) -> Iterator[ShowProgress]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    is_wide = console.width >= WIDTH_WITH_BAR
    bar = [TextColumn("{task.description}"), BarColumn(bar_width=BAR_WIDTH)] if is_wide else []
    clock = [TimeElapsedColumn()] if is_wide else []
    width = console.width - (len(name) + BAR_WIDTH + CLOCK_WIDTH + 3 if is_wide else 0)
    columns = *bar, TextColumn("{task.fields[text]}", markup=False), *clock
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name, total=steps, text=first_text if is_wide else f"{name}: {first_text}")

        def show(step: int, texts: Sequence[str]) -> None:
            progress.update(task, completed=step, text=join_fitting(texts, width))

        yield show


@contextmanager
def _in_notebook(name: str, steps: int | None, first_text: str) -> Iterator[ShowProgress]:
    from IPython import display as ipython_display

    display: Any = ipython_display.display  # IPython has no type annotations
    shown_s = time.monotonic()
    line = display(_notebook_line(name, 0, steps, [first_text]), raw=True, display_id=True)

    def show(step: int, texts: Sequence[str]) -> None:
        nonlocal shown_s
        now_s = time.monotonic()
        if now_s - shown_s >= NOTEBOOK_INTERVAL_S:
            shown_s = now_s
            line.update(_notebook_line(name, step, steps, texts), raw=True)

    try:
        yield show
    finally:
        line.update({"text/plain": "", "text/html": ""}, raw=True)


def _notebook_line(name: str, step: int, steps: int | None, texts: Sequence[str]) -> dict[str, str]:
    """Return the line by MIME type. It has no colours, because they would depend on the notebook's theme."""
    line = f"{name}: {', '.join(texts)}"
    bar = "" if steps is None else f'<progress value="{step}" max="{steps}"></progress> '
    return {"text/plain": line, "text/html": f"{bar}{escape(line)}"}
