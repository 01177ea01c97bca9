"""The site's pages of notebooks: text, code, and what cells printed and drew; and what of a run is kept in a file."""

from __future__ import annotations

import io
from base64 import b64decode, b64encode
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from PIL import Image

from tests.notebooks import keep_outputs

SPEC = spec_from_file_location("notebook_pages", Path(__file__).parents[2] / "docs" / "site" / "notebook_pages.py")
PAGES = module_from_spec(SPEC)
SPEC.loader.exec_module(PAGES)


def png(colours):
    image, written = Image.new("RGB", (colours, 1)), io.BytesIO()
    image.putdata([(number % 256, number // 256, 7) for number in range(colours)])
    image.save(written, "png")
    return b64encode(written.getvalue()).decode()


def code(*outputs):
    return {"cell_type": "code", "source": ["print(1)"], "outputs": list(outputs), "metadata": {"x": 1}}


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def result(**data):
    data = {kind.replace("_", "/"): value for kind, value in data.items()}
    return {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": 9}


def test_page_when_cells_have_outputs_then_each_is_shown():
    first = {"cell_type": "markdown", "source": ["# Title"]}
    cells = [first, code(stream("1\n"), result(text_html="<b>bold</b>", text_plain="bold"), result(image_png="QUJD"))]
    page = PAGES.markdown({"cells": cells}, "a.ipynb")
    assert page.startswith("# Title\n\nThis page is a notebook")
    assert "{download}`a.ipynb`" in page
    assert "python\nprint(1)\n" in page
    assert "{code-block} none\n:class: cell-output\n1\n" in page
    assert '<div class="cell-output"><b>bold</b></div>' in page
    assert 'src="data:image/png;base64,QUJD"' in page


def test_outputs_when_kept_then_are_what_a_reader_needs():
    cell = code(
        stream("WARN Spark", "stderr"),
        result(text_plain="", text_html=""),  # a line of progress, at its end
        stream("saved in "),
        stream("/tmp/tmpabc123/model"),
        result(text_plain="ps", text_html="<a href='http://127.0.0.1:4040/?token=s3cret-s3cret'>page</a>"),
        result(image_png=png(1000), text_plain="<PlotAxes>"),
    )
    keep_outputs([cell])
    saved, shown, plot = cell["outputs"]
    assert (cell["metadata"], cell["execution_count"], plot["execution_count"]) == ({}, 1, 1)
    assert saved["text"] == "saved in /tmp/folder/model"
    assert shown["data"]["text/html"] == "<a href='http://127.0.0.1:4040/?token=TOKEN'>page</a>"
    assert list(plot["data"]) == ["image/png"]
    assert len(Image.open(io.BytesIO(b64decode(plot["data"]["image/png"]))).getcolors()) <= 64
