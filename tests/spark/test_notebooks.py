"""The notebooks of examples/ run as they stand, one after the other in one kernel, and are kept without outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbformat import from_dict, read

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.ipynb"))
# The session that the notebooks' own getOrCreate finds.
SESSION = """
from pyspark.sql import SparkSession
settings = {"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 2, "spark.sql.codegen.wholeStage": False}
SparkSession.builder.master("local[2,4]").config(map=settings).getOrCreate().sparkContext.setLogLevel("OFF")
"""
CELL_TIMEOUT_S = 120


def book_of(*sources):
    cells = [{"cell_type": "code", "id": f"c{n}", "source": source} for n, source in enumerate(sources)]
    cells = [{**cell, "metadata": {}, "outputs": [], "execution_count": None} for cell in cells]
    return from_dict({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture(scope="module")
def run():
    """``run(notebook)``: run it in the kernel that all share; return its cells, with outputs."""
    manager = KernelManager(kernel_name="python3", transport="ipc")

    def run_in_kernel(book):
        client = NotebookClient(book, km=manager, timeout=CELL_TIMEOUT_S)
        try:
            return client.execute().cells
        finally:
            client.kc.stop_channels()

    run_in_kernel(book_of(SESSION))
    yield run_in_kernel
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_when_run_then_no_cell_fails(run, path):
    cells = run(read(path, as_version=4))
    texts = [str(output.get("text", output.get("data"))) for cell in cells for output in cell.get("outputs", ())]
    assert texts
    assert not [text for text in texts if "ipywidgets" in text or "Warning" in text]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_when_kept_then_it_has_no_outputs(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert not [cell for cell in cells if cell["outputs"] or cell["execution_count"] is not None]
