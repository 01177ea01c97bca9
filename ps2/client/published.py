"""Vectors of other namespaces on the same fleet: found by the catalogs that their coordinators publish, and read-only.

Nothing goes through the other application's driver. So its vectors can be read while it is busy, or after it has died.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from ps2.client.dispatch import Dispatch
from ps2.client.plans import Plan
from ps2.client.session import Session
from ps2.errors import NotFoundError, RecoveringError, UnavailableError, UsageError
from ps2.matrix.partition import assign_owners
from ps2.matrix.route import Route
from ps2.rpc.catalogs import PublishedCatalog, newest_catalog
from ps2.rpc.control import Network, ServerControl, ServerInfo
from ps2.rpc.master_control import MasterControl, MatrixInfo
from ps2.transport.concurrent_calls import call_concurrently

# Maximum number of names that an error lists.
MAX_NAMES = 50


def read_only_error(namespace: str) -> UsageError:
    """Return the error of a call that would change a vector of another namespace."""
    return UsageError(
        f"this vector belongs to namespace {namespace!r} and is read-only here: only the driver of that namespace and "
        "its tasks change it; copy() it into a vector of your own"
    )


class PublishedMaster(MasterControl):
    """Answers questions to the master of another namespace by the catalog on the servers; refuses changes."""

    def __init__(self, network: Network, namespace: str, addresses: Sequence[str]) -> None:
        super().__init__(network, "")
        self._namespace = namespace
        self._addresses = addresses
        self._control = ServerControl(network, namespace)

    def matrix(self, matrix: int) -> MatrixInfo:
        infos, catalog = self._look_up()
        saved = next((saved for saved in catalog.matrices if saved.id == matrix), None)
        if saved is None:
            raise NotFoundError(f"matrix {matrix:x} does not exist (any more) in namespace {self._namespace!r}")
        owners = [catalog.servers[owner] for owner in assign_owners(len(saved.bounds) - 1, len(catalog.servers))]
        address_by_id = {info.server_id: address for address, info in infos.items()}
        if missing := sorted(set(owners) - set(address_by_id)):
            # The catalog has the ids of servers that were lost, until their coordinator has restored them.
            raise RecoveringError(f"namespace {self._namespace!r} waits for {len(missing)} of its servers")
        version = max(info.route_version for info in infos.values())
        return MatrixInfo(
            saved.id, saved.spec, Route(version, saved.bounds, tuple(address_by_id[owner] for owner in owners))
        )

    def find_vector(self, name: str) -> tuple[int, int]:
        _, catalog = self._look_up()
        vectors = {name: (saved.id, row) for saved in catalog.matrices for name, row in saved.names.items()}
        if name not in vectors:
            names = ", ".join(sorted(vectors)[:MAX_NAMES]) + ("" if len(vectors) <= MAX_NAMES else ", ...")
            raise NotFoundError(
                f"namespace {self._namespace!r} of this fleet has no vector {name!r}; expected one of "
                f"{names or '(none)'}"
            )
        return vectors[name]

    def _look_up(self) -> tuple[dict[str, ServerInfo], PublishedCatalog]:
        """Return the answers of the servers by address, and the newest catalog among them."""

        def ask(address: str) -> ServerInfo | UnavailableError:
            try:
                return self._control.hello(address)
            except UnavailableError as error:
                return error

        answers = dict(zip(self._addresses, call_concurrently(self._addresses, ask), strict=True))
        infos = {address: answer for address, answer in answers.items() if isinstance(answer, ServerInfo)}
        if not infos:
            raise next(answer for answer in answers.values() if isinstance(answer, UnavailableError))
        catalog = newest_catalog(info.catalog for info in infos.values())
        return infos, catalog or PublishedCatalog((0, 0), (), ())

    def _call(self, *_: Any) -> NoReturn:
        raise read_only_error(self._namespace)


class ReadOnlyDispatch(Dispatch):
    """Sends plans that read vectors of another namespace; refuses those that change data."""

    def __init__(self, namespace: str, *parts: Any) -> None:
        super().__init__(*parts)
        self._namespace = namespace

    def _run(self, plans: Sequence[Plan[Any]], mutates: bool) -> list[Any]:
        if mutates:
            raise read_only_error(self._namespace)
        return super()._run(plans, mutates)

    def run_later(self, plan: Plan[Any]) -> None:
        raise read_only_error(self._namespace)


def published_session(session: Session, namespace: str, addresses: Sequence[str]) -> Session:
    """Return the session that reads the vectors of a namespace over the connections of ``session``.

    ``addresses``: the servers to ask for its catalog.
    """
    opened = session.opened.get(namespace)
    if opened is None:
        opened = Session(
            session.fleet,
            session.network,
            session.retry,
            session.wire,
            master=PublishedMaster(session.network, namespace, addresses),
            dispatch_type=partial(ReadOnlyDispatch, namespace),
        )
        opened = session.opened.setdefault(namespace, opened)
    return opened
