"""One server for each module, and a transport to it for every carrier."""

from __future__ import annotations

import pytest

from tests.contract.servers import CARRIERS, an_engine, connected, serving


@pytest.fixture(scope="module")
def engine():
    return an_engine()


@pytest.fixture(scope="module")
def server(engine):
    with serving(engine) as running:
        yield running


@pytest.fixture(scope="module")
def address(server):
    return server.address


@pytest.fixture(params=CARRIERS)
def carrier(request):
    """The way that requests take; a test that does not go every way parametrizes it."""
    return request.param


@pytest.fixture
def transport(carrier):
    with connected(carrier) as created:
        yield created
