"""A picture, and the colours of all pictures. Needs matplotlib, and no display."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

DPI = 120
# Okabe and Ito's palette, which colour-blind people can tell apart.
BLUE, SKY, GREEN, ORANGE, PINK, GREY = "#0072B2", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#999999"
GRID = "#DDDDDD"


class Chart(Figure):
    """A figure that a notebook shows, with no pyplot around."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
