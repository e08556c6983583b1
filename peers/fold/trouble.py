"""Trouble: the kinds of events that a person looking after a run wants to know of, and any record in words."""

from __future__ import annotations

from peers.event_text import describe, printable
from peers.fold.reading import MOST_TEXT, Record
from swarm import events as e

TROUBLE: tuple[type[e.Event], ...] = (
    e.PeerLost,
    e.PeerRefused,
    e.DuplicateIdentity,
    e.PeerFenced,
    e.StepAborted,
    e.StepAudited,
    e.PeerExpelled,
    e.RolledBack,
    e.RunDiverged,
    e.OutOfMemory,
    e.StepHeldUp,
    e.RecordOutdated,
    e.RoundsOtherwise,
    e.StateDrifted,
    e.CheckpointsDiffer,
    e.RunPaused,
    e.FrameRefused,
    e.StreamBroken,
    e.MessagesDropped,
    e.SwarmSplit,
    e.ClockDiffers,
    e.CoordinatorAway,
    e.LeadershipLost,
    e.MajorityMissing,
    e.CheckpointRefused,
    e.LoopBlocked,
    e.FaultCosted,
    e.EvaluationDropped,
    e.ControlRefused,
)
TROUBLE_KINDS = frozenset(kind.__name__ for kind in TROUBLE)


def in_words(record: Record) -> str:
    """One printable line of at most MOST_TEXT characters, whatever the record holds."""
    kind = str(record.get("kind"))[:40]
    short = {key: value[:MOST_TEXT] if type(value) is str else value for key, value in record.items()}
    try:
        event = e.from_record(short)
        words = describe(event) if event is not None else kind
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, ZeroDivisionError):
        words = printable(kind)  # fields that are not what they should be
    return words if len(words) <= MOST_TEXT else words[: MOST_TEXT - 1] + "…"
