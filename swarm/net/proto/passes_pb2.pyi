from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Pass(_message.Message):
    __slots__ = ("run_hash", "serial", "name", "devices", "expires_at", "ticket", "observes", "open")
    RUN_HASH_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    OBSERVES_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    run_hash: bytes
    serial: bytes
    name: str
    devices: int
    expires_at: int
    ticket: bytes
    observes: bool
    open: bool
    def __init__(self, run_hash: _Optional[bytes] = ..., serial: _Optional[bytes] = ..., name: _Optional[str] = ..., devices: _Optional[int] = ..., expires_at: _Optional[int] = ..., ticket: _Optional[bytes] = ..., observes: _Optional[bool] = ..., open: _Optional[bool] = ...) -> None: ...

class Certificate(_message.Message):
    __slots__ = ("run_hash", "serial", "name", "peer", "issuer", "issued_at", "expires_at", "observes")
    RUN_HASH_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    ISSUER_FIELD_NUMBER: _ClassVar[int]
    ISSUED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    OBSERVES_FIELD_NUMBER: _ClassVar[int]
    run_hash: bytes
    serial: bytes
    name: str
    peer: str
    issuer: str
    issued_at: int
    expires_at: int
    observes: bool
    def __init__(self, run_hash: _Optional[bytes] = ..., serial: _Optional[bytes] = ..., name: _Optional[str] = ..., peer: _Optional[str] = ..., issuer: _Optional[str] = ..., issued_at: _Optional[int] = ..., expires_at: _Optional[int] = ..., observes: _Optional[bool] = ...) -> None: ...

class ProcessCard(_message.Message):
    __slots__ = ("run_hash", "number", "nonce", "addresses")
    RUN_HASH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    run_hash: bytes
    number: int
    nonce: bytes
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run_hash: _Optional[bytes] = ..., number: _Optional[int] = ..., nonce: _Optional[bytes] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class Sealed(_message.Message):
    __slots__ = ("body", "signature")
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    signature: bytes
    def __init__(self, body: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Enrolment(_message.Message):
    __slots__ = ("sealed_pass", "signature")
    SEALED_PASS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    sealed_pass: bytes
    signature: bytes
    def __init__(self, sealed_pass: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...
