from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PassKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRAIN: _ClassVar[PassKind]
    EVALUATE: _ClassVar[PassKind]
    GENERATE: _ClassVar[PassKind]

class Direction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FORWARD: _ClassVar[Direction]
    BACKWARD: _ClassVar[Direction]

class ComputeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HOST_FP32: _ClassVar[ComputeKind]
    HOST_BF16: _ClassVar[ComputeKind]
    HOST_FP16: _ClassVar[ComputeKind]
    CARD_FP32: _ClassVar[ComputeKind]
    CARD_BF16: _ClassVar[ComputeKind]
    CARD_FP16: _ClassVar[ComputeKind]
    OFFLOAD_FP32: _ClassVar[ComputeKind]
    OFFLOAD_BF16: _ClassVar[ComputeKind]
    OFFLOAD_FP16: _ClassVar[ComputeKind]
TRAIN: PassKind
EVALUATE: PassKind
GENERATE: PassKind
FORWARD: Direction
BACKWARD: Direction
HOST_FP32: ComputeKind
HOST_BF16: ComputeKind
HOST_FP16: ComputeKind
CARD_FP32: ComputeKind
CARD_BF16: ComputeKind
CARD_FP16: ComputeKind
OFFLOAD_FP32: ComputeKind
OFFLOAD_BF16: ComputeKind
OFFLOAD_FP16: ComputeKind

