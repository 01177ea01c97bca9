"""The addresses at which the driver listens: by default those of Spark's own driver, and never an unusable wildcard."""

from __future__ import annotations

import pytest

from ps2.config import Binding
from ps2.coordinator import application
from ps2.coordinator.application import driver_binding, out_of_reach
from ps2.coordinator.conf import PS2Conf, driver_host_settings
from ps2.coordinator.settings import ports
from ps2.errors import ConfigError
from ps2.run.spark.classic import ClassicSpark

LOOPBACK = Binding("127.0.0.1", "127.0.0.1")


class Conf:
    def __init__(self, settings):
        self._settings = settings

    def getAll(self):
        return list(self._settings.items())

    def get(self, name, default=None):
        return self._settings.get(name, default)


class Context:
    """A SparkContext, as far as it says where it is."""

    def __init__(self, master, host=None, bind=None):
        self.master = master
        inputs = {"spark.driver.host": host, "spark.driver.bindAddress": bind}
        self._conf = Conf({name: value for name, value in inputs.items() if value is not None})

    def getConf(self):
        return self._conf


@pytest.mark.parametrize(
    ("fields", "context", "expected"),
    [
        ({}, None, LOOPBACK),
        ({}, Context("local[2]", "10.0.0.1"), LOOPBACK),
        ({}, Context("local-cluster[2,1,1024]", "10.0.0.1"), LOOPBACK),
        ({}, Context("spark://m:7077", "10.0.0.1"), Binding("10.0.0.1", "10.0.0.1")),
        ({}, Context("yarn", "driver.example.org", "0.0.0.0"), Binding("0.0.0.0", "driver.example.org")),
        ({}, Context("k8s://https://api", "driver.ns.svc", "10.1.2.3"), Binding("10.1.2.3", "driver.ns.svc")),
        ({}, Context("spark://m:7077", "[fd00::1]", "[::1]"), Binding("::1", "fd00::1")),
        ({"launcher": "spark"}, Context("local-cluster[2,1,1024]", "10.0.0.1"), Binding("10.0.0.1", "10.0.0.1")),
        ({"bindAddress": "[fd00::2]"}, Context("spark://m:7077", "10.0.0.1"), Binding("fd00::2", "fd00::2")),
        ({"bindAddress": "0.0.0.0"}, Context("spark://m:7077", "10.0.0.1"), Binding("0.0.0.0", "10.0.0.1")),
        ({"bindAddress": "0.0.0.0"}, Context("spark://m:7077", "localhost"), Binding("0.0.0.0", "host1")),
        ({"bindAddress": "::"}, None, Binding("::", "host1")),
        ({"advertiseAddress": "nat"}, Context("spark://m:7077", "10.0.0.1"), Binding("10.0.0.1", "nat")),
        ({"bindAddress": "::", "advertiseAddress": "nat", "ports": "40-59"}, None, Binding("::", "nat", range(40, 60))),
    ],
)
def test_place_when_spark_names_driver_host_then_uses_it(monkeypatch, fields, context, expected):
    monkeypatch.setattr(application, "reachable_host", lambda: "host1")
    assert driver_binding(PS2Conf(**fields), context and ClassicSpark(context), has_token=True) == expected


def test_driver_host_when_it_is_given_then_listens_everywhere():
    assert driver_host_settings(None, "nat") == {"advertiseAddress": "nat", "bindAddress": "0.0.0.0"}
    assert driver_host_settings(PS2Conf(bindAddress="10.0.0.1"), "nat") == {
        "advertiseAddress": "nat",
        "bindAddress": "10.0.0.1",
    }
    assert driver_host_settings(PS2Conf(), None) == {}


def test_place_when_there_is_no_token_then_it_is_loopback():
    assert driver_binding(PS2Conf(), ClassicSpark(Context("spark://m:7077", "10.0.0.1")), has_token=False) == LOOPBACK


@pytest.mark.parametrize(
    ("context", "master", "servers", "said"),
    [
        (Context("spark://m:7077", "10.0.0.1"), "127.0.0.1:1", (), "the driver's master and runs at 127.0.0.1"),
        (Context("spark://m:7077", "10.0.0.1"), "10.0.0.1:1", ("[::1]:7070",), "a server at ::1"),
        (Context("spark://m:7077", "10.0.0.1"), "10.0.0.1:1", ("10.0.0.1:2",), None),
        (Context("spark://m:7077", "127.0.0.1"), "127.0.0.1:1", (), None),
        (Context("local[2]", "10.0.0.1"), "127.0.0.1:1", (), None),
    ],
)
def test_reach_when_executors_are_remote_then_names_loopback(context, master, servers, said):
    result = out_of_reach(ClassicSpark(context), master, servers)
    if said is None:
        assert result is None
    else:
        assert all(word in result for word in (said, "bindAddress", "advertiseAddress"))


def test_ports_when_given_in_any_form_then_they_are_a_range():
    assert (ports(None), ports(40000), ports("40000-40002")) == (range(1), range(40000, 40001), range(40000, 40003))


@pytest.mark.parametrize("given", [0, -1, 1.5, True, "x", "5-4", [1]])
def test_ports_when_they_are_none_then_config_error(given):
    with pytest.raises(ConfigError, match=r"^ports: expected"):
        ports(given)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"bindAddress": "host:80"},
            "bindAddress: expected a name or an address of a host, without a port, got 'host:80'",
        ),
        ({"bindAddress": 7}, "bindAddress: expected a name or an address of a host, got 7"),
        (
            {"advertiseAddress": "0.0.0.0"},
            "advertiseAddress: expected a host name or address that other hosts reach, got 0.0.0.0",
        ),
        ({"servers": 2, "ports": "40-44"}, "ports: 6 are needed, for the master, a run and 4 for the servers"),
        ({"fleet": ("h:1",), "ports": "40"}, "ports: 2 are needed, for the master and a run; got 1"),
        ({"namespace": "ads"}, "namespace needs fleet: servers that the driver starts serve no other driver"),
        ({"fleet": ("h:1",), "namespace": "a/b"}, "namespace: expected 1 to 63 characters out of a-z, 0-9, '.', '_'"),
        ({"fleet": ("h:1",), "namespace": 7}, "namespace: expected 1 to 63 characters out of a-z, 0-9, '.', '_'"),
    ],
)
def test_options_when_a_place_cannot_be_used_then_it_is_named(fields, message):
    with pytest.raises(ConfigError) as caught:
        PS2Conf(**fields).check()
    assert str(caught.value).startswith(message)
