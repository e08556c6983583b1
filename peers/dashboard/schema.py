"""Schema: the form of each answer of the API, for the OpenAPI document. Tests check every real answer against it.

Times are unix seconds, durations are seconds, sizes are bytes. Steps, stages and microbatches count from 0. Within one
version of the API, keys may be added, but no key is removed or changes its meaning.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class State(_Answer):
    word: str
    """starting, waiting, training, evaluating, sampling, pausing, paused, finishing, finished or stopping."""
    reason: str
    since: float | None


class Coordinator(_Answer):
    actor: str
    leads: bool
    last_at: float


class OpenPass(_Answer):
    pass_id: str
    kind: str
    step: int | None
    opened_at: float
    stages: list[list[int]] = Field(description="By stage: microbatches accumulated, forwarded, in total")


class Heldout(_Answer):
    loss: float | None
    version: int
    at: float


class Sent(_Answer):
    sent: int
    by_kind: dict[str, int]
    fp32: float | None = Field(description="Bytes of the same activations and gradients in fp32")
    saved: float | None = Field(description="Bytes in fp32 ÷ actual bytes")


class Lost(_Answer):
    seconds: float
    tokens: float


class Trouble(_Answer):
    at: float
    text: str


class Run(_Answer):
    run: str | None
    run_hash: str | None
    release: str | None
    role: str | None
    actor: str | None
    at: float
    first_at: float | None
    last_at: float
    live: bool
    finished: bool
    state: State
    leader: str | None
    coordinators: list[Coordinator]
    step: int | None
    steps: int | None
    open: OpenPass | None
    tokens: int
    tokens_undone: float = Field(description="Tokens of rolled-back steps, which `tokens` leaves out")
    tokens_per_step: int | None
    eta_s: float | None
    loss: float | None
    heldout: Heldout | None
    gradient_norm: float | None
    tokens_per_second: float | None
    ideal_tokens_per_second: float | None
    efficiency: float | None
    goodput: dict[str, float | None] = Field(
        description="Goodput over the last minute and hour until now, by seconds, and over `all` of the run. What is "
        "done of the open step counts."
    )
    bytes: Sent
    peers: int
    standby: int
    stages: int
    replicas: list[int]
    archived: int | None
    faults: int
    lost: Lost
    trouble: Trouble | None
    control: bool
    warnings: list[str]


class Cell(_Answer):
    actor: str
    name: str
    peer: str
    symbol: str
    word: str
    why: str
    weight: float | None
    rate: float | None
    share: float | int | None
    done: float | int | None
    left: float | int | None
    seconds_per_microbatch: float | None
    out: bool = Field(
        description="True if the peer dropped out of the open step: it was fenced, is gone, or serves another stage"
    )
    seat_of: str | None = Field(description="The same text for all seats of one process; it has no other meaning")
    usage: dict[str, float]


class Stage(_Answer):
    stage: int
    cost: float | None
    rate: float | None
    total: int
    codec_in: dict[str, str] | None
    slowest: bool
    why: str
    accumulated: int | None
    forwarded: int | None
    microbatches: int | None
    reduce: str | None
    reason: str = Field(description="Why the stage's table changed last")
    cells: list[Cell]


class Planned(_Answer):
    actor: str
    name: str
    source: int
    stage: int
    gain: float
    reason: str


class Pipeline(_Answer):
    stages: list[Stage]
    standby: list[Cell]
    standby_total: int
    planned: Planned | None


class Peer(_Answer):
    actor: str
    peer: str
    name: str
    stage: int | None
    word: str
    symbol: str
    why: str
    joined_at: float | None
    last_at: float | None
    left_at: float | None
    share: float | None
    tokens: float | None
    hours: float
    bytes_sent: int
    faults: int
    machine: dict[str, str | float]
    usage: dict[str, float]


class Peers(_Answer):
    total: int
    peers: list[Peer]


class Told(_Answer):
    at: float
    text: str


class Fault(_Answer):
    id: int | str
    at: float
    kind: str
    word: str
    actor: str | None
    name: str | None
    stage: int | None
    step: int | None
    pass_id: str | None
    reason: str
    microbatches: int
    finished: int | None
    seconds: float | None
    tokens: float | None
    recovered_at: float | None
    costed: bool


class Pair(_Answer):
    from_: str = Field(alias="from")
    to: str
    rate: float | None
    rtt_s: float | None
    via: str | None
    bytes: dict[str, int]


class Seat(_Answer):
    actor: str
    name: str
    stage: int | None


class WhatIf(_Answer):
    tokens_per_second_before: float | None
    together: list[Seat] = Field(description="Other seats of its process, which leave with it")
    after: float | None
    seconds_again: float | None
    step_later_s: float | None = Field(description="Seconds by which the open step would be decided later")
    microbatches_again: int
    stage_lost: bool
    text: str


class PeerPage(Peer):
    seconds: dict[str, float]
    history: list[Told]
    faults: list[Fault]  # type: ignore[assignment]
    links: list[Pair]
    what_if: WhatIf | None
    steps: list[dict[str, Any]] = Field(default_factory=list)


class TimelineStep(_Answer):
    step: int
    pass_id: str | None
    opened_at: float | None
    seconds: float | None
    decided_at: float | None
    faults: list[int | str]
    critical: list[dict[str, Any]]


class RowStep(_Answer):
    step: int
    offset_s: float | None
    sums: dict[str, float]
    spans: list[tuple[str, int, float, float]]


class Row(_Answer):
    actor: str
    stage: int | None
    name: str
    steps: list[RowStep]


class Timeline(_Answer):
    steps: list[TimelineStep]
    rows: list[Row]
    total: int
    first: int
    last: int
    steps_known: list[int]


class LinkActor(_Answer):
    actor: str
    name: str
    stage: int | None
    gone: bool
    """Whether it has left the swarm."""


class Links(_Answer):
    actors: list[LinkActor]
    pairs: list[Pair]
    total: int


class Faults(_Answer):
    total: int
    ever: int
    lost: Lost
    faults: list[Fault]


class Person(_Answer):
    peer: str
    name: str
    tokens_layers: float | None
    share: float | None
    hours: float
    bytes_sent: int
    bytes_received: int
    devices: list[str]
    faults: int
    present: bool


class People(_Answer):
    total: int
    people: list[Person]
    formula: str


class Checkpoint(_Answer):
    version: int
    at: float
    digests: list[str]
    complete: bool
    nbytes: int | None
    here: bool = Field(description="True if its files can be downloaded")


class Export(_Answer):
    version: int
    state: str = Field(description="waiting, running, done or failed")
    text: str
    file: str | None
    nbytes: int
    total: int


class Checkpoints(_Answer):
    checkpoints: list[Checkpoint]
    exports: list[Export]


class Exports(_Answer):
    exports: list[Export]


class Sample(_Answer):
    version: int
    at: float
    prompt: str
    text: str
    heldout_loss: float | None


class Samples(_Answer):
    samples: list[Sample]


class Series(_Answer):
    name: str
    t: list[float]
    min: list[float | None]
    max: list[float | None]
    last: list[float | None]


class Mark(_Answer):
    at: float
    kind: str = Field(description="fault, evaluation, checkpoint, control or restart")
    text: str
    id: int | str | None


class Marks(_Answer):
    first: float
    last: float
    marks: list[Mark]


class Line(_Answer):
    at: float
    source: str
    kind: str
    severity: str
    text: str
    actor: str | None


class Log(_Answer):
    lines: list[Line]
    next: float | None


class Session(_Answer):
    access: str = Field(description="none, public, read or organiser")
    token_needed: bool
    public: bool
    observed: bool = Field(description="True if nobody can control the run from this dashboard")


class Join(_Answer):
    line: str
    lines: dict[str, str]


class PassRow(_Answer):
    name: str
    serial: str
    role: str = Field(description="peer or observe")
    open: bool = Field(description="True if everybody may use this pass. Each device then gets a pass of its own")
    devices: int
    joined: int
    peers: list[str] = Field(description="Ids of the devices that have joined with this pass, at most 200")
    expelled: int
    expires_at: int
    revoked: bool
    state: str


class PassList(_Answer):
    passes: list[PassRow]


class NewPass(_Answer):
    name: str
    devices: int
    expires: str = Field("30d", description="12h, 30d or 8w")
    role: str = "peer"


class MadePass(_Answer):
    invite: str
    line: str = Field(description="The command with which its owner joins")
    name: str
    role: str
    devices: int
    expires_at: int


class RevokedPass(_Answer):
    serial: str
    why: str = ""


class Command(_Answer):
    command: str
    value: str = ""
    why: str = ""


class Done(_Answer):
    ok: bool
    number: int | None
    text: str


class Token(_Answer):
    token: str


class Order(_Answer):
    version: int


class Ordered(_Answer):
    version: int
    state: str


class Error(_Answer):
    error: str
    retry_after_s: float | None = None
