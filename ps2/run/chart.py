"""The figure and the colours of all charts. Needs matplotlib, and no display."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

DPI = 120
# Okabe and Ito's palette, for colour-blind readers.
BLUE, SKY, GREEN, ORANGE, PINK, GREY = "#0072B2", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#999999"
GRID = "#DDDDDD"


class Chart(Figure):
    """A figure that notebooks show, without pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
