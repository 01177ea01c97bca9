"""``ps2 k8s``: manifests of a fleet on Kubernetes."""

from __future__ import annotations

import re

import click

from ps2.cli.options import parse_bytes

EPILOG = """\b
Examples:
  ps2 k8s render --servers 8 --memory 8g --image registry/ps2:0.1.0 | kubectl apply -f -
  ps2 k8s render --servers 8 --memory 8g --image registry/ps2:0.1.0 --namespace ml --tls-secret ps2-tls
"""
# Names of Services, with room for the suffixes of a StatefulSet's pod labels.
NAME = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def name(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Check a name as Kubernetes does (RFC 1035)."""
    if text is not None and NAME.fullmatch(text) is None:
        raise click.BadParameter(
            f"expected at most 52 lower-case letters, digits and '-', beginning with a letter, got {text!r:.100}"
        )
    return text


def namespace(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Check the name of a namespace that is not the fleet's (RFC 1123)."""
    if text is not None and NAMESPACE.fullmatch(text) is None:
        raise click.BadParameter(f"expected at most 63 lower-case letters, digits and '-', got {text!r:.100}")
    return text


def image(context: click.Context, option: click.Parameter, text: str) -> str:
    """Check that an image reference has no blanks; registries check the rest."""
    if not text or text.startswith("-") or any(letter.isspace() for letter in text):
        raise click.BadParameter(f"expected an image such as registry/ps2:0.1.0, got {text!r:.100}")
    return text


@click.group()
def k8s() -> None:
    """Fleets on Kubernetes."""


@k8s.command(epilog=EPILOG)
@click.option("--image", required=True, callback=image, help="Image of the servers (deploy/docker/Dockerfile).")
@click.option("--servers", type=click.IntRange(1, 10_000), default=2, show_default=True, help="Number of pods.")
@click.option(
    "--memory",
    type=parse_bytes,
    default="4g",
    metavar="BYTES",
    show_default=True,
    help="Memory of a pod; arrays take 80% of it.",
)
@click.option("--cores", type=click.IntRange(1, 1024), default=2, show_default=True, help="Cores of a pod.")
@click.option("--name", default="ps2", show_default=True, callback=name, help="Name of all objects.")
@click.option("--namespace", callback=name, help="Namespace of all objects  [default: kubectl's].")
@click.option(
    "--token-secret", default="ps2-token", show_default=True, callback=name, help="Secret with the key 'token'."
)
@click.option("--tls-secret", callback=name, help="Secret with tls.crt, tls.key and ca.crt  [default: no TLS].")
@click.option(
    "--monitoring-namespace",
    callback=namespace,
    metavar="NAME",
    help="Namespace of Prometheus, whose pods may scrape the metrics  [default: pods of the fleet's namespace only].",
)
def render(
    image: str,
    servers: int,
    memory: int,
    cores: int,
    name: str,
    namespace: str | None,
    token_secret: str,
    tls_secret: str | None,
    monitoring_namespace: str | None,
) -> None:
    """Print the manifests of a fleet as YAML, for kubectl apply."""
    import yaml

    from ps2.cli.manifests import FleetSettings, manifests

    fleet = FleetSettings(
        image, servers, memory, cores, name, namespace, token_secret, tls_secret, monitoring_namespace
    )
    click.echo(yaml.safe_dump_all(manifests(fleet), sort_keys=False), nl=False)
