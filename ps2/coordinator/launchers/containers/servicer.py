"""The launcher's gRPC service: decode a report, pass it on, encode the order."""

from __future__ import annotations

from ps2.certificates import Tls
from ps2.config import WireConfig
from ps2.coordinator.launchers.containers.hosts import Hosts
from ps2.protocol.pb import launcher_pb2 as pb
from ps2.rpc.launcher_control import order_to_pb, report_from_pb
from ps2.rpc.serving import RpcServer

THREADS = 4


class LauncherServicer:
    """Method by method what ``service Launcher`` of the contract says."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts

    def Report(self, request: pb.ReportRequest) -> pb.ReportReply:
        return order_to_pb(self._hosts.report(report_from_pb(request)))


def listen(hosts: Hosts, bind: str, token: str, tls: Tls | None = None) -> RpcServer:
    """Start the launcher's gRPC server."""
    service = pb.DESCRIPTOR.services_by_name["Launcher"]
    return RpcServer(service, LauncherServicer(hosts), bind, token, THREADS, WireConfig(tls=tls))
