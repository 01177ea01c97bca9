"""The code in docs/torch.md runs as it stands."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pytest

from ps2 import PS2Context

GUIDE = Path(__file__).parents[2] / "docs/torch.md"


@pytest.fixture(scope="module")
def space(spark):
    """The names of the guide's program, and what it printed."""
    names, message = {"__name__": "__main__"}, io.StringIO()
    with contextlib.redirect_stdout(message):
        for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL):
            exec(compile(block, GUIDE.name, "exec"), names)
    yield {**names, "said": message.getvalue()}
    PS2Context.getActive().stop()


def test_torch_guide_when_its_loop_is_run_then_loss_falls(space):
    assert float(space["said"].splitlines()[0]) < 0.6  # log(2) before the first step


def test_torch_guide_when_fitted_then_predictions_know_clicks(space):
    hashed, model = space["hashed"], space["model"]
    result = model.transform(hashed.limit(1000)).select("label", "prediction").collect()
    clicked, other = (np.mean([row.prediction for row in result if row.label == label]) for label in (1, 0))
    assert clicked > other + 1
