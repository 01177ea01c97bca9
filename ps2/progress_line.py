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

# The minimum width of a terminal for the bar. In a narrower terminal, only the words are shown.
WIDTH_WITH_BAR = 110
# The widths of the bar, and of the elapsed time.
BAR, CLOCK = 20, 7
# The minimum time between two changes in a notebook, as each change is a message.
NOTEBOOK_INTERVAL_S = 0.2


@contextmanager
def progress_line(name: str, steps: int | None, first_words: str) -> Iterator[ShowProgress | None]:
    """Show a line in the with-block; yield the function that changes the line. Outside of terminals, yield None.

    ``steps`` is the maximum number of steps, None if unknown; ``first_words`` are shown until the first change.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_jupyter:
        # Rich's own display would need ipywidgets.
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
    bar = [TextColumn("{task.description}"), BarColumn(bar_width=BAR)] if is_wide else []
    clock = [TimeElapsedColumn()] if is_wide else []
    width = console.width - (len(name) + BAR + CLOCK + 3 if is_wide else 0)
    columns = *bar, TextColumn("{task.fields[words]}", markup=False), *clock
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(name, total=steps, words=first_words if is_wide else f"{name}: {first_words}")

        def show(step: int, words: Sequence[str]) -> None:
            shown.update(task, completed=step, words=join_fitting(words, width))

        yield show


@contextmanager
def _in_notebook(name: str, steps: int | None, first_words: str) -> Iterator[ShowProgress]:
    from IPython import display as ipython_display

    display: Any = ipython_display.display  # it has no types
    shown_s = time.monotonic()
    line = display(_notebook_line(name, 0, steps, [first_words]), raw=True, display_id=True)

    def show(step: int, words: Sequence[str]) -> None:
        nonlocal shown_s
        now_s = time.monotonic()
        if now_s - shown_s >= NOTEBOOK_INTERVAL_S:
            shown_s = now_s
            line.update(_notebook_line(name, step, steps, words), raw=True)

    try:
        yield show
    finally:
        line.update({"text/plain": "", "text/html": ""}, raw=True)


def _notebook_line(name: str, step: int, steps: int | None, parts: Sequence[str]) -> dict[str, str]:
    """Return the line in the formats of a notebook, without colours, which depend on the page's theme."""
    words = f"{name}: {', '.join(parts)}"
    bar = "" if steps is None else f'<progress value="{step}" max="{steps}"></progress> '
    return {"text/plain": words, "text/html": f"{bar}{escape(words)}"}
