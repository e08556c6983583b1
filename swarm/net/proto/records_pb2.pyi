from swarm.net.proto import link_pb2 as _link_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PeerRecord(_message.Message):
    __slots__ = ("run_hash", "peer", "incarnation", "addresses", "role", "stage", "version", "capacity", "expires_at")
    RUN_HASH_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    run_hash: bytes
    peer: str
    incarnation: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    role: _link_pb2.Role
    stage: int
    version: int
    capacity: float
    expires_at: float
    def __init__(self, run_hash: _Optional[bytes] = ..., peer: _Optional[str] = ..., incarnation: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ..., role: _Optional[_Union[_link_pb2.Role, str]] = ..., stage: _Optional[int] = ..., version: _Optional[int] = ..., capacity: _Optional[float] = ..., expires_at: _Optional[float] = ...) -> None: ...

class SignedRecord(_message.Message):
    __slots__ = ("peer", "signature")
    PEER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    signature: bytes
    def __init__(self, peer: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SealedRecord(_message.Message):
    __slots__ = ("sealed", "signature", "blind")
    SEALED_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    BLIND_FIELD_NUMBER: _ClassVar[int]
    sealed: bytes
    signature: bytes
    blind: bytes
    def __init__(self, sealed: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., blind: _Optional[bytes] = ...) -> None: ...

class AddressQuery(_message.Message):
    __slots__ = ("record", "peers")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    peers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, record: _Optional[bytes] = ..., peers: _Optional[_Iterable[str]] = ...) -> None: ...

class AddressAnswer(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, records: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Invite(_message.Message):
    __slots__ = ("addresses", "coordinator", "run_hash", "fingerprint", "sealed_pass", "seed", "key")
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    RUN_HASH_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SEALED_PASS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    coordinator: str
    run_hash: bytes
    fingerprint: str
    sealed_pass: bytes
    seed: bytes
    key: bytes
    def __init__(self, addresses: _Optional[_Iterable[str]] = ..., coordinator: _Optional[str] = ..., run_hash: _Optional[bytes] = ..., fingerprint: _Optional[str] = ..., sealed_pass: _Optional[bytes] = ..., seed: _Optional[bytes] = ..., key: _Optional[bytes] = ...) -> None: ...
