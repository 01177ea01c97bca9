"""The notebooks of examples/ run as they stand, one after the other in one kernel; outputs are of a run, or none."""

from __future__ import annotations

import json

import pytest
from nbformat import read

from tests.notebooks import NOTEBOOKS, keep_outputs, kernel, kinds


@pytest.fixture(scope="module")
def run():
    """``run(notebook)``: run it in the kernel that all share; return its cells, with outputs."""
    with kernel() as run_in_kernel:
        yield run_in_kernel


def code_of(cells):
    return [cell for cell in cells if cell["cell_type"] == "code"]


def has_outputs(cells):
    return any(cell["outputs"] for cell in code_of(cells))


# `make test` runs one, `make nightly` all.
RUN = [pytest.param(path, marks=[pytest.mark.nightly] * bool(number)) for number, path in enumerate(NOTEBOOKS)]


@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_notebook_when_run_then_kept_outputs_are_of_its_kinds(run, path):
    kept, cells = (read(path, as_version=4) for _ in range(2))
    cells = run(cells)
    texts = [str(output.get("text", output.get("data"))) for cell in code_of(cells) for output in cell["outputs"]]
    assert not [text for text in texts if "ipywidgets" in text or "Warning" in text]
    assert texts
    keep_outputs(cells)
    if has_outputs(kept["cells"]):
        assert [kinds(cell) for cell in code_of(cells)] == [kinds(cell) for cell in code_of(kept["cells"])]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_when_kept_then_outputs_are_of_its_cells(path):
    cells = code_of(json.loads(path.read_text())["cells"])
    counts = list(range(1, len(cells) + 1)) if has_outputs(cells) else [None] * len(cells)
    assert [cell["execution_count"] for cell in cells] == counts, "run scripts/notebooks"
