"""What cannot work on YARN is an error that says why, as soon as that is known."""

from __future__ import annotations

import re
import sys

import pytest

from ps2 import PS2Conf, PS2Context, __version__
from ps2.errors import LaunchError
from tests.yarn.conftest import REPO

MEMORY = 64 << 20
pytestmark = pytest.mark.nightly
# What Python imports first: it makes a container's Python another one.
OTHER_MINOR = """
import collections, sys
sys.version_info = collections.namedtuple("V", "major minor micro releaselevel serial")(3, 99, 0, "final", 0)
"""
WITHOUT_PS2 = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name == "ps2":
            raise ModuleNotFoundError("No module named 'ps2'")

sys.meta_path.insert(0, Without())
"""


def refused(spark, servers=1, memory=MEMORY, timeout_s=200, **conf):
    """Return why a fleet does not start; that is known long before the timeout."""
    # Ours would be the first to miss ps2, and says less.
    plain = {"spark.python.daemon.module": "pyspark.daemon"}
    settings = plain | {name.replace("_", "."): value for name, value in conf.items()}
    with pytest.raises(LaunchError) as error:
        PS2Context.getOrCreate(
            spark,
            servers,
            launcher="spark",
            memoryLimit=memory,
            conf=PS2Conf(sparkConf=settings, startTimeoutS=timeout_s),
        )
    return str(error.value)


def test_get_or_create_when_queue_is_unknown_then_names_it(spark):
    assert "unknown queue: nope" in refused(spark, spark_yarn_queue="nope")


def test_get_or_create_when_server_is_too_large_then_names_both(spark):
    why = refused(spark, memory=100 << 30)
    assert "(103100 MB)" in why
    assert re.search(r"above the max threshold \(\d+ MB\)", why)


@pytest.mark.timeout(600)
def test_get_or_create_when_queue_is_full_then_says_granted(spark):
    # Nothing but time says that no more containers will come; on a busy machine the first ones come late.
    for timeout_s in (20, 60, 120):
        why = refused(spark, servers=9, timeout_s=timeout_s)
        granted = re.search(r"is RUNNING in queue root.default, with \d+ containers", why)
        if granted:
            break
    assert "of 9 requested containers have reported" in why
    assert granted, why


def test_get_or_create_when_nodes_lack_python_then_names_it(spark):
    assert 'Cannot run program "/no/such/python"' in refused(spark, spark_pyspark_python="/no/such/python")


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (OTHER_MINOR, ["PYTHON_VERSION_MISMATCH", "3.99", "{}.{}".format(*sys.version_info)]),
        (WITHOUT_PS2, ["No module named 'ps2'"]),
    ],
)
def test_get_or_create_when_python_differs_then_says_which(spark, tmp_path, first, words):
    (tmp_path / "sitecustomize.py").write_text(first)
    why = refused(spark, spark_executorEnv_PYTHONPATH=f"{tmp_path}:{REPO}")
    assert not [word for word in words if word not in why], why


def test_get_or_create_when_ps2_version_differs_then_names_both(spark, tmp_path):
    other = tmp_path / "ps2"
    other.mkdir()
    for part in (REPO / "ps2").iterdir():
        (other / part.name).symlink_to(part)
    (other / "version.py").unlink()
    (other / "version.py").write_text((REPO / "ps2" / "version.py").read_text().replace(__version__, "99.0"))
    why = refused(spark, spark_executorEnv_PYTHONPATH=str(tmp_path))
    assert "has ps2 99.0; expected " + __version__ in why
