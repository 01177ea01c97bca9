"""The fleet's application on YARN, through the client that comes with Spark."""

from __future__ import annotations

from typing import Any


class YarnApplication:
    """One application, found by its tag. Thread-safe."""

    def __init__(self, jvm: Any, conf: Any, tag: str) -> None:
        """Args:
        jvm: py4j's view of Java's packages.
        conf: the application's SparkConf, as a Java object.
        tag: that no other application has.
        """
        self._java = jvm
        self._tag = tag
        self._client = jvm.org.apache.hadoop.yarn.client.api.YarnClient.createYarnClient()
        hadoop = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(conf)
        self._client.init(jvm.org.apache.hadoop.yarn.conf.YarnConfiguration(hadoop))
        self._client.start()

    def status_text(self) -> str:
        """Return state, queue, containers and YARN's diagnostics; "" before the application is submitted."""
        report = self._report()
        if report is None:
            return ""
        usage = report.getApplicationResourceUsageReport()
        containers = usage.getNumUsedContainers()
        text = (
            f"{report.getApplicationId()} is {report.getYarnApplicationState()} in queue {report.getQueue()}, with "
            f"{containers} container{'' if containers == 1 else 's'} ({usage.getUsedResources()}), its master's too"
        )
        said = (report.getDiagnostics() or "").strip().splitlines()
        return f"{text}; YARN says: {' '.join(said)}" if said else text

    def kill(self) -> None:
        """End the application, if it was submitted."""
        report = self._report()
        if report is not None:
            self._client.killApplication(report.getApplicationId())

    def _report(self) -> Any:
        wanted = self._java.org.apache.hadoop.yarn.api.protocolrecords.GetApplicationsRequest.newInstance()
        tags = self._java.java.util.HashSet()
        tags.add(self._tag)
        wanted.setApplicationTags(tags)
        found = self._client.getApplications(wanted)
        return found[0] if len(found) else None
