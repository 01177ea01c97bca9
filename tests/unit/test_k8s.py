"""Manifests of Kubernetes: what is printed, what is in the folder, and what the server makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from ps2.cli.main import cli
from ps2.cli.manifests import Fleet, manifests
from ps2.cli.server import server

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"


def render(*arguments):
    return CliRunner().invoke(cli, ["k8s", "render", *arguments])


def container(text):
    (found,) = [each for each in yaml.safe_load_all(text) if each["kind"] == "StatefulSet"]
    return found["spec"]["template"]["spec"]["containers"][0]


def test_the_base_says_what_render_prints():
    printed = render("--image", "ps2:dev")
    assert printed.exit_code == 0
    assert (FOLDER / "base" / "fleet.yaml").read_text() == printed.stdout


@pytest.mark.parametrize("overlay", ["dev", "production"])
def test_an_overlay_names_what_is_in_the_base(overlay):
    folder = FOLDER / "overlays" / overlay
    said = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert all((folder / each / "kustomization.yaml").is_file() for each in said["resources"])
    there = {(each["kind"], each["metadata"]["name"]) for each in manifests(Fleet("ps2:dev"))}
    assert {("StatefulSet", each["name"]) for each in said["replicas"]} <= there
    assert {(each["target"]["kind"], each["target"]["name"]) for each in said.get("patches", [])} <= there


@pytest.mark.parametrize("tls", [(), ("--tls-secret", "certificates")])
def test_the_server_knows_all_arguments_of_a_pod(tls):
    found = container(render("--image", "ps2:dev", *tls).stdout)
    assert found["command"] == ["ps2", "server"]
    server.make_context("server", list(found["args"]))


def test_probes_are_of_tcp_with_tls_as_kubernetes_does_not_speak_it():
    assert "grpc" in container(render("--image", "ps2:dev").stdout)["livenessProbe"]
    assert "tcpSocket" in container(render("--image", "ps2:dev", "--tls-secret", "t").stdout)["livenessProbe"]


def test_no_secret_is_printed_or_committed():
    assert "Secret" not in {each["kind"] for each in manifests(Fleet("ps2:dev", tls_secret="t"))}


@pytest.mark.parametrize(
    "wrong",
    [
        ("--image", "a b"),
        ("--image", ""),
        ("--image", "ps2:dev", "--name", "Fleet"),
        ("--image", "ps2:dev", "--name", "a" * 53),
        ("--image", "ps2:dev", "--namespace", "-"),
        ("--image", "ps2:dev", "--servers", "0"),
        ("--image", "ps2:dev", "--memory", "much"),
    ],
)
def test_an_option_that_cannot_be_is_refused(wrong):
    assert render(*wrong).exit_code != 0


def test_addresses_are_the_names_of_the_pods():
    assert Fleet("ps2:dev", name="model").addresses == ["model-0.model:7070", "model-1.model:7070"]
