"""Makes pages of notebooks: their text as Markdown, their code, and the outputs that they were kept with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx

# Longer than any fence within a cell.
FENCE = "`" * 8


class NotebookParser(MystParser):
    """Reads a notebook as the Markdown that says the same."""

    supported = ("ipynb",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        name = Path(document["source"]).name
        super().parse(markdown(json.loads(inputstring), name), document)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def markdown(book: dict[str, Any], name: str) -> str:
    """Return the Markdown of a notebook, with a link to its file below the first cell."""
    first, *cells = book["cells"]
    link = f"This page is a notebook: {{download}}`{name}`."
    return "\n\n".join(["".join(first["source"]), link, *map(cell_markdown, cells)])


def cell_markdown(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    return "\n\n".join([fenced("python", source), *map(output_markdown, cell["outputs"])])


def output_markdown(output: dict[str, Any]) -> str:
    """Return an output in the richest of its forms: a picture, HTML, or text."""
    data = {kind: "".join(text) for kind, text in output.get("data", {"text/plain": output.get("text", "")}).items()}
    if "image/png" in data:
        picture = f'<img alt="The plot that the cell draws" src="data:image/png;base64,{data["image/png"].strip()}">'
        return raw(f'<div class="cell-output">{picture}</div>')
    if "text/html" in data:
        return raw(f'<div class="cell-output">{data["text/html"]}</div>')
    return fenced("{code-block} none\n:class: cell-output", data["text/plain"].rstrip("\n"))


def raw(html: str) -> str:
    return fenced("{raw} html", html)


def fenced(info: str, text: str) -> str:
    return f"{FENCE}{info}\n{text}\n{FENCE}"
