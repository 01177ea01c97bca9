"""The code in docs/ml.md runs as it stands."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pytest

from ps2 import PS2Context

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "ml.md"


@pytest.fixture
def fleets():
    """Fleets that the code starts are stopped after it."""
    yield
    active = PS2Context.getActive()
    if active is not None:
        active.stop()


@pytest.mark.usefixtures("spark", "fleets")
def test_the_guide_when_its_code_is_run_then_the_model_loaded_is_the_one_trained():
    space = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL):
            exec(compile(block, str(GUIDE), "exec"), space)
    loaded = space["LogisticRegressionModel"].load(space["path"])
    np.testing.assert_array_equal(loaded.coefficients, space["model"].coefficients)
