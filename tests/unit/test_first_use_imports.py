"""What a new process imports before it has sent a few keys, and before it fits a linear model."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib import import_module

import pytest

from ps2.algorithms.public_names import PUBLIC_NAMES

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


# What a linear model does not need: other families, and modules of scipy that take longer than most fits.
OTHERS = ("ps2.algorithms.trees", "ps2.algorithms.deep", "ps2.algorithms.online", "scipy.linalg", "scipy.optimize")
FIT_SCRIPT = f"""
import sys
import scipy.sparse  # which needs some of them in older versions
loaded = set(sys.modules)
from ps2.algorithms.classification import LogisticRegression
from ps2.algorithms.regression import LinearRegression
print(*{{*{OTHERS}}} & set(sys.modules) - loaded)
"""

# What tasks unpickle of three families. pyspark.ml imports pandas.
WORKER_SCRIPT = """
import sys
import ps2.algorithms.linear.trainer, ps2.algorithms.trees.local_worker, ps2.algorithms.embeddings.sentence_frame
print(*{"pandas", "pyspark.ml"} & set(sys.modules))
"""


def test_client_when_adding_few_keys_then_imports_nothing_heavy():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.stderr) == ("", "")


def test_command_when_asked_for_help_then_imports_nothing_heavy():
    script = "import ps2.cli.main, sys; print(*{'numpy', 'numba', 'fsspec', 'google.protobuf'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.stderr) == ("", "")


def test_linear_model_when_imported_then_no_other_family_is():
    ran = subprocess.run([sys.executable, "-c", FIT_SCRIPT], capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.stderr) == ("", "")


def test_worker_programs_when_imported_then_pandas_is_not():
    ran = subprocess.run([sys.executable, "-c", WORKER_SCRIPT], capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.stderr) == ("", "")


@pytest.mark.parametrize("module", sorted(filter(None, PUBLIC_NAMES)))
def test_lazy_class_when_pickled_then_same_and_named(module):
    public = import_module(f"ps2.algorithms.{module}")
    for home, names in PUBLIC_NAMES[module].items():
        for name in names:
            cls = getattr(public, name)
            assert pickle.loads(pickle.dumps(cls)) is cls
            assert name in dir(public)
            if home.startswith(("clusters", "trees")):  # as in files of models that were saved before
                assert cls.__module__ == public.__name__


def test_lazy_module_when_name_is_unknown_then_error():
    with pytest.raises(ImportError, match="GBTClassifer"):
        exec("from ps2.algorithms.classification import GBTClassifer")
