"""Tests of ``ps2.torch``: ``make torch-test`` runs them where PyTorch is installed."""

from __future__ import annotations

import os

import pytest
import torch
from faults.sparks import ENVIRONMENT, sparking
from pyspark.cloudpickle import register_pickle_by_value

import ps2

os.environ.update(ENVIRONMENT)
os.environ.pop("SPARK_HOME", None)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def spark(request):
    """A session of two slots, four attempts a task; the module's own classes and functions go to tasks by value."""
    register_pickle_by_value(request.module)
    with sparking("local[2,4]", {"spark.sql.shuffle.partitions": "2"}) as session:
        yield session


@pytest.fixture(scope="module")
def spark_ps(spark):
    """A context with a fleet of two servers beside Spark."""
    with ps2.PS2Context.getOrCreate(spark, servers=2) as context:
        yield context
