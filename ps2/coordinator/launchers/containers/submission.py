"""The settings that the fleet's Spark application is submitted with. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ps2.errors import ConfigError

MASTER = "spark.master"
MIB = 1 << 20
DEFAULT_MEMORY_BYTES = 1 << 30
# Memory of a container in addition to the server's arrays: Java's heap, which only starts Python; and the processes:
# server, task, Spark's daemon of Python workers, and Java outside its heap.
HEAP_MIB = 512
PROCESSES_MIB = 700
# Settings of the training's application that name the cluster and how to connect to it.
COPIED = (
    "spark.archives",
    "spark.authenticate",
    "spark.driver.bindAddress",
    "spark.driver.host",
    "spark.executorEnv.",
    "spark.files",
    "spark.hadoop.",
    "spark.io.encryption.",
    "spark.kerberos.",
    "spark.kubernetes.",
    "spark.network.",
    "spark.pyspark.",
    "spark.ssl.",
    "spark.submit.pyFiles",
    "spark.yarn.",
)
# Exceptions: settings of that application alone.
ITS_OWN = ("spark.yarn.app.", "spark.yarn.tags", "spark.kubernetes.driver.pod.name")


@dataclass(frozen=True)
class Submission:
    """How the fleet's Spark application is submitted.

    Attributes:
        settings: Spark's settings; ``needed`` adds those of the fleet.
        arguments: the arguments of spark-submit.
        python: the interpreter of the containers; None: the interpreter of the environment.
        name: the name of the application.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    python: str | None = None
    name: str = "ps2 fleet"


def submission_for(training: Mapping[str, str], conf: Mapping[str, str], python: str | None) -> Submission:
    """Return how to submit a fleet to the cluster of a training's application, unless ``conf`` names another one.

    Args:
        training: settings of the training's application.
        conf: settings of the fleet's application, which take precedence.
        python: interpreter of the training's tasks.

    Raises:
        ConfigError: Spark's master has no containers.
    """
    copied = {
        name: value for name, value in training.items() if name.startswith(COPIED) and not name.startswith(ITS_OWN)
    }
    settings = copied | {MASTER: training.get(MASTER, "")} | dict(conf)
    master = settings[MASTER]
    if not master or (master.startswith("local") and not master.startswith("local-cluster")):
        raise ConfigError(
            f"launcher='spark': Spark at {master or 'no master'} hands out no containers; give a master of a cluster "
            "(yarn, k8s://..., spark://...), by the SparkSession or by PS2Conf(sparkConf={'spark.master': ...})"
        )
    return Submission(settings, python=python, name=f"ps2 fleet of {training.get('spark.app.name', 'an application')}")


def needed(settings: Mapping[str, str], servers: int, memory_bytes: int) -> dict[str, str]:
    """Return the settings that the fleet needs: one server per task, one task per executor, a fixed set of executors.

    Args:
        settings: the user's settings.
        memory_bytes: the memory that each server's arrays may take.
    """
    cores = settings.get("spark.executor.cores", "1")
    fixed = {
        "spark.executor.instances": str(servers),
        "spark.executor.cores": cores,
        "spark.task.cpus": cores,
        "spark.cores.max": str(servers * int(cores)),
        "spark.dynamicAllocation.enabled": "false",
        "spark.speculation": "false",
        # Servers may be lost any number of times: the next container is another attempt of the task.
        "spark.task.maxFailures": str(2**31 - 1),
        "spark.excludeOnFailure.enabled": "false",
    }
    defaults = {
        # Cluster managers give up an application whose executors fail too often.
        "spark.executor.maxNumFailures": str(100 * servers),
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "false",
        **_memory(settings.get(MASTER, ""), memory_bytes),
    }
    return fixed | {name: settings.get(name, value) for name, value in defaults.items()}


def _memory(master: str, memory_bytes: int) -> dict[str, str]:
    processes = PROCESSES_MIB + -(-memory_bytes // MIB)
    if master.startswith(("spark:", "local-cluster")):  # these managers count Java's heap only
        return {"spark.executor.memory": f"{HEAP_MIB + processes}m"}
    return {"spark.executor.memory": f"{HEAP_MIB}m", "spark.executor.memoryOverhead": f"{processes}m"}
