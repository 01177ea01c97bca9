"""Manifests of Kubernetes: what is printed, what is in the folder, and what the server makes of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from ps2.cli.k8s import FleetSettings, manifests
from ps2.cli.main import cli
from ps2.cli.server import server

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
# What Spark adds to its template of a pod.
DRIVER = {"metadata": {"name": "driver", "labels": {"app.kubernetes.io/name": "ps2-driver"}}}


def render(*arguments):
    return CliRunner().invoke(cli, ["k8s", "render", *arguments])


def container(text):
    (result,) = [each for each in yaml.safe_load_all(text) if each["kind"] == "StatefulSet"]
    return result["spec"]["template"]["spec"]["containers"][0]


def test_the_base_says_what_render_prints():
    printed = render("--image", "ps2:dev")
    assert printed.exit_code == 0
    assert (FOLDER / "base" / "fleet.yaml").read_text() == printed.stdout


def customized(folder):
    """The objects of a kustomization: those of what it builds on, with its patches."""
    message = yaml.safe_load((folder / "kustomization.yaml").read_text())
    objects = []
    for each in message["resources"]:
        path = folder / each
        objects += customized(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
    for each in message.get("patches", []):
        (target,) = [
            result
            for result in objects
            if (result["kind"], result["metadata"]["name"]) == (each["target"]["kind"], each["target"]["name"])
        ]
        for change in yaml.safe_load(each["patch"]):
            patch(target, **change)
    return objects


def patch(target, op, path, value=None):
    """Do what one line of a JSON patch says (RFC 6902)."""
    *variant, last = path.strip("/").split("/")
    for step in variant:
        target = target[int(step) if isinstance(target, list) else step]
    if isinstance(target, list):
        assert (op, last) == ("add", "-")
        target.append(value)
    elif op == "remove":
        del target[last]
    else:
        assert (op, last in target) in (("add", False), ("replace", True))
        target[last] = value


@pytest.mark.parametrize("version", ["1.33.0", "1.34.0", "1.35.0", "1.36.0", kubernetes_validate.latest_version()])
def test_what_is_there_is_what_kubernetes_knows(version):
    folders = [*(FOLDER / "overlays").iterdir(), FOLDER / "base"]
    objects = [each for folder in folders for each in customized(folder)]
    known = [each for each in objects if "cert-manager.io" not in each["apiVersion"]]
    policy = monitoring("NetworkPolicy")
    rendered = manifests(FleetSettings("ps2:dev", namespace="ml", tls_secret="t", monitoring_namespace="m"))
    for each in [*known, policy, *rendered]:
        kubernetes_validate.validate(each, version, strict=True)
    assert {each["kind"] for each in objects if each not in known} == {"Issuer", "Certificate"}
    kubernetes_validate.validate(yaml.safe_load((FOLDER / "job" / "driver.yaml").read_text()) | DRIVER, version)


def monitoring(kind):
    """The first object of a kind in the monitoring component."""
    return next(each for each in customized(FOLDER / "components" / "monitoring") if each["kind"] == kind)


def reached(policies, pod, source, own="ml"):
    """The named ports of a pod that pods of a namespace reach: policies that select the pod add up.

    Of the language of policies, this knows what ours say: selectors by labels, and ports by name.
    """
    result = set()
    for policy in policies:
        spec = policy["spec"]
        if not selects(spec["podSelector"], pod["metadata"]["labels"]):
            continue
        for rule in spec["ingress"]:
            for peer in rule["from"]:
                labels = {"kubernetes.io/metadata.name": source}
                here = source == own if "namespaceSelector" not in peer else selects(peer["namespaceSelector"], labels)
                assert peer.get("podSelector", {}) == {}
                result |= {port["port"] for port in rule["ports"] if here}
    assert result <= {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    return result


def selects(selector, labels):
    assert selector.keys() <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()


def fleet_of(objects):
    """The fleet's policies, and the template of its pods."""
    (pod,) = [each["spec"]["template"] for each in objects if each["kind"] == "StatefulSet"]
    return [each for each in objects if each["kind"] == "NetworkPolicy"], pod


@pytest.mark.parametrize("way", ["component", "render"])
def test_monitoring_namespace_when_let_in_then_scrapes_only(way):
    options = ("--monitoring-namespace", "monitoring") if way == "render" else ()
    policies, pod = fleet_of(list(yaml.safe_load_all(render("--image", "ps2:dev", *options).stdout)))
    policies += [monitoring("NetworkPolicy")] if way == "component" else []
    assert reached(policies, pod, "monitoring") == {"metrics"}
    assert reached(policies, pod, "default") == set()
    assert reached(policies, pod, "ml") == {"grpc", "data", "metrics"}


def test_pod_monitor_when_it_selects_then_finds_the_metrics_port():
    _, pod = fleet_of(manifests(FleetSettings("ps2:dev")))
    spec = monitoring("PodMonitor")["spec"]
    assert selects(spec["selector"], pod["metadata"]["labels"])
    assert {each["port"] for each in spec["podMetricsEndpoints"]} == {"metrics"}
    assert "--metrics-port=9090" in pod["spec"]["containers"][0]["args"]


