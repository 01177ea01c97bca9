"""What a new process needs before it has sent a few keys."""

from __future__ import annotations

import subprocess
import sys

# numba imports the last one when a kernel is first called, which takes 0.3 s or more.
HEAVY = {"pyspark", "pandas", "pyarrow", "scipy.sparse", "numba.np.arraymath"}
SCRIPT = f"""
import sys
import numpy as np
from ps2 import DCV, PS2Context
from ps2.client.plans import Target, push_columns
from ps2.matrix.partition import MatrixSpec
from ps2.matrix.route import Route
from ps2.protocol.binary import request_parts
from ps2.protocol.messages import Request, RequestId
target = Target(1, MatrixSpec(9, 1), Route(1, (0, 9), ("server",)), (0,))
plan = push_columns(target, "scatter_add", np.ones(3), np.array([5, 1, 7]))
request_parts(Request(plan.operations, RequestId("driver", 0)))
print(*{HEAVY} & set(sys.modules))
"""


def test_client_when_adding_few_keys_then_imports_nothing_heavy():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.stderr) == ("", "")


def test_command_when_asked_for_help_then_imports_nothing_heavy():
    script = "import ps2.cli.main, sys; print(*{'numpy', 'numba', 'fsspec', 'google.protobuf'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.stderr) == ("", "")
