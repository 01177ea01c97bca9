"""Who knows the token is admitted once with each call; nobody else is, whatever they have listened to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.transport import proof
from ps2.transport.proof import Claim, Gatekeeper, Tokens

TOKEN = "a-token-of-the-fleet"
METHOD = "/ps2.v1.Server/Hello"
NONCE = bytes(range(32))


def claimed(gatekeeper, number=0, token=TOKEN, client_nonce=NONCE, method=METHOD, message=b"hello"):
    """What a client of that token sends with a call."""
    server_nonce, _ = gatekeeper.challenge(client_nonce)
    key = proof.session_key(token, client_nonce, server_nonce)
    digest = proof.digest(message)
    return Claim(client_nonce, server_nonce, number, digest, proof.call_proof(key, number, digest, method))


@pytest.fixture
def gatekeeper():
    return Gatekeeper(Tokens(TOKEN))


def test_challenge_when_server_knows_token_then_proof_shows_it(gatekeeper):
    nonce, [shown] = gatekeeper.challenge(NONCE)
    assert shown == proof.server_proof(TOKEN, NONCE, nonce)
    assert [shown] != Gatekeeper(Tokens("another-token")).challenge(NONCE)[1]


def test_call_when_sender_knows_token_then_answer_uses_same_key(gatekeeper):
    claim = claimed(gatekeeper)
    key = proof.session_key(TOKEN, NONCE, claim.server_nonce)
    admitted = gatekeeper.admit(METHOD, claim)
    assert admitted.covers(b"hello")
    assert not admitted.covers(b"hellp")
    assert admitted.proof("reply", b"x") == proof.answer_proof(key, "reply", 0, proof.digest(b"x"))


def test_call_when_the_token_is_another_then_it_is_refused(gatekeeper):
    assert gatekeeper.admit(METHOD, claimed(gatekeeper, token="another-token")) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"number": 1},
        {"digest": proof.digest(b"other")},
        {"proof": bytes(32)},
        {"proof": b""},
        {"client_nonce": bytes(32)},
        {"client_nonce": b""},
        {"server_nonce": bytes(32)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_call_when_anything_of_it_was_changed_then_it_is_refused(gatekeeper, changed):
    assert gatekeeper.admit(METHOD, replace(claimed(gatekeeper), **changed)) is None


def test_call_when_meant_for_another_method_then_is_refused(gatekeeper):
    assert gatekeeper.admit("/ps2.v1.Server/Stop", claimed(gatekeeper)) is None


def test_call_when_meant_for_another_process_then_is_refused(gatekeeper):
    assert gatekeeper.admit(METHOD, claimed(Gatekeeper(Tokens(TOKEN)))) is None


@given(st.lists(st.integers(0, 3 * proof.WINDOW), min_size=1, max_size=60))
def test_calls_when_in_any_order_then_each_is_admitted_once(numbers):
    gatekeeper, admitted = Gatekeeper(Tokens(TOKEN)), []
    for number in numbers:
        if gatekeeper.admit(METHOD, claimed(gatekeeper, number)) is not None:
            admitted.append(number)
    assert len(admitted) == len(set(admitted))
    if max(numbers) - min(numbers) < proof.WINDOW:
        assert set(admitted) == set(numbers)


def test_clients_when_too_many_then_all_authenticate_again(gatekeeper, monkeypatch):
    monkeypatch.setattr(proof, "MAX_SESSIONS", 2)
    first = claimed(gatekeeper, client_nonce=b"1" * 32)
    assert gatekeeper.admit(METHOD, first)
    assert gatekeeper.admit(METHOD, claimed(gatekeeper, client_nonce=b"2" * 32))
    assert gatekeeper.admit(METHOD, claimed(gatekeeper, client_nonce=b"3" * 32))
    assert gatekeeper.admit(METHOD, first) is None
    assert gatekeeper.admit(METHOD, claimed(gatekeeper, client_nonce=b"1" * 32))


def test_call_when_token_rotates_then_old_is_valid_until_end():
    tokens = Tokens("a-new-token\n" + TOKEN)
    gatekeeper = Gatekeeper(tokens)
    nonce, proofs = gatekeeper.challenge(NONCE)
    assert proofs == [proof.server_proof(token, NONCE, nonce) for token in ("a-new-token", TOKEN)]
    fresh = bytes(32)
    assert gatekeeper.admit(METHOD, claimed(gatekeeper)) is not None
    assert gatekeeper.admit(METHOD, claimed(gatekeeper, token="a-new-token", client_nonce=fresh)) is not None
    tokens.renew("a-new-token")
    assert gatekeeper.admit(METHOD, claimed(gatekeeper, 1)) is None
    assert gatekeeper.admit(METHOD, claimed(gatekeeper, 1, token="a-new-token", client_nonce=fresh)) is not None