def test_driver_monitor_when_it_selects_then_finds_drivers():
    (spec,) = [
        each["spec"]
        for each in customized(FOLDER / "components" / "monitoring")
        if each["metadata"]["name"] == "ps2-driver"
    ]
    pod = yaml.safe_load((FOLDER / "job" / "driver.yaml").read_text())
    application = yaml.safe_load((FOLDER / "job" / "spark-application.yaml").read_text())["spec"]["driver"]
    for labels, (port,) in (
        (pod["metadata"]["labels"], pod["spec"]["containers"][0]["ports"]),
        (application["labels"], application["ports"]),
    ):
        assert selects(spec["selector"], labels)
        assert [each["port"] for each in spec["podMetricsEndpoints"]] == [port["name"]]


def test_the_overlay_with_tls_says_what_render_prints():
    (created,) = [each for each in customized(FOLDER / "overlays" / "tls") if each["kind"] == "StatefulSet"]
    (rendered,) = [
        each for each in manifests(FleetSettings("ps2:dev", tls_secret="ps2-tls")) if each["kind"] == "StatefulSet"
    ]
    ours, theirs = (each["spec"]["template"]["spec"] for each in (created, rendered))
    for each in (ours, theirs):
        del each["topologySpreadConstraints"], each["containers"][0]["resources"]
    assert ours == theirs


@pytest.mark.parametrize("is_link", [False, True])
def test_a_job_is_told_where_the_servers_are(tmp_path, is_link):
    shown = tmp_path / "submit"
    shown.write_text('#!/bin/sh\nfor each; do echo "$each"; done\n')
    shown.chmod(0o755)
    inputs = {"SPARK_SUBMIT": str(shown), "IMAGE": "ps2:dev", "SERVERS": "2", "NAMESPACE": "ml", "FLEET": "ads"}
    inputs |= {"PATH": os.defpath, "NAME": "a-computer"}
    script = FOLDER / "job" / "submit.sh"
    if is_link:  # as in a folder of PATH
        script = tmp_path / "link"
        script.symlink_to(FOLDER / "job" / "submit.sh")
    command = [script, "https://cluster:6443", "local:///train.py", "--epochs", "3"]
    message = subprocess.run(command, env=inputs, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "spark.kubernetes.driverEnv.PS2_FLEET=ads-0.ads.ml.svc:7070,ads-1.ads.ml.svc:7070" in message
    assert (message[1], message[-3:]) == ("k8s://https://cluster:6443", ["local:///train.py", "--epochs", "3"])
    (template,) = [each.partition("=")[2] for each in message if "podTemplateFile" in each]
    assert Path(template).is_file()
    assert subprocess.run(command[:1], check=False, env=inputs, capture_output=True).returncode == 2


@pytest.mark.parametrize("servers", ["0", "-1", "eight", "2.5"])
def test_a_job_when_servers_are_no_number_then_not_submitted(tmp_path, servers):
    inputs = {"SPARK_SUBMIT": "echo", "IMAGE": "ps2:dev", "SERVERS": servers, "PATH": os.defpath}
    command = [FOLDER / "job" / "submit.sh", "https://cluster:6443", "local:///train.py"]
    submitted = subprocess.run(command, check=False, env=inputs, capture_output=True, text=True)
    assert (submitted.returncode, submitted.stdout) == (2, "")
    assert submitted.stderr == f"SERVERS: expected a number of servers from 1 on, got '{servers}'\n"


@pytest.mark.parametrize("overlay", ["dev", "production"])
def test_an_overlay_names_what_is_in_the_base(overlay):
    folder = FOLDER / "overlays" / overlay
    message = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert all((folder / each / "kustomization.yaml").is_file() for each in message["resources"])
    there = {(each["kind"], each["metadata"]["name"]) for each in manifests(FleetSettings("ps2:dev"))}
    assert {("StatefulSet", each["name"]) for each in message["replicas"]} <= there
    assert {(each["target"]["kind"], each["target"]["name"]) for each in message.get("patches", [])} <= there


@pytest.mark.parametrize("tls", [(), ("--tls-secret", "certificates")])
def test_the_server_knows_all_arguments_of_a_pod(tls):
    result = container(render("--image", "ps2:dev", *tls).stdout)
    assert result["command"] == ["ps2", "server"]
    server.make_context("server", list(result["args"]))


def test_probes_use_tcp_when_tls_is_on():
    assert "grpc" in container(render("--image", "ps2:dev").stdout)["livenessProbe"]
    assert "tcpSocket" in container(render("--image", "ps2:dev", "--tls-secret", "t").stdout)["livenessProbe"]


def test_no_secret_is_printed_or_committed():
    assert "Secret" not in {each["kind"] for each in manifests(FleetSettings("ps2:dev", tls_secret="t"))}


@pytest.mark.parametrize(
    "wrong",
    [
        ("--image", "a b"),
        ("--image", ""),
        ("--image", "ps2:dev", "--name", "Fleet"),
        ("--image", "ps2:dev", "--name", "a" * 53),
        ("--image", "ps2:dev", "--namespace", "-"),
        ("--image", "ps2:dev", "--servers", "0"),
        ("--image", "ps2:dev", "--monitoring-namespace", "Prometheus"),
        ("--image", "ps2:dev", "--memory", "much"),
    ],
)
def test_an_option_that_cannot_be_is_refused(wrong):
    assert render(*wrong).exit_code != 0


def test_addresses_are_the_names_of_the_pods():
    assert FleetSettings("ps2:dev", name="model").addresses == ["model-0.model:7070", "model-1.model:7070"]
