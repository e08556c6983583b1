"""The core's compute actions, and what the compute thread needs to know about each of them."""

from __future__ import annotations

from swarm.codecs import CodecError, Reason
from swarm.compute.backlog import Urgency
from swarm.compute.meter import APPLYING, BACKWARD, FORWARD, REDUCING
from swarm.protocol.ids import Attempt, Microbatch, PassId
from swarm.protocol.peer.io import (
    Apply,
    Assemble,
    Backward,
    Begin,
    CancelReduce,
    ComputeFailed,
    Discard,
    EncodePart,
    Forward,
    SettleBases,
    ShowState,
    StateShown,
    StoreSum,
    SumBucket,
    Weights,
)

MicrobatchAction = Forward | Backward | Weights
ComputeAction = (
    MicrobatchAction
    | Begin
    | Discard
    | EncodePart
    | SumBucket
    | StoreSum
    | Assemble
    | CancelReduce
    | Apply
    | SettleBases
    | ShowState
)


def place_of(action: ComputeAction) -> tuple[Urgency, int]:
    """Return the action's place in the queue: its urgency, then its microbatch."""
    match action:
        case Forward():
            return Urgency.FORWARD, action.microbatch
        case Backward():
            return Urgency.BACKWARD, action.microbatch
        case Weights():
            return Urgency.WEIGHTS, action.microbatch
        case _:
            return Urgency.REDUCE, 0


def metered_as(action: ComputeAction) -> tuple[int, int]:
    """Return the meter's kind of work, and the microbatch or −1. Work on a whole state counts as applying."""
    match action:
        case Forward():
            return FORWARD, action.microbatch
        case Backward() | Weights():
            return BACKWARD, action.microbatch
        case EncodePart() | SumBucket() | StoreSum() | Assemble() | CancelReduce():
            return REDUCING, -1
        case Begin() | Discard() | Apply() | SettleBases() | ShowState():
            return APPLYING, -1


def is_stale(action: ComputeAction, begun: PassId | None) -> bool:
    """Return True if the action belongs to a pass other than `begun`, the one that this engine computes.

    A decision is applied whatever pass has begun since. A peer that catches up collects the sums of a pass that it
    never began, but not those of a pass older than `begun`.
    """
    match action:
        case Apply() | SettleBases() | ShowState():
            return False
        case StoreSum() | Assemble() | CancelReduce():
            return begun is not None and action.attempt.pass_id < begun
        case EncodePart() | SumBucket():
            return action.attempt.pass_id != begun
        case _:
            return action.pass_id != begun


def is_discarded(action: object, order: Discard) -> bool:
    """Return True if `order` discards the microbatch of the action, so that the action is unnecessary."""
    of = (order.pass_id, order.microbatch)
    return isinstance(action, Forward | Weights) and (action.pass_id, action.microbatch) == of


def is_cancelled(action: object, cancelled: Attempt) -> bool:
    """Return True if the action is useless once that attempt is cancelled. This includes a part that was ordered under
    an older table.
    """
    if isinstance(action, EncodePart):
        return cancelled.ends(action.attempt)
    return getattr(action, "attempt", None) == cancelled


def is_before(action: object, attempt: Attempt) -> bool:
    """Return True if the action computes a microbatch of the attempt's pass or of an older pass."""
    return isinstance(action, MicrobatchAction) and action.pass_id <= attempt.pass_id


def described(action: ComputeAction) -> str:
    """Return, for messages, the action's name, and its microbatch if it has one."""
    _, microbatch = _subject(action)
    where = "" if microbatch is None else f" at microbatch {microbatch}"
    return f"{type(action).__name__}{where}"


def failure(action: ComputeAction, error: Exception) -> ComputeFailed | StateShown:
    """Return the input that tells the core that the action raised `error`."""
    if isinstance(action, ShowState):
        return StateShown(action.version, action.nonce, None)
    unsendable = isinstance(error, CodecError) and error.reason is Reason.NOT_FINITE
    return ComputeFailed(
        *_subject(action), f"{type(action).__name__}: {error or type(error).__name__}", nonfinite=unsendable
    )


def _subject(action: ComputeAction) -> tuple[PassId, Microbatch | None]:
    if isinstance(action, MicrobatchAction | Discard):
        return action.pass_id, action.microbatch
    if isinstance(action, Begin):
        return action.pass_id, None
    assert not isinstance(action, SettleBases | ShowState), "SettleBases cannot fail; ShowState fails no pass"
    return action.attempt.pass_id, None
