"""The notebooks of examples/: how they run, and what of their outputs is kept in their files."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbformat import from_dict
from PIL import Image

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.ipynb"))
# The session that the notebooks' own getOrCreate finds.
SESSION = """
from pyspark.sql import SparkSession
settings = {"spark.ui.enabled": False, "spark.ui.showConsoleProgress": False, "spark.sql.shuffle.partitions": 2}
settings["spark.sql.codegen.wholeStage"] = False
SparkSession.builder.master("local[2,4]").config(map=settings).getOrCreate().sparkContext.setLogLevel("OFF")
"""
CELL_TIMEOUT_S = 120
# Colours of a kept plot: lines and letters stay smooth, and the file shrinks to a third.
COLOURS = 64
PICTURE = re.compile(r'(?<=src="data:image/png;base64,)[A-Za-z0-9+/=\n]+')
# What is of one run and one machine, and what stands for it.
OWN = ((re.compile(r"(?<=[?]token=)[\w-]+"), "TOKEN"), (re.compile(r"/tmp/tmp\w+"), "/tmp/folder"))


@contextlib.contextmanager
def kernel() -> Iterator[Callable[[Any], Any]]:
    """Start a kernel with a Spark session; yield a function that runs a notebook in it and returns its cells."""
    sockets = tempfile.TemporaryDirectory()  # by default they would lie in the current folder, for all kernels there
    manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets.name}/kernel")

    def run(book: Any) -> Any:
        client = NotebookClient(book, km=manager, timeout=CELL_TIMEOUT_S, record_timing=False)
        try:
            return client.execute().cells
        finally:
            client.kc.stop_channels()

    try:
        run(book_of(SESSION))
        yield run
    finally:
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
        sockets.cleanup()


def book_of(*sources: str) -> Any:
    """Return a notebook with these cells."""
    cells = [{"cell_type": "code", "id": f"c{n}", "source": source} for n, source in enumerate(sources)]
    cells = [{**cell, "metadata": {}, "outputs": [], "execution_count": None} for cell in cells]
    return from_dict({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def keep_outputs(cells: Any) -> None:
    """Leave what a reader needs of the outputs: no log, no progress, no token and no folder of the run."""
    for number, cell in enumerate(cell for cell in cells if cell["cell_type"] == "code"):
        cell["metadata"], cell["execution_count"] = {}, number + 1
        cell["outputs"] = _joined([_kept(output) for output in cell["outputs"] if _is_for_readers(output)])
        for output in cell["outputs"]:
            if output["output_type"] == "execute_result":
                output["execution_count"] = number + 1
        cell["outputs"] = [from_dict(output) for output in cell["outputs"]]


def kinds(cell: Any) -> list[tuple[str, ...]]:
    """Return the kinds of a cell's kept outputs, such as ``("text",)`` and ``("image/png",)``."""
    return [tuple(sorted(output.get("data", ("text",)))) for output in cell["outputs"]]


def _joined(outputs: list[Any]) -> list[Any]:
    """Join what was printed in a row: the kernel sends it in pieces of any size."""
    joined: list[Any] = []
    for output in outputs:
        if joined and "text" in output and "text" in joined[-1]:
            joined[-1] = {**output, "text": joined[-1]["text"] + output["text"]}
        else:
            joined.append(output)
    return joined


def _is_for_readers(output: Any) -> bool:
    """Return whether an output is neither of the log nor a progress line, which is empty in the end."""
    return output.get("name") != "stderr" and any(output.get("data", {"": "text"}).values())


def _kept(output: Any) -> Any:
    if "text" in output:
        return {**output, "text": _without_own("".join(output["text"]))}
    data = dict(output["data"])
    if "image/png" in data:
        # Its text is the name of a Python object.
        return {**output, "data": {"image/png": _smaller(data["image/png"])}, "metadata": {}}
    data = {kind: _without_own("".join(text)) for kind, text in data.items()}
    if "text/html" in data:
        data["text/html"] = PICTURE.sub(lambda found: _smaller(found[0]), data["text/html"])
    return {**output, "data": data, "metadata": {}}


def _without_own(text: str) -> str:
    for pattern, general in OWN:
        text = pattern.sub(general, text)
    return text


def _smaller(png: str) -> str:
    """Return a PNG in base64 with few colours."""
    kept = io.BytesIO()
    Image.open(io.BytesIO(b64decode(png))).convert("RGB").quantize(COLOURS).save(kept, "png", optimize=True)
    return b64encode(kept.getvalue()).decode()
