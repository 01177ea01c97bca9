"""Where the daemon of Python workers finds pyspark."""

from __future__ import annotations

from ps2.run.daemon import prefer_installed

ARCHIVE = "pyspark/python/lib/pyspark.zip"


def test_archives_when_pip_installed_pyspark_then_are_last():
    own = ["/site/pyspark/jars/spark-core.jar", "/site/pyspark/python/lib/py4j-src.zip"]
    paths = ["", f"/site/{ARCHIVE}", *own, "/job/shipped.zip", "/python", "/site"]
    prefer_installed(paths)
    assert paths == ["", "/job/shipped.zip", "/python", "/site", f"/site/{ARCHIVE}", *own]


def test_archives_when_of_another_spark_then_stay_first():
    paths = ["", "/opt/spark/python/lib/pyspark.zip", f"/other/{ARCHIVE}", "/python", "/site"]
    before = paths.copy()
    prefer_installed(paths)
    assert paths == before
