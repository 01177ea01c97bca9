"""``deploy/standalone``: its two scripts, on a cluster of a master and a worker."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest
from faults.sparks import workers_on

from tests.spark.standalone_app import DIM

pytestmark = pytest.mark.nightly
SCRIPTS = Path(__file__).parents[2] / "deploy" / "standalone"
BIN = Path(pyspark.__file__).parent / "bin"


@pytest.fixture(scope="module")
def master(spark):
    """``spark://127.0.0.1:port`` of a cluster with three cores and 3 GiB."""
    with workers_on("127.0.0.1", cores=3, memory_mb=3072) as address:
        yield address


def test_job_on_standalone_cluster_attaches_to_fleet(master, run_program, ps2_command, tmp_path):
    known = ["env", f"SPARK_MASTER={master}", f"PS2_COMMAND={ps2_command}", f"SPARK_SUBMIT={BIN / 'spark-submit'}"]
    known += [f"XDG_STATE_HOME={tmp_path}"]
    start = [*known, SCRIPTS / "start-fleet.sh", "--servers", "1", "--memory", "64m", "--host", "127.0.0.1"]
    submit = [*known, "FLEET=ads", SCRIPTS / "submit.sh"]
    job = ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m"]
    job += [Path(__file__).with_name("standalone_app.py"), 4]

    early = run_program(*submit, *job)
    assert (early.returncode, "no fleet named 'ads' was launched here" in early.stderr) == (4, True)
    started = run_program(*start, "--name", "ads", "--", "--conf", "spark.driver.host=127.0.0.1")
    assert started.returncode == 0, started.stderr
    try:
        taken = run_program(*start, "--name", "ads")
        finished = run_program(*submit, *job)
    finally:
        stopped = run_program(*known, ps2_command, "stop", "--name", "ads")
    assert stopped.returncode == 0, stopped.stderr
    assert (taken.returncode, "fleet 'ads'" in taken.stderr) == (1, True)
    assert finished.returncode == 0, finished.stderr
    assert f"{master}: 1 servers, sum {4 * DIM}" in finished.stdout
    unnamed = run_program("env", "-u", "SPARK_MASTER", SCRIPTS / "submit.sh", "job.py")
    assert unnamed.returncode != 0
    assert "the master of the cluster, such as spark://host:7077" in unnamed.stderr
