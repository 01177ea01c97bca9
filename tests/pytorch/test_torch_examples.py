"""The example with PyTorch runs as its first lines say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_torch_clicks_when_run_then_both_ways_agree():
    command = [sys.executable, "examples/torch_clicks.py", "--rows", "4096", "--days", "1", "--ids", "2000"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    result = re.findall(r"(?:servers|in process): +test AUC (\S+), loss (\S+),", finished.stdout)
    assert len(result) == 2, finished.stderr
    assert result[0] == result[1]