class Header(_message.Message):
    __slots__ = ("introduce", "restart", "frame", "reduce_part", "reduced_part", "want", "relay", "status", "prepared", "result", "open", "amend", "release", "released", "decide", "fenced", "assign", "join", "unreachable", "failed", "leave", "halt", "canvass", "vote", "append", "appended", "adjourn", "excuse", "steer", "steered", "dismiss", "twin", "pending", "take_seats", "leave_seat", "banned", "prove", "proof", "disproved", "telemetry", "ping", "pong", "log_want", "log_chunk", "padding")
    INTRODUCE_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    REDUCE_PART_FIELD_NUMBER: _ClassVar[int]
    REDUCED_PART_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    AMEND_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    DECIDE_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    HALT_FIELD_NUMBER: _ClassVar[int]
    CANVASS_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    APPENDED_FIELD_NUMBER: _ClassVar[int]
    ADJOURN_FIELD_NUMBER: _ClassVar[int]
    EXCUSE_FIELD_NUMBER: _ClassVar[int]
    STEER_FIELD_NUMBER: _ClassVar[int]
    STEERED_FIELD_NUMBER: _ClassVar[int]
    DISMISS_FIELD_NUMBER: _ClassVar[int]
    TWIN_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    TAKE_SEATS_FIELD_NUMBER: _ClassVar[int]
    LEAVE_SEAT_FIELD_NUMBER: _ClassVar[int]
    BANNED_FIELD_NUMBER: _ClassVar[int]
    PROVE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    DISPROVED_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    LOG_WANT_FIELD_NUMBER: _ClassVar[int]
    LOG_CHUNK_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    introduce: _containers.RepeatedCompositeFieldContainer[Actor]
    restart: bool
    frame: Frame
    reduce_part: ReducePart
    reduced_part: ReducedPart
    want: Want
    relay: Relay
    status: Status
    prepared: Prepared
    result: Result
    open: Open
    amend: Amend
    release: Release
    released: Released
    decide: Decide
    fenced: Fenced
    assign: Assign
    join: Join
    unreachable: Unreachable
    failed: Failed
    leave: Leave
    halt: Halt
    canvass: Canvass
    vote: Vote
    append: Append
    appended: Appended
    adjourn: Adjourn
    excuse: Excuse
    steer: Steer
    steered: Steered
    dismiss: Dismiss
    twin: Twin
    pending: Pending
    take_seats: TakeSeats
    leave_seat: LeaveSeat
    banned: Banned
    prove: Prove
    proof: Proof
    disproved: Disproved
    telemetry: Telemetry
    ping: Ping
    pong: Pong
    log_want: LogWant
    log_chunk: LogChunk
    padding: Padding
    def __init__(self, introduce: _Optional[_Iterable[_Union[Actor, _Mapping]]] = ..., restart: _Optional[bool] = ..., frame: _Optional[_Union[Frame, _Mapping]] = ..., reduce_part: _Optional[_Union[ReducePart, _Mapping]] = ..., reduced_part: _Optional[_Union[ReducedPart, _Mapping]] = ..., want: _Optional[_Union[Want, _Mapping]] = ..., relay: _Optional[_Union[Relay, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., amend: _Optional[_Union[Amend, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., released: _Optional[_Union[Released, _Mapping]] = ..., decide: _Optional[_Union[Decide, _Mapping]] = ..., fenced: _Optional[_Union[Fenced, _Mapping]] = ..., assign: _Optional[_Union[Assign, _Mapping]] = ..., join: _Optional[_Union[Join, _Mapping]] = ..., unreachable: _Optional[_Union[Unreachable, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., halt: _Optional[_Union[Halt, _Mapping]] = ..., canvass: _Optional[_Union[Canvass, _Mapping]] = ..., vote: _Optional[_Union[Vote, _Mapping]] = ..., append: _Optional[_Union[Append, _Mapping]] = ..., appended: _Optional[_Union[Appended, _Mapping]] = ..., adjourn: _Optional[_Union[Adjourn, _Mapping]] = ..., excuse: _Optional[_Union[Excuse, _Mapping]] = ..., steer: _Optional[_Union[Steer, _Mapping]] = ..., steered: _Optional[_Union[Steered, _Mapping]] = ..., dismiss: _Optional[_Union[Dismiss, _Mapping]] = ..., twin: _Optional[_Union[Twin, _Mapping]] = ..., pending: _Optional[_Union[Pending, _Mapping]] = ..., take_seats: _Optional[_Union[TakeSeats, _Mapping]] = ..., leave_seat: _Optional[_Union[LeaveSeat, _Mapping]] = ..., banned: _Optional[_Union[Banned, _Mapping]] = ..., prove: _Optional[_Union[Prove, _Mapping]] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ..., disproved: _Optional[_Union[Disproved, _Mapping]] = ..., telemetry: _Optional[_Union[Telemetry, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., log_want: _Optional[_Union[LogWant, _Mapping]] = ..., log_chunk: _Optional[_Union[LogChunk, _Mapping]] = ..., padding: _Optional[_Union[Padding, _Mapping]] = ...) -> None: ...

class Actor(_message.Message):
    __slots__ = ("peer", "incarnation")
    PEER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    peer: str
    incarnation: int
    def __init__(self, peer: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class PassId(_message.Message):
    __slots__ = ("term", "step", "index")
    TERM_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    term: int
    step: int
    index: int
    def __init__(self, term: _Optional[int] = ..., step: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class FrameKey(_message.Message):
    __slots__ = ("pass_id", "boundary", "direction", "microbatch")
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    pass_id: PassId
    boundary: int
    direction: Direction
    microbatch: int
    def __init__(self, pass_id: _Optional[_Union[PassId, _Mapping]] = ..., boundary: _Optional[int] = ..., direction: _Optional[_Union[Direction, str]] = ..., microbatch: _Optional[int] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("pass_id", "stage", "number", "partner")
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PARTNER_FIELD_NUMBER: _ClassVar[int]
    pass_id: PassId
    stage: int
    number: int
    partner: int
    def __init__(self, pass_id: _Optional[_Union[PassId, _Mapping]] = ..., stage: _Optional[int] = ..., number: _Optional[int] = ..., partner: _Optional[int] = ...) -> None: ...

class PartKey(_message.Message):
    __slots__ = ("attempt", "bucket", "contributor")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTOR_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    bucket: int
    contributor: int
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., bucket: _Optional[int] = ..., contributor: _Optional[int] = ...) -> None: ...

class SumKey(_message.Message):
    __slots__ = ("attempt", "bucket")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    bucket: int
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., bucket: _Optional[int] = ...) -> None: ...

class Key(_message.Message):
    __slots__ = ("frame", "part", "sum")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    frame: FrameKey
    part: PartKey
    sum: SumKey
    def __init__(self, frame: _Optional[_Union[FrameKey, _Mapping]] = ..., part: _Optional[_Union[PartKey, _Mapping]] = ..., sum: _Optional[_Union[SumKey, _Mapping]] = ...) -> None: ...

class Lineage(_message.Message):
    __slots__ = ("source", "base", "fresh", "trail")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    TRAIL_FIELD_NUMBER: _ClassVar[int]
    source: int
    base: int
    fresh: bool
    trail: int
    def __init__(self, source: _Optional[int] = ..., base: _Optional[int] = ..., fresh: _Optional[bool] = ..., trail: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("inputs", "sources", "trails", "echoes", "fresh")
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    TRAILS_FIELD_NUMBER: _ClassVar[int]
    ECHOES_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    inputs: int
    sources: int
    trails: int
    echoes: int
    fresh: bytes
    def __init__(self, inputs: _Optional[int] = ..., sources: _Optional[int] = ..., trails: _Optional[int] = ..., echoes: _Optional[int] = ..., fresh: _Optional[bytes] = ...) -> None: ...

class StageTable(_message.Message):
    __slots__ = ("number", "roster", "assignment", "carried", "lines")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    number: int
    roster: _containers.RepeatedScalarFieldContainer[int]
    assignment: _containers.RepeatedScalarFieldContainer[int]
    carried: _containers.RepeatedScalarFieldContainer[int]
    lines: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, number: _Optional[int] = ..., roster: _Optional[_Iterable[int]] = ..., assignment: _Optional[_Iterable[int]] = ..., carried: _Optional[_Iterable[int]] = ..., lines: _Optional[_Iterable[int]] = ...) -> None: ...

class Contribution(_message.Message):
    __slots__ = ("microbatches", "carried")
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    microbatches: bytes
    carried: int
    def __init__(self, microbatches: _Optional[bytes] = ..., carried: _Optional[int] = ...) -> None: ...

class StageOutcome(_message.Message):
    __slots__ = ("number", "digest", "contributions")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    number: int
    digest: str
    contributions: _containers.RepeatedCompositeFieldContainer[Contribution]
    def __init__(self, number: _Optional[int] = ..., digest: _Optional[str] = ..., contributions: _Optional[_Iterable[_Union[Contribution, _Mapping]]] = ...) -> None: ...

class CodecPair(_message.Message):
    __slots__ = ("forward", "backward")
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_FIELD_NUMBER: _ClassVar[int]
    forward: str
    backward: str
    def __init__(self, forward: _Optional[str] = ..., backward: _Optional[str] = ...) -> None: ...

class LinkRate(_message.Message):
    __slots__ = ("sender", "bytes_per_s")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    sender: int
    bytes_per_s: float
    def __init__(self, sender: _Optional[int] = ..., bytes_per_s: _Optional[float] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("term", "step", "scale", "loss_sum", "tokens", "gradient_norm", "outcomes", "key_frames", "codecs", "rate", "update")
    TERM_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    KEY_FRAMES_FIELD_NUMBER: _ClassVar[int]
    CODECS_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    term: int
    step: int
    scale: float
    loss_sum: float
    tokens: int
    gradient_norm: float
    outcomes: _containers.RepeatedCompositeFieldContainer[StageOutcome]
    key_frames: _containers.RepeatedScalarFieldContainer[bytes]
    codecs: _containers.RepeatedCompositeFieldContainer[CodecPair]
    rate: float
    update: Update
    def __init__(self, term: _Optional[int] = ..., step: _Optional[int] = ..., scale: _Optional[float] = ..., loss_sum: _Optional[float] = ..., tokens: _Optional[int] = ..., gradient_norm: _Optional[float] = ..., outcomes: _Optional[_Iterable[_Union[StageOutcome, _Mapping]]] = ..., key_frames: _Optional[_Iterable[bytes]] = ..., codecs: _Optional[_Iterable[_Union[CodecPair, _Mapping]]] = ..., rate: _Optional[float] = ..., update: _Optional[_Union[Update, _Mapping]] = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("learning_rate", "bias1", "bias2")
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    BIAS1_FIELD_NUMBER: _ClassVar[int]
    BIAS2_FIELD_NUMBER: _ClassVar[int]
    learning_rate: float
    bias1: float
    bias2: float
    def __init__(self, learning_rate: _Optional[float] = ..., bias1: _Optional[float] = ..., bias2: _Optional[float] = ...) -> None: ...

class Assign(_message.Message):
    __slots__ = ("term", "stage", "version", "archive", "move", "donors")
    TERM_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    DONORS_FIELD_NUMBER: _ClassVar[int]
    term: int
    stage: int
    version: int
    archive: int
    move: int
    donors: _containers.RepeatedCompositeFieldContainer[Donor]
    def __init__(self, term: _Optional[int] = ..., stage: _Optional[int] = ..., version: _Optional[int] = ..., archive: _Optional[int] = ..., move: _Optional[int] = ..., donors: _Optional[_Iterable[_Union[Donor, _Mapping]]] = ...) -> None: ...

class Donor(_message.Message):
    __slots__ = ("actor", "person")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    PERSON_FIELD_NUMBER: _ClassVar[int]
    actor: int
    person: int
    def __init__(self, actor: _Optional[int] = ..., person: _Optional[int] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("pass_id", "kind", "tables", "decision", "codecs", "nonfinite", "listeners", "rolled_back_in", "step_s", "save", "steps", "donors")
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    CODECS_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_FIELD_NUMBER: _ClassVar[int]
    LISTENERS_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_IN_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DONORS_FIELD_NUMBER: _ClassVar[int]
    pass_id: PassId
    kind: PassKind
    tables: _containers.RepeatedCompositeFieldContainer[StageTable]
    decision: Decision
    codecs: _containers.RepeatedCompositeFieldContainer[CodecPair]
    nonfinite: bool
    listeners: _containers.RepeatedCompositeFieldContainer[Listener]
    rolled_back_in: int
    step_s: float
    save: bool
    steps: int
    donors: _containers.RepeatedCompositeFieldContainer[Donor]
    def __init__(self, pass_id: _Optional[_Union[PassId, _Mapping]] = ..., kind: _Optional[_Union[PassKind, str]] = ..., tables: _Optional[_Iterable[_Union[StageTable, _Mapping]]] = ..., decision: _Optional[_Union[Decision, _Mapping]] = ..., codecs: _Optional[_Iterable[_Union[CodecPair, _Mapping]]] = ..., nonfinite: _Optional[bool] = ..., listeners: _Optional[_Iterable[_Union[Listener, _Mapping]]] = ..., rolled_back_in: _Optional[int] = ..., step_s: _Optional[float] = ..., save: _Optional[bool] = ..., steps: _Optional[int] = ..., donors: _Optional[_Iterable[_Union[Donor, _Mapping]]] = ...) -> None: ...

class Listener(_message.Message):
    __slots__ = ("actor", "stage", "version", "loads", "move", "void_before")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    VOID_BEFORE_FIELD_NUMBER: _ClassVar[int]
    actor: int
    stage: int
    version: int
    loads: bool
    move: int
    void_before: int
    def __init__(self, actor: _Optional[int] = ..., stage: _Optional[int] = ..., version: _Optional[int] = ..., loads: _Optional[bool] = ..., move: _Optional[int] = ..., void_before: _Optional[int] = ...) -> None: ...

class Amend(_message.Message):
    __slots__ = ("pass_id", "stage", "table", "reason")
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    pass_id: PassId
    stage: int
    table: StageTable
    reason: str
    def __init__(self, pass_id: _Optional[_Union[PassId, _Mapping]] = ..., stage: _Optional[int] = ..., table: _Optional[_Union[StageTable, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("pass_id", "number", "microbatches")
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    pass_id: PassId
    number: int
    microbatches: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pass_id: _Optional[_Union[PassId, _Mapping]] = ..., number: _Optional[int] = ..., microbatches: _Optional[_Iterable[int]] = ...) -> None: ...

class Decide(_message.Message):
    __slots__ = ("decision", "finished", "term", "save")
    DECISION_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    decision: Decision
    finished: bool
    term: int
    save: bool
    def __init__(self, decision: _Optional[_Union[Decision, _Mapping]] = ..., finished: _Optional[bool] = ..., term: _Optional[int] = ..., save: _Optional[bool] = ...) -> None: ...

class Halt(_message.Message):
    __slots__ = ("reason", "term", "expelled")
    REASON_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    EXPELLED_FIELD_NUMBER: _ClassVar[int]
    reason: str
    term: int
    expelled: bool
    def __init__(self, reason: _Optional[str] = ..., term: _Optional[int] = ..., expelled: _Optional[bool] = ...) -> None: ...

class TermEntry(_message.Message):
    __slots__ = ("ballot", "term", "rollback_to")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_TO_FIELD_NUMBER: _ClassVar[int]
    ballot: int
    term: int
    rollback_to: int
    def __init__(self, ballot: _Optional[int] = ..., term: _Optional[int] = ..., rollback_to: _Optional[int] = ...) -> None: ...

class DecisionEntry(_message.Message):
    __slots__ = ("ballot", "decision")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    ballot: int
    decision: Decision
    def __init__(self, ballot: _Optional[int] = ..., decision: _Optional[_Union[Decision, _Mapping]] = ...) -> None: ...

class ArchivedEntry(_message.Message):
    __slots__ = ("ballot", "version", "term", "digests")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    ballot: int
    version: int
    term: int
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ballot: _Optional[int] = ..., version: _Optional[int] = ..., term: _Optional[int] = ..., digests: _Optional[_Iterable[str]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("number", "name", "value", "by", "why", "request")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    number: int
    name: str
    value: str
    by: str
    why: str
    request: str
    def __init__(self, number: _Optional[int] = ..., name: _Optional[str] = ..., value: _Optional[str] = ..., by: _Optional[str] = ..., why: _Optional[str] = ..., request: _Optional[str] = ...) -> None: ...

class CommandEntry(_message.Message):
    __slots__ = ("ballot", "command")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ballot: int
    command: Command
    def __init__(self, ballot: _Optional[int] = ..., command: _Optional[_Union[Command, _Mapping]] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("term", "decision", "archived", "command")
    TERM_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    term: TermEntry
    decision: DecisionEntry
    archived: ArchivedEntry
    command: CommandEntry
    def __init__(self, term: _Optional[_Union[TermEntry, _Mapping]] = ..., decision: _Optional[_Union[DecisionEntry, _Mapping]] = ..., archived: _Optional[_Union[ArchivedEntry, _Mapping]] = ..., command: _Optional[_Union[CommandEntry, _Mapping]] = ...) -> None: ...

class Canvass(_message.Message):
    __slots__ = ("ballot", "last_index", "last_ballot", "binding")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_BALLOT_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    ballot: int
    last_index: int
    last_ballot: int
    binding: bool
    def __init__(self, ballot: _Optional[int] = ..., last_index: _Optional[int] = ..., last_ballot: _Optional[int] = ..., binding: _Optional[bool] = ...) -> None: ...

class Vote(_message.Message):
    __slots__ = ("ballot", "granted", "binding")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    ballot: int
    granted: bool
    binding: bool
    def __init__(self, ballot: _Optional[int] = ..., granted: _Optional[bool] = ..., binding: _Optional[bool] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("version", "term", "digests")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    term: int
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[int] = ..., term: _Optional[int] = ..., digests: _Optional[_Iterable[str]] = ...) -> None: ...

class Append(_message.Message):
    __slots__ = ("ballot", "before", "before_ballot", "entries", "committed", "offer")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_BALLOT_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    ballot: int
    before: int
    before_ballot: int
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    committed: int
    offer: Offer
    def __init__(self, ballot: _Optional[int] = ..., before: _Optional[int] = ..., before_ballot: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., committed: _Optional[int] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ...) -> None: ...

class Appended(_message.Message):
    __slots__ = ("ballot", "matched", "refused", "held", "held_in", "peers")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    MATCHED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    HELD_IN_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    ballot: int
    matched: int
    refused: bool
    held: int
    held_in: int
    peers: int
    def __init__(self, ballot: _Optional[int] = ..., matched: _Optional[int] = ..., refused: _Optional[bool] = ..., held: _Optional[int] = ..., held_in: _Optional[int] = ..., peers: _Optional[int] = ...) -> None: ...

class Adjourn(_message.Message):
    __slots__ = ("ballot", "reason", "failed")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ballot: int
    reason: str
    failed: bool
    def __init__(self, ballot: _Optional[int] = ..., reason: _Optional[str] = ..., failed: _Optional[bool] = ...) -> None: ...

class Steer(_message.Message):
    __slots__ = ("request", "command", "value", "by", "why")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    request: str
    command: str
    value: str
    by: str
    why: str
    def __init__(self, request: _Optional[str] = ..., command: _Optional[str] = ..., value: _Optional[str] = ..., by: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class Steered(_message.Message):
    __slots__ = ("request", "number", "text", "error")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request: str
    number: int
    text: str
    error: str
    def __init__(self, request: _Optional[str] = ..., number: _Optional[int] = ..., text: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class Fenced(_message.Message):
    __slots__ = ("pass_id", "reason")
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    pass_id: PassId
    reason: str
    def __init__(self, pass_id: _Optional[_Union[PassId, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Prove(_message.Message):
    __slots__ = ("term", "stage", "version", "nonce")
    TERM_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    term: int
    stage: int
    version: int
    nonce: int
    def __init__(self, term: _Optional[int] = ..., stage: _Optional[int] = ..., version: _Optional[int] = ..., nonce: _Optional[int] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("nonce", "checksum")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    checksum: int
    def __init__(self, nonce: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class Disproved(_message.Message):
    __slots__ = ("term", "nonce")
    TERM_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    term: int
    nonce: int
    def __init__(self, term: _Optional[int] = ..., nonce: _Optional[int] = ...) -> None: ...

class Twin(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    def __init__(self, incarnation: _Optional[int] = ...) -> None: ...

class Banned(_message.Message):
    __slots__ = ("number", "peers")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    number: int
    peers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, number: _Optional[int] = ..., peers: _Optional[_Iterable[str]] = ...) -> None: ...

class TakeSeats(_message.Message):
    __slots__ = ("term", "seats", "reason")
    TERM_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    term: int
    seats: int
    reason: str
    def __init__(self, term: _Optional[int] = ..., seats: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveSeat(_message.Message):
    __slots__ = ("term", "reason")
    TERM_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    term: int
    reason: str
    def __init__(self, term: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Excuse(_message.Message):
    __slots__ = ("term", "reason")
    TERM_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    term: int
    reason: str
    def __init__(self, term: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Seating(_message.Message):
    __slots__ = ("peers", "grows", "on_call")
    PEERS_FIELD_NUMBER: _ClassVar[int]
    GROWS_FIELD_NUMBER: _ClassVar[int]
    ON_CALL_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedScalarFieldContainer[str]
    grows: bool
    on_call: bool
    def __init__(self, peers: _Optional[_Iterable[str]] = ..., grows: _Optional[bool] = ..., on_call: _Optional[bool] = ...) -> None: ...

class Dismiss(_message.Message):
    __slots__ = ("term", "reason")
    TERM_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    term: int
    reason: str
    def __init__(self, term: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("actor", "stage", "capacity", "sequence", "memory", "uplink", "downlink", "seating", "paused", "kind")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    UPLINK_FIELD_NUMBER: _ClassVar[int]
    DOWNLINK_FIELD_NUMBER: _ClassVar[int]
    SEATING_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    actor: int
    stage: int
    capacity: float
    sequence: int
    memory: int
    uplink: float
    downlink: float
    seating: Seating
    paused: str
    kind: ComputeKind
    def __init__(self, actor: _Optional[int] = ..., stage: _Optional[int] = ..., capacity: _Optional[float] = ..., sequence: _Optional[int] = ..., memory: _Optional[int] = ..., uplink: _Optional[float] = ..., downlink: _Optional[float] = ..., seating: _Optional[_Union[Seating, _Mapping]] = ..., paused: _Optional[str] = ..., kind: _Optional[_Union[ComputeKind, str]] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("attempt", "digest", "squared_norm", "loss_sum", "finite", "receipt", "sketch", "seal", "outline", "shared", "state", "spoilt", "unusable")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SQUARED_NORM_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    FINITE_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    SKETCH_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    OUTLINE_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SPOILT_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    digest: str
    squared_norm: float
    loss_sum: float
    finite: bool
    receipt: Receipt
    sketch: bytes
    seal: int
    outline: bytes
    shared: str
    state: int
    spoilt: bool
    unusable: bool
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., digest: _Optional[str] = ..., squared_norm: _Optional[float] = ..., loss_sum: _Optional[float] = ..., finite: _Optional[bool] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., sketch: _Optional[bytes] = ..., seal: _Optional[int] = ..., outline: _Optional[bytes] = ..., shared: _Optional[str] = ..., state: _Optional[int] = ..., spoilt: _Optional[bool] = ..., unusable: _Optional[bool] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("actor", "stage", "version", "pass_id", "numbers", "done", "prepared", "seconds_per_microbatch", "fenced", "queued", "checkpoint_version", "checkpoint_digest", "sequence", "state_term", "term", "uplink", "links", "leaving", "heard", "loading", "lacks", "fetched", "capacity", "memory", "offered_uplink", "downlink", "forwarded", "reduced", "awaited", "seating", "spoilt", "paused", "kind")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_PER_MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STATE_TERM_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    UPLINK_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    LOADING_FIELD_NUMBER: _ClassVar[int]
    LACKS_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    OFFERED_UPLINK_FIELD_NUMBER: _ClassVar[int]
    DOWNLINK_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    REDUCED_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    SEATING_FIELD_NUMBER: _ClassVar[int]
    SPOILT_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    actor: int
    stage: int
    version: int
    pass_id: PassId
    numbers: _containers.RepeatedScalarFieldContainer[int]
    done: bytes
    prepared: Prepared
    seconds_per_microbatch: float
    fenced: bool
    queued: int
    checkpoint_version: int
    checkpoint_digest: str
    sequence: int
    state_term: int
    term: int
    uplink: float
    links: _containers.RepeatedCompositeFieldContainer[LinkRate]
    leaving: bool
    heard: PassId
    loading: int
    lacks: int
    fetched: int
    capacity: float
    memory: int
    offered_uplink: float
    downlink: float
    forwarded: bytes
    reduced: int
    awaited: _containers.RepeatedScalarFieldContainer[int]
    seating: Seating
    spoilt: bool
    paused: str
    kind: ComputeKind
    def __init__(self, actor: _Optional[int] = ..., stage: _Optional[int] = ..., version: _Optional[int] = ..., pass_id: _Optional[_Union[PassId, _Mapping]] = ..., numbers: _Optional[_Iterable[int]] = ..., done: _Optional[bytes] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., seconds_per_microbatch: _Optional[float] = ..., fenced: _Optional[bool] = ..., queued: _Optional[int] = ..., checkpoint_version: _Optional[int] = ..., checkpoint_digest: _Optional[str] = ..., sequence: _Optional[int] = ..., state_term: _Optional[int] = ..., term: _Optional[int] = ..., uplink: _Optional[float] = ..., links: _Optional[_Iterable[_Union[LinkRate, _Mapping]]] = ..., leaving: _Optional[bool] = ..., heard: _Optional[_Union[PassId, _Mapping]] = ..., loading: _Optional[int] = ..., lacks: _Optional[int] = ..., fetched: _Optional[int] = ..., capacity: _Optional[float] = ..., memory: _Optional[int] = ..., offered_uplink: _Optional[float] = ..., downlink: _Optional[float] = ..., forwarded: _Optional[bytes] = ..., reduced: _Optional[int] = ..., awaited: _Optional[_Iterable[int]] = ..., seating: _Optional[_Union[Seating, _Mapping]] = ..., spoilt: _Optional[bool] = ..., paused: _Optional[str] = ..., kind: _Optional[_Union[ComputeKind, str]] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ("pass_id", "number", "microbatches")
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    pass_id: PassId
    number: int
    microbatches: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pass_id: _Optional[_Union[PassId, _Mapping]] = ..., number: _Optional[int] = ..., microbatches: _Optional[_Iterable[int]] = ...) -> None: ...

class Unreachable(_message.Message):
    __slots__ = ("pass_id", "other")
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    pass_id: PassId
    other: int
    def __init__(self, pass_id: _Optional[_Union[PassId, _Mapping]] = ..., other: _Optional[int] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("pass_id", "microbatch", "loss_sum", "token")
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    pass_id: PassId
    microbatch: int
    loss_sum: float
    token: int
    def __init__(self, pass_id: _Optional[_Union[PassId, _Mapping]] = ..., microbatch: _Optional[int] = ..., loss_sum: _Optional[float] = ..., token: _Optional[int] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("pass_id", "microbatch", "reason", "nonfinite")
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_FIELD_NUMBER: _ClassVar[int]
    pass_id: PassId
    microbatch: int
    reason: str
    nonfinite: bool
    def __init__(self, pass_id: _Optional[_Union[PassId, _Mapping]] = ..., microbatch: _Optional[int] = ..., reason: _Optional[str] = ..., nonfinite: _Optional[bool] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("actor", "reason")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    actor: int
    reason: str
    def __init__(self, actor: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Telemetry(_message.Message):
    __slots__ = ("actor", "machine", "work", "trouble")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    actor: int
    machine: _containers.RepeatedCompositeFieldContainer[Trait]
    work: Work
    trouble: str
    def __init__(self, actor: _Optional[int] = ..., machine: _Optional[_Iterable[_Union[Trait, _Mapping]]] = ..., work: _Optional[_Union[Work, _Mapping]] = ..., trouble: _Optional[str] = ...) -> None: ...

class Trait(_message.Message):
    __slots__ = ("name", "text", "number")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    name: str
    text: str
    number: float
    def __init__(self, name: _Optional[str] = ..., text: _Optional[str] = ..., number: _Optional[float] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("pass_id", "stage", "seconds", "spans", "usage", "links")
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    pass_id: PassId
    stage: int
    seconds: _containers.RepeatedScalarFieldContainer[float]
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    usage: _containers.RepeatedCompositeFieldContainer[Figure]
    links: _containers.RepeatedCompositeFieldContainer[LinkUse]
    def __init__(self, pass_id: _Optional[_Union[PassId, _Mapping]] = ..., stage: _Optional[int] = ..., seconds: _Optional[_Iterable[float]] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., usage: _Optional[_Iterable[_Union[Figure, _Mapping]]] = ..., links: _Optional[_Iterable[_Union[LinkUse, _Mapping]]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("kind", "microbatch", "start", "length")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    kind: int
    microbatch: int
    start: int
    length: int
    def __init__(self, kind: _Optional[int] = ..., microbatch: _Optional[int] = ..., start: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class Figure(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class LinkUse(_message.Message):
    __slots__ = ("other", "rate", "rtt_s", "via", "sent")
    OTHER_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    RTT_S_FIELD_NUMBER: _ClassVar[int]
    VIA_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    other: int
    rate: float
    rtt_s: float
    via: int
    sent: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, other: _Optional[int] = ..., rate: _Optional[float] = ..., rtt_s: _Optional[float] = ..., via: _Optional[int] = ..., sent: _Optional[_Iterable[int]] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Padding(_message.Message):
    __slots__ = ("kind", "filler")
    KIND_FIELD_NUMBER: _ClassVar[int]
    FILLER_FIELD_NUMBER: _ClassVar[int]
    kind: int
    filler: bytes
    def __init__(self, kind: _Optional[int] = ..., filler: _Optional[bytes] = ...) -> None: ...

class LogWant(_message.Message):
    __slots__ = ("log", "offset", "before")
    LOG_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    log: str
    offset: int
    before: str
    def __init__(self, log: _Optional[str] = ..., offset: _Optional[int] = ..., before: _Optional[str] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("log", "offset", "lines")
    LOG_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    log: str
    offset: int
    lines: bytes
    def __init__(self, log: _Optional[str] = ..., offset: _Optional[int] = ..., lines: _Optional[bytes] = ...) -> None: ...

class Want(_message.Message):
    __slots__ = ("keys", "bases", "again")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    BASES_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[Key]
    bases: _containers.RepeatedScalarFieldContainer[int]
    again: bool
    def __init__(self, keys: _Optional[_Iterable[_Union[Key, _Mapping]]] = ..., bases: _Optional[_Iterable[int]] = ..., again: _Optional[bool] = ...) -> None: ...

class Pending(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[FrameKey]
    def __init__(self, keys: _Optional[_Iterable[_Union[FrameKey, _Mapping]]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("key", "lineage")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    key: FrameKey
    lineage: Lineage
    def __init__(self, key: _Optional[_Union[FrameKey, _Mapping]] = ..., lineage: _Optional[_Union[Lineage, _Mapping]] = ...) -> None: ...

class ReducePart(_message.Message):
    __slots__ = ("key", "microbatches", "receipt")
    KEY_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    key: PartKey
    microbatches: bytes
    receipt: Receipt
    def __init__(self, key: _Optional[_Union[PartKey, _Mapping]] = ..., microbatches: _Optional[bytes] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ...) -> None: ...

class ReducedPart(_message.Message):
    __slots__ = ("key", "receipt")
    KEY_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    key: SumKey
    receipt: Receipt
    def __init__(self, key: _Optional[_Union[SumKey, _Mapping]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ...) -> None: ...

class Relay(_message.Message):
    __slots__ = ("origin", "destination", "message", "signature")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    origin: int
    destination: int
    message: Relayed
    signature: bytes
    def __init__(self, origin: _Optional[int] = ..., destination: _Optional[int] = ..., message: _Optional[_Union[Relayed, _Mapping]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Relayed(_message.Message):
    __slots__ = ("want", "frame", "reduce_part", "reduced_part")
    WANT_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    REDUCE_PART_FIELD_NUMBER: _ClassVar[int]
    REDUCED_PART_FIELD_NUMBER: _ClassVar[int]
    want: Want
    frame: Frame
    reduce_part: ReducePart
    reduced_part: ReducedPart
    def __init__(self, want: _Optional[_Union[Want, _Mapping]] = ..., frame: _Optional[_Union[Frame, _Mapping]] = ..., reduce_part: _Optional[_Union[ReducePart, _Mapping]] = ..., reduced_part: _Optional[_Union[ReducedPart, _Mapping]] = ...) -> None: ...
