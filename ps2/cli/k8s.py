"""``ps2 k8s``: the Kubernetes objects of a fleet, which are also in ``deploy/kubernetes/base``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import click

from ps2.cli.options import parse_bytes
from ps2.config import DEFAULT_PORT

EPILOG = """\b
Examples:
  ps2 k8s render --servers 8 --memory 8g --image registry/ps2:0.1.0 | kubectl apply -f -
  ps2 k8s render --servers 8 --memory 8g --image registry/ps2:0.1.0 --namespace ml --tls-secret ps2-tls
"""
# Names of Services (RFC 1035). Kubernetes adds a suffix for a label of the pods, which has at most 63 characters.
NAME = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
Object = dict[str, Any]

GRPC_PORT = DEFAULT_PORT
DATA_PORT = DEFAULT_PORT + 1
METRICS_PORT = 9090
PORTS = {"grpc": GRPC_PORT, "data": DATA_PORT, "metrics": METRICS_PORT}
# The user id in Spark's own images, and the mount points in the container.
USER = 185
SECRETS = "/run/secrets/ps2"
CERTIFICATES = "/run/secrets/ps2-tls"
READY_PATH = "/ready"
SCRATCH = "/tmp"
# The seconds in which a pod's shards are moved to safety before it ends, and those after which the kubelet kills it.
DRAIN_S, GRACE_S = 110, 120
# The folders of compiled kernels: in the image, and the writable copy.
COMPILED, KERNELS = "/opt/ps2/kernels", f"{SCRATCH}/kernels"


def check_name(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Check a name as Kubernetes does (RFC 1035)."""
    if text is not None and NAME.fullmatch(text) is None:
        raise click.BadParameter(
            f"expected at most 52 lower-case letters, digits and '-', beginning with a letter, got {text!r:.100}"
        )
    return text


