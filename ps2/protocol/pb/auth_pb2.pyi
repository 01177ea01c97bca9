from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ChallengeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChallengeReply(_message.Message):
    __slots__ = ("nonce", "proof", "further_proofs")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    FURTHER_PROOFS_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    further_proofs: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ..., further_proofs: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CallProof(_message.Message):
    __slots__ = ("client_nonce", "server_nonce", "number", "digest", "proof")
    CLIENT_NONCE_FIELD_NUMBER: _ClassVar[int]
    SERVER_NONCE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    client_nonce: bytes
    server_nonce: bytes
    number: int
    digest: bytes
    proof: bytes
    def __init__(self, client_nonce: _Optional[bytes] = ..., server_nonce: _Optional[bytes] = ..., number: _Optional[int] = ..., digest: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...
