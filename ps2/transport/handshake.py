"""The handshake of a data connection: both ends prove that they know the fleet's token before any request is read."""

from __future__ import annotations

from ps2.errors import AuthError, ProtocolError, PS2Error, UnavailableError
from ps2.protocol.error_details import from_detail, to_detail
from ps2.protocol.framing import HEAD, greeting_bytes, read_answer, read_greeting
from ps2.protocol.messages import PROTOCOL_VERSION
from ps2.protocol.pb import server_pb2 as pb
from ps2.transport import proof
from ps2.transport.connection import NAME_BYTES, Connection
from ps2.transport.proof import Tokens
from ps2.transport.sockets import receive, send_all


def handshake(
    connection: Connection, token: str | Tokens | None, server_id: str, deadline_s: float, name: bytes = b""
) -> None:
    """Run the client's side of the handshake. With a token, the server must prove that it knows the token.

    ``name``: the connection's name, which the client sends to the server (``connection.new_name``). An error before the
    server's proof may be forged.
    """
    tokens = Tokens.from_text(token)
    nonce = proof.new_nonce() if tokens is not None else b""
    greeting = pb.Greeting(protocol=PROTOCOL_VERSION, server_id=server_id, nonce=nonce, connection=name)
    send(connection, greeting)
    if tokens is not None:
        challenge = _receive_answer(connection, deadline_s).challenge
        shared_token = tokens.matching(
            (challenge.proof, *challenge.further_proofs),
            lambda token: proof.greeting_proof(token, "server", nonce, challenge.nonce, server_id),
        )
        if shared_token is None:
            raise AuthError("the process at this address does not know the fleet's token")
        client_proof = proof.greeting_proof(shared_token, "client", nonce, challenge.nonce, server_id)
        send(connection, pb.GreetingProof(proof=client_proof))
    _receive_answer(connection, deadline_s)


def admit(connection: Connection, tokens: Tokens | None, server_id: str, deadline_s: float) -> tuple[str | None, bytes]:
    """Run the server's side of the handshake before ``accept``. With tokens, the client must prove that it knows one.

    Returns the token that the client knows (None: no token is needed), and the client's name for the connection. On a
    PS2Error, the caller must refuse the client; ``refusal`` encodes the error.
    """
    greeting = receive(connection, read_greeting(pb.Greeting), deadline_s)
    if greeting.protocol != PROTOCOL_VERSION:
        raise ProtocolError(f"this server speaks protocol {PROTOCOL_VERSION}, the peer {greeting.protocol}")
    if greeting.server_id != server_id:
        raise ProtocolError("the peer wants to reach another server")
    if len(greeting.connection) not in (0, NAME_BYTES):
        raise ProtocolError(f"a connection's name: expected {NAME_BYTES} bytes, got {len(greeting.connection)}")
    if tokens is None:
        return None, greeting.connection
    if len(greeting.nonce) != proof.NONCE_BYTES:
        raise AuthError("no token given; pass the token file that the fleet was started with")
    nonce = proof.new_nonce()
    proofs = [proof.greeting_proof(token, "server", greeting.nonce, nonce, server_id) for token in tokens.all]
    challenge = pb.GreetingChallenge(nonce=nonce, proof=proofs[0], further_proofs=proofs[1:])
    send_all(connection, [memoryview(_answer_bytes(pb.ReplyHeader(challenge=challenge)))])
    answer = receive(connection, read_greeting(pb.GreetingProof), deadline_s)
    token = tokens.matching(
        [answer.proof], lambda token: proof.greeting_proof(token, "client", greeting.nonce, nonce, server_id)
    )
    if token is None:
        raise AuthError("this is not the fleet's token; pass the token file that the fleet was started with")
    return token, greeting.connection


def accept(connection: Connection) -> None:
    """Tell a client that it may send requests."""
    send_all(connection, [memoryview(_answer_bytes(pb.ReplyHeader()))])


def send(connection: Connection, message: pb.Greeting | pb.GreetingProof) -> None:
    send_all(connection, [memoryview(greeting_bytes(message))])


def refusal(error: PS2Error) -> bytes:
    """Return the answer to a client that is refused."""
    return _answer_bytes(pb.ReplyHeader(error=to_detail(error)))


def _answer_bytes(header: pb.ReplyHeader) -> bytes:
    encoded = header.SerializeToString()
    return HEAD.pack(len(encoded), 0) + encoded


def _receive_answer(connection: Connection, deadline_s: float) -> pb.ReplyHeader:
    try:
        header = receive(connection, read_answer(), deadline_s)
    except EOFError:
        raise UnavailableError("the server closed the connection") from None
    if header.HasField("error"):
        raise from_detail(header.error)
    return header
