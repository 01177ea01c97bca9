"""The report of the process in a container to the launcher, as a plain function."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from ps2.protocol.pb import launcher_pb2 as pb
from ps2.rpc.control import SIGN_OF_LIFE_TIMEOUT_S, Network


@dataclass(frozen=True)
class ContainerReport:
    """The state of a container's server.

    Attributes:
        index: the server's index in the fleet.
        attempt: a number that increases with each container for this server.
        container, node: the cluster manager's names of the container and of its machine.
        order: the number of the last order that was carried out; 0 if there was none.
        exit_code: the exit code of the server that this order started, negative for a signal; None if the server runs
            or was not started.
        said: the end of the server's output, as text.
    """

    index: int
    attempt: int
    container: str
    node: str
    version: str
    order: int = 0
    exit_code: int | None = None
    said: str = ""
    address: str = ""


@dataclass(frozen=True)
class Order:
    """The launcher's instruction to a container.

    Attributes:
        number: the order's number. With a new number, the container must end its server, if any, and start another.
        arguments: the command-line arguments of ``ps2``; the container adds those that only it knows.
        leave: True: the container must end its server and exit.
        refused: the reason why this container is not usable; "" if the container is usable.
        address: the address to listen on, if its host is the container's host; "": any address.
    """

    number: int = 0
    arguments: tuple[str, ...] = ()
    leave: bool = False
    refused: str = ""
    address: str = ""


class LauncherControl:
    """Calls to one launcher."""

    def __init__(self, transport: Network, address: str) -> None:
        self._transport = transport
        self._address = address

    def report(self, report: ContainerReport) -> Order:
        """Report the state of a server; return the launcher's instruction."""
        reply = self._transport.call(
            self._address, "Launcher/Report", report_to_pb(report), pb.ReportReply, SIGN_OF_LIFE_TIMEOUT_S
        )
        return Order(reply.order, tuple(reply.arguments), reply.leave, reply.refused, reply.address)


def report_to_pb(report: ContainerReport) -> pb.ReportRequest:
    content = asdict(report)
    return pb.ReportRequest(**content | {"ended": report.exit_code is not None, "exit_code": report.exit_code or 0})


def report_from_pb(message: pb.ReportRequest) -> ContainerReport:
    content = {field.name: getattr(message, field.name) for field in fields(ContainerReport)}
    return ContainerReport(**content | {"exit_code": message.exit_code if message.ended else None})


def order_to_pb(order: Order) -> pb.ReportReply:
    content = asdict(order)
    return pb.ReportReply(order=content.pop("number"), **content)
