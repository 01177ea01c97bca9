"""Ctrl-C and other signals at any moment of a driver's calls: what comes later works, and the program ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.programs import running

APP = Path(__file__).parents[1] / "faults" / "interrupted_app.py"
END_S = 150.0


@pytest.fixture
def over(tmp_path, until):
    """``over(work, interrupts)``: the lines that the interrupted program prints, which ends by itself."""

    def run(work, interrupts):
        with running(tmp_path / "output", APP, work, interrupts) as program:
            until(lambda: program.process.poll() is not None, f"{work} ended", END_S)
            assert program.process.returncode == 0, program.output.read_text()
            return program.lines()

    return run


def test_calls_when_interrupted_anywhere_then_each_counts_once(over):
    message, *end = over("calls", 300)
    assert message.startswith("sums")
    assert end == ["done"]


@pytest.mark.nightly
def test_contexts_when_interrupted_anywhere_then_the_next_works(over):
    assert over("contexts", 4)[-1] == "done"
