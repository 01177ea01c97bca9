"""What the fleet's Spark application is submitted with."""

from __future__ import annotations

from pathlib import Path

import pytest

from ps2.coordinator.launchers.containers.hosting import container_name
from ps2.coordinator.launchers.containers.submission import required_settings, submission_for
from ps2.errors import ConfigError

TRAINING = {
    "spark.master": "yarn",
    "spark.app.name": "clicks",
    "spark.app.id": "application_1",
    "spark.executor.instances": "40",
    "spark.executor.memory": "20g",
    "spark.dynamicAllocation.enabled": "true",
    "spark.yarn.queue": "ads",
    "spark.yarn.app.id": "application_1",
    "spark.hadoop.fs.defaultFS": "hdfs://nn:8020",
    "spark.driver.host": "edge1",
}


def test_beside_when_training_has_cluster_then_fleet_shares_it():
    assert dict(submission_for(TRAINING, {}, "python3").settings) == {
        "spark.master": "yarn",
        "spark.yarn.queue": "ads",
        "spark.hadoop.fs.defaultFS": "hdfs://nn:8020",
        "spark.driver.host": "edge1",
    }


def test_beside_when_conf_says_otherwise_then_it_counts():
    settings = submission_for(TRAINING, {"spark.yarn.queue": "servers", "spark.executor.cores": "4"}, None).settings
    assert (settings["spark.yarn.queue"], settings["spark.executor.cores"]) == ("servers", "4")


@pytest.mark.parametrize("master", ["local", "local[2,4]", "local[*]"])
def test_beside_when_spark_has_no_containers_then_names_master(master):
    with pytest.raises(ConfigError, match="starts no containers") as error:
        submission_for({"spark.master": master}, {}, None)
    assert master in str(error.value)


def test_needed_when_containers_then_one_server_per_executor():
    result = required_settings({"spark.master": "yarn", "spark.executor.cores": "4"}, 8, 4 << 30)
    assert (result["spark.executor.instances"], result["spark.executor.cores"], result["spark.task.cpus"]) == (
        "8",
        "4",
        "4",
    )
    assert result["spark.dynamicAllocation.enabled"] == result["spark.speculation"] == "false"
    assert (result["spark.executor.memory"], result["spark.executor.memoryOverhead"]) == ("512m", "4796m")


def test_needed_when_standalone_then_heap_includes_servers():
    result = required_settings({"spark.master": "spark://h:7077"}, 2, 1)
    assert result["spark.executor.memory"] == "1213m"
    assert result["spark.cores.max"] == "2"


def test_needed_when_memory_was_given_then_it_stays():
    result = required_settings({"spark.executor.memoryOverhead": "9g"}, 2, 1 << 30)
    assert result["spark.executor.memoryOverhead"] == "9g"


def test_container_name_when_manager_says_so_then_is_that_name():
    assert container_name({"CONTAINER_ID": "container_e01_1_01_000002"}, Path("/")) == "container_e01_1_01_000002"
    assert container_name({}, Path("/opt/spark/work/app-20260101-0000/3")) == "app-20260101-0000/3"