def check_namespace(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Check the name of a namespace as Kubernetes does (RFC 1123)."""
    if text is not None and NAMESPACE.fullmatch(text) is None:
        raise click.BadParameter(f"expected at most 63 lower-case letters, digits and '-', got {text!r:.100}")
    return text


def check_image(context: click.Context, option: click.Parameter, text: str) -> str:
    """Check only that an image reference has no blanks. Kubernetes checks the rest."""
    if not text or text.startswith("-") or any(char.isspace() for char in text):
        raise click.BadParameter(f"expected an image such as registry/ps2:0.1.0, got {text!r:.100}")
    return text


@click.group()
def k8s() -> None:
    """Fleets on Kubernetes."""


@k8s.command(epilog=EPILOG)
@click.option("--image", required=True, callback=check_image, help="Image of the servers (deploy/docker/Dockerfile).")
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
@click.option("--name", default="ps2", show_default=True, callback=check_name, help="Name of all objects.")
@click.option("--namespace", callback=check_name, help="Namespace of all objects  [default: kubectl's].")
@click.option(
    "--token-secret", default="ps2-token", show_default=True, callback=check_name, help="Secret with the key 'token'."
)
@click.option("--tls-secret", callback=check_name, help="Secret with tls.crt, tls.key and ca.crt  [default: no TLS].")
@click.option(
    "--monitoring-namespace",
    callback=check_namespace,
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

    fleet = FleetSettings(
        image, servers, memory, cores, name, namespace, token_secret, tls_secret, monitoring_namespace
    )
    click.echo(yaml.safe_dump_all(manifests(fleet), sort_keys=False), nl=False)


@dataclass(frozen=True)
class FleetSettings:
    """The settings of a fleet on Kubernetes.

    Attributes:
        image: the servers' image, which has the ``ps2`` command.
        servers: the number of pods, at least one.
        memory_bytes: the memory of a pod; arrays take up to 80% of it.
        cores: the cores of a pod.
        name: the name of the objects, also of the headless Service in the pods' host names.
        namespace: the objects' namespace; None: that of kubectl's context.
        token_secret: the Secret with the key ``token``, without which pods do not start.
        tls_secret: the Secret with tls.crt, tls.key and ca.crt, as cert-manager makes them; None: no TLS.
        monitoring_namespace: another namespace whose pods may read the metrics; None: only the fleet's namespace.
    """

    image: str
    servers: int = 2
    memory_bytes: int = 4 << 30
    cores: int = 2
    name: str = "ps2"
    namespace: str | None = None
    token_secret: str = "ps2-token"
    tls_secret: str | None = None
    monitoring_namespace: str | None = None

    @property
    def addresses(self) -> list[str]:
        """The ``host:port`` of each server, for drivers in the same namespace."""
        return [f"{self.name}-{index}.{self.name}:{GRPC_PORT}" for index in range(self.servers)]


def manifests(fleet: FleetSettings) -> list[Object]:
    """Return the objects of a fleet, in the order in which they are applied."""
    # AlwaysAllow: without a driver no pod is ready, and otherwise nodes could not be drained.
    budget = {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": _selector(fleet)}
    stateful_set = {
        "serviceName": fleet.name,
        "replicas": fleet.servers,
        "podManagementPolicy": "Parallel",
        "selector": _selector(fleet),
        "template": {"metadata": {"labels": _labels(fleet)}, "spec": _pod(fleet)},
    }
    return [
        _object(fleet, "v1", "ServiceAccount", automountServiceAccountToken=False),
        _object(fleet, "v1", "Service", spec=_service(fleet)),
        _object(fleet, "policy/v1", "PodDisruptionBudget", spec=budget),
        _object(fleet, "networking.k8s.io/v1", "NetworkPolicy", spec=_network_policy(fleet)),
        _object(fleet, "apps/v1", "StatefulSet", spec=stateful_set),
    ]


def _object(fleet: FleetSettings, version: str, kind: str, **content: Any) -> Object:
    metadata: Object = {"name": fleet.name, "labels": _labels(fleet)}
    if fleet.namespace is not None:
        metadata["namespace"] = fleet.namespace
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def _labels(fleet: FleetSettings) -> Object:
    return {"app.kubernetes.io/name": "ps2", "app.kubernetes.io/instance": fleet.name}


def _selector(fleet: FleetSettings) -> Object:
    return {"matchLabels": _labels(fleet)}


def _service(fleet: FleetSettings) -> Object:
    return {
        "clusterIP": "None",
        # Drivers look up servers that are not ready, too.
        "publishNotReadyAddresses": True,
        # Names resolve to IPv4 and IPv6 addresses, if the cluster has both.
        "ipFamilyPolicy": "PreferDualStack",
        "selector": _labels(fleet),
        "ports": [{"name": name, "port": port, "targetPort": name} for name, port in PORTS.items()],
    }


def _network_policy(fleet: FleetSettings) -> Object:
    """Allow all ports to pods of this namespace, and the metrics port to pods of the monitoring namespace."""
    ports = [{"protocol": "TCP", "port": name} for name in PORTS]
    allowed: list[Object] = [{"from": [{"podSelector": {}}], "ports": ports}]
    if fleet.monitoring_namespace is not None:
        # Kubernetes gives each namespace this label.
        monitoring = {"matchLabels": {"kubernetes.io/metadata.name": fleet.monitoring_namespace}}
        allowed.append({"from": [{"namespaceSelector": monitoring}], "ports": [{"protocol": "TCP", "port": "metrics"}]})
    return {"podSelector": _selector(fleet), "policyTypes": ["Ingress"], "ingress": allowed}


def _pod(fleet: FleetSettings) -> Object:
    return {
        "serviceAccountName": fleet.name,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": _selector(fleet),
            }
        ],
        "initContainers": [_kernel_copier(fleet)],
        "containers": [_container(fleet)],
        "volumes": _volumes(fleet),
    }


def _kernel_copier(fleet: FleetSettings) -> Object:
    """Return the init container that copies the image's compiled kernels to numba's cache folder, which is writable."""
    return {
        "name": "kernels",
        "image": fleet.image,
        "command": ["cp", "-r", COMPILED, KERNELS],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": _security_context(),
        "volumeMounts": [{"name": "scratch", "mountPath": SCRATCH}],
    }


def _security_context() -> Object:
    """Return the security context of all containers."""
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def _container(fleet: FleetSettings) -> Object:
    mounts = [{"name": "token", "mountPath": SECRETS, "readOnly": True}, {"name": "scratch", "mountPath": SCRATCH}]
    if fleet.tls_secret is not None:
        mounts.append({"name": "tls", "mountPath": CERTIFICATES, "readOnly": True})
    resources = {"cpu": str(fleet.cores), "memory": str(fleet.memory_bytes)}
    return {
        "name": "server",
        "image": fleet.image,
        "command": ["ps2", "server"],
        "args": _arguments(fleet),
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "NUMBA_CACHE_DIR", "value": KERNELS},
        ],
        "ports": [{"name": name, "containerPort": port} for name, port in PORTS.items()],
        # Imports take seconds on a slow node; the other probes begin after the startup probe. A pod is ready when it
        # has its shards. So a rolling update replaces a pod only when the driver has recovered the previous one.
        "startupProbe": {**_probe(fleet), "periodSeconds": 2, "failureThreshold": 60},
        "readinessProbe": {"httpGet": {"port": "metrics", "path": READY_PATH}, "periodSeconds": 2},
        "livenessProbe": {**_probe(fleet), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "resources": {"requests": resources, "limits": {"memory": resources["memory"]}},
        "securityContext": _security_context(),
        "volumeMounts": mounts,
    }


def _arguments(fleet: FleetSettings) -> list[str]:
    arguments = [
        f"--listen=[::]:{GRPC_PORT}",
        f"--data-port={DATA_PORT}",
        f"--advertise=$(POD_NAME).{fleet.name}.$(POD_NAMESPACE).svc",
        f"--token-file={SECRETS}/token",
        f"--metrics-port={METRICS_PORT}",
        f"--cores={fleet.cores}",
        f"--drain={DRAIN_S}",
    ]
    if fleet.tls_secret is not None:
        names = {"cert": "tls.crt", "key": "tls.key", "ca": "ca.crt"}
        arguments += [f"--tls-{option}={CERTIFICATES}/{file}" for option, file in names.items()]
    return arguments


def _probe(fleet: FleetSettings) -> Object:
    """Return a probe of gRPC's health service, which needs no token. It does not support TLS: then probe the port."""
    return {"tcpSocket": {"port": "grpc"}} if fleet.tls_secret is not None else {"grpc": {"port": GRPC_PORT}}


def _volumes(fleet: FleetSettings) -> list[Object]:
    volumes: list[Object] = [
        {"name": "token", "secret": {"secretName": fleet.token_secret, "defaultMode": 0o440}},
        {"name": "scratch", "emptyDir": {}},
    ]
    if fleet.tls_secret is not None:
        volumes.append({"name": "tls", "secret": {"secretName": fleet.tls_secret, "defaultMode": 0o440}})
    return volumes
