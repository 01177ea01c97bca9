"""A fleet's token is replaced while clients talk: who knows one that counts is let in, at once or again."""

from __future__ import annotations

import pytest

from ps2.errors import AuthError
from ps2.protocol.messages import Reply
from ps2.transport.proof import Tokens
from tests.contract.servers import TOKEN, an_engine, connected, op, outcomes, reading, serving

NEW = "the-next-token-of-the-fleet"
SUM = reading(op("sum", 0))


def test_clients_when_token_rotates_then_both_work_until_retired():
    tokens = Tokens(TOKEN)
    with (
        serving(an_engine(), token=tokens) as server,
        connected("tcp") as old,
        connected("tcp", f"{NEW}\n{TOKEN}") as both,
        connected("tcp", NEW) as new,
    ):
        clients = (old, both, new)

        def talk(client):
            (outcome,) = outcomes(client, server.address, SUM)
            return True if isinstance(outcome, Reply) else type(outcome)

        assert [talk(client) for client in (old, both)] == [True, True]
        tokens.renew(f"{NEW}\n{TOKEN}")
        assert [talk(client) for client in clients] == [True, True, True]
        tokens.renew(NEW)
        # A connection that began with the old one ends with the next request, which may come again.
        for client in (old, both):
            talk(client)
        assert [talk(client) for client in (both, new)] == [True, True]
        assert talk(old) is not True


@pytest.mark.parametrize("carrier", ["execute", "tcp"])
def test_client_when_it_knows_neither_token_then_auth_error(carrier):
    with serving(an_engine(), token=Tokens(f"{NEW}\n{TOKEN}")) as server, connected(carrier, "a-wrong-token") as client:
        (outcome,) = outcomes(client, server.address, SUM)
    assert isinstance(outcome, AuthError)
