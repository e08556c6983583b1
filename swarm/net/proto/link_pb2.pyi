from swarm.net.proto import messages_pb2 as _messages_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNKNOWN: _ClassVar[Role]
    ROLE_PEER: _ClassVar[Role]
    ROLE_COORDINATOR: _ClassVar[Role]
    ROLE_GUEST: _ClassVar[Role]
    ROLE_OBSERVER: _ClassVar[Role]

class Channel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANNEL_UNKNOWN: _ClassVar[Channel]
    CHANNEL_CONTROL: _ClassVar[Channel]
    CHANNEL_GRADIENT: _ClassVar[Channel]
    CHANNEL_ACTIVATION: _ClassVar[Channel]
    CHANNEL_REDUCE: _ClassVar[Channel]
    CHANNEL_BULK: _ClassVar[Channel]

class Refusal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACCEPTED: _ClassVar[Refusal]
    MALFORMED: _ClassVar[Refusal]
    OTHER_VERSION: _ClassVar[Refusal]
    OTHER_RUN: _ClassVar[Refusal]
    WRONG_PEER: _ClassVar[Refusal]
    WRONG_INCARNATION: _ClassVar[Refusal]
    STALE_INCARNATION: _ClassVar[Refusal]
    UNKNOWN_ROLE: _ClassVar[Refusal]
    NOT_FOR_GUESTS: _ClassVar[Refusal]
    CLOSING: _ClassVar[Refusal]
    NO_COORDINATOR: _ClassVar[Refusal]
    NO_PASS: _ClassVar[Refusal]
    PASS_VOID: _ClassVar[Refusal]
    SHUT_OUT: _ClassVar[Refusal]
    OTHER_ROLE: _ClassVar[Refusal]
    ASK_AGAIN: _ClassVar[Refusal]
ROLE_UNKNOWN: Role
ROLE_PEER: Role
ROLE_COORDINATOR: Role
ROLE_GUEST: Role
ROLE_OBSERVER: Role
CHANNEL_UNKNOWN: Channel
CHANNEL_CONTROL: Channel
CHANNEL_GRADIENT: Channel
CHANNEL_ACTIVATION: Channel
CHANNEL_REDUCE: Channel
CHANNEL_BULK: Channel
ACCEPTED: Refusal
MALFORMED: Refusal
OTHER_VERSION: Refusal
OTHER_RUN: Refusal
WRONG_PEER: Refusal
WRONG_INCARNATION: Refusal
STALE_INCARNATION: Refusal
UNKNOWN_ROLE: Refusal
NOT_FOR_GUESTS: Refusal
CLOSING: Refusal
NO_COORDINATOR: Refusal
NO_PASS: Refusal
PASS_VOID: Refusal
SHUT_OUT: Refusal
OTHER_ROLE: Refusal
ASK_AGAIN: Refusal

class Hello(_message.Message):
    __slots__ = ("protocol_version", "run_hash", "sender", "target_incarnation", "role", "stage", "channel", "certificate", "enrolment")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_HASH_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TARGET_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    ENROLMENT_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    run_hash: bytes
    sender: _messages_pb2.Actor
    target_incarnation: int
    role: Role
    stage: int
    channel: Channel
    certificate: bytes
    enrolment: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., run_hash: _Optional[bytes] = ..., sender: _Optional[_Union[_messages_pb2.Actor, _Mapping]] = ..., target_incarnation: _Optional[int] = ..., role: _Optional[_Union[Role, str]] = ..., stage: _Optional[int] = ..., channel: _Optional[_Union[Channel, str]] = ..., certificate: _Optional[bytes] = ..., enrolment: _Optional[bytes] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("refusal", "reason", "responder", "protocol_version", "role", "rival")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESPONDER_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RIVAL_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    reason: str
    responder: _messages_pb2.Actor
    protocol_version: int
    role: Role
    rival: bytes
    def __init__(self, refusal: _Optional[_Union[Refusal, str]] = ..., reason: _Optional[str] = ..., responder: _Optional[_Union[_messages_pb2.Actor, _Mapping]] = ..., protocol_version: _Optional[int] = ..., role: _Optional[_Union[Role, str]] = ..., rival: _Optional[bytes] = ...) -> None: ...

class BulkHead(_message.Message):
    __slots__ = ("error", "total", "busy")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    error: str
    total: int
    busy: bool
    def __init__(self, error: _Optional[str] = ..., total: _Optional[int] = ..., busy: _Optional[bool] = ...) -> None: ...

class SignedManifest(_message.Message):
    __slots__ = ("manifest", "public_key", "signature")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    public_key: bytes
    signature: bytes
    def __init__(self, manifest: _Optional[bytes] = ..., public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...
