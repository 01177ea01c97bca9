"""A real YARN, with nodes of its own, and a real HDFS, in one Java process of this machine, on loopback."""

from __future__ import annotations

import getpass
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyspark

NODES = 3
NODE_MIB = 3072
QUEUES = {"default": 80, "small": 20}
JARS = Path(pyspark.__file__).parent / "jars"
JAVA_OPTIONS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx1g", "-Djava.net.preferIPv4Stack=true"]
START_TIMEOUT_S = 60.0
POLL_S = 0.1
YARN = {
    # Capacity of queues is no setting of a file that mini clusters read.
    "yarn.resourcemanager.scheduler.class": "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity"
    ".CapacityScheduler",
    "yarn.scheduler.capacity.root.queues": ",".join(QUEUES),
    **{f"yarn.scheduler.capacity.root.{queue}.capacity": str(share) for queue, share in QUEUES.items()},
    **{f"yarn.scheduler.capacity.root.{queue}.maximum-capacity": "100" for queue in QUEUES},
    "yarn.scheduler.capacity.root.small.maximum-capacity": "20",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    "yarn.scheduler.minimum-allocation-mb": "64",
    "yarn.nodemanager.resource.memory-mb": str(NODE_MIB),
    "yarn.nodemanager.resource.cpu-vcores": "8",
    "yarn.nodemanager.vmem-check-enabled": "false",
    # The disk of a machine for tests may be nearly full.
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
}
# What clients need to know of a cluster.
TOLD = ("yarn.resourcemanager.address", "yarn.resourcemanager.scheduler.address")


@dataclass(frozen=True)
class MiniCluster:
    """A running cluster.

    Attributes:
        conf: folder with its core-site.xml and yarn-site.xml, as in ``HADOOP_CONF_DIR``.
        hdfs: hdfs://host:port.
        webhdfs: webhdfs://user@host:port, the same files over HTTP.
        logs: folder of the containers' logs.
    """

    conf: Path
    hdfs: str
    webhdfs: str
    logs: Path


@contextmanager
def running(folder: Path, jars: Path) -> Iterator[MiniCluster]:
    """Start a cluster in a folder; end it, and all its containers.

    Args:
        jars: what it needs beside Spark's (scripts/hadoop-jars).
    """
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    folders = [f"-D{name}={folder}" for name in ("user.dir", "test.build.data", "test.build.dir")]
    with open(folder / "cluster.log", "w") as log:
        port, process = launch_gateway(
            jarpath=str(next(JARS.glob("py4j-*.jar"))),
            classpath=os.pathsep.join([f"{jars}/*", f"{JARS}/*"]),
            javaopts=[*JAVA_OPTIONS, *folders],
            die_on_exit=True,
            return_proc=True,
            redirect_stdout=log,
            redirect_stderr=log,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        try:
            yield _started(gateway.jvm, folder)
        finally:
            _end(gateway, process)


def _started(jvm: Any, folder: Path) -> MiniCluster:
    apache = jvm.org.apache.hadoop
    files = apache.hdfs.MiniDFSCluster.Builder(apache.hdfs.HdfsConfiguration(), jvm.java.io.File(f"{folder}/hdfs"))
    hdfs = files.numDataNodes(1).build()
    conf = apache.yarn.conf.YarnConfiguration()
    for name, value in {**YARN, "fs.defaultFS": hdfs.getURI().toString(), "hadoop.tmp.dir": str(folder)}.items():
        conf.set(name, value)
    yarn = apache.yarn.server.MiniYARNCluster("cluster", NODES, 1, 1)
    yarn.init(conf)
    yarn.start()
    deadline_s = time.monotonic() + START_TIMEOUT_S
    # It binds to port 0, and tells a while later which one that was.
    while any(yarn.getConfig().get(name).endswith(":0") for name in TOLD):
        assert time.monotonic() < deadline_s, "the resource manager has no port"
        time.sleep(POLL_S)
    assert yarn.waitForNodeManagersToConnect(int(START_TIMEOUT_S * 1000))
    settings = folder / "conf"
    settings.mkdir()
    _write(settings / "core-site.xml", {"fs.defaultFS": hdfs.getURI().toString()})
    _write(settings / "yarn-site.xml", {name: yarn.getConfig().get(name) for name in TOLD})
    web = hdfs.getHttpUri(0).removeprefix("http://")
    return MiniCluster(settings, hdfs.getURI().toString(), f"webhdfs://{getpass.getuser()}@{web}", folder)


def _write(file: Path, settings: dict[str, str]) -> None:
    """Write settings as Hadoop reads them."""
    properties = [f"<name>{name}</name><value>{escape(value)}</value>" for name, value in settings.items()]
    lines = [f"<property>{text}</property>" for text in properties]
    file.write_text("\n".join(["<configuration>", *lines, "</configuration>"]) + "\n")


def _end(gateway: Any, process: subprocess.Popen[bytes]) -> None:
    gateway.shutdown()
    assert process.stdin is not None
    process.stdin.close()
    process.terminate()
    process.wait(30)
