"""Containers run the Python of an archive that Spark ships."""

from __future__ import annotations

import sys
import tarfile

import pytest

from ps2 import DCV, PS2Conf, PS2Context

# The first test starts the cluster.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def test_fleet_when_python_comes_in_archive_then_servers_use_it(spark, processes, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPS2_TEST_ARCHIVE=came exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(python, "bin/python")
    settings = {
        "spark.archives": f"{tmp_path}/env.tar.gz#environment",
        "spark.pyspark.python": "./environment/bin/python",
    }
    with PS2Context.getOrCreate(
        spark, 1, launcher="spark", memoryLimit=64 << 20, conf=PS2Conf(sparkConf=settings)
    ) as ps:
        (server,) = processes("ps2.cli.main", f"--master {ps._coordinator.fleet.master_server.address}")
        assert server.environ()["PS2_TEST_ARCHIVE"] == "came"
        assert DCV.dense(10).sum() == 0
