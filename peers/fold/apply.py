"""Applies one event to the state. Only this file decides which kinds of events change which part of the state.

Records are used in the form in which they are in a log (`{"at": …, "kind": …, fields}`). Event objects are not built,
since a week of a hundred peers has a million events. A test checks that every kind of event is either handled here or
listed as ignored.
"""

from __future__ import annotations

from collections.abc import Callable

from peers.fold import faults, links, members, pipeline, run, samples, work
from peers.fold.reading import Malformed, Record, a_number
from peers.fold.state import RunState
from peers.fold.trouble import TROUBLE_KINDS, in_words
from swarm.events import Event, to_record

Handler = Callable[[RunState, Record, float, str], None]

HANDLERS: dict[str, tuple[Handler, ...]] = {
    "ProcessStarted": (run.process_started,),
    "LogContinued": (run.log_continued,),
    "ProcessStopped": (run.process_stopped,),
    "MachineMeasured": (run.machine_measured,),
    "CoordinatorStarted": (run.coordinator_started,),
    "StateChanged": (run.state_changed,),
    "LeadershipTaken": (run.leadership_taken,),
    "LeadershipLost": (run.leadership_lost,),
    "LeaderFollowed": (run.leader_followed,),
    "MajorityMissing": (run.majority_missing,),
    "DecisionRecorded": (work.recorded, run.decision_recorded),
    "RunPaused": (run.paused,),
    "RunFinished": (run.run_finished,),
    "ControlGiven": (run.control_given,),
    "ControlRefused": (run.control_refused,),
    "PeerSeen": (members.seen,),
    "PeerJoined": (run.joined_own, members.joined),
    "PeerMoved": (members.moved,),
    "PeerLeaving": (members.leaving,),
    "PeerPaused": (run.paused_own, members.paused),
    "PeerResumed": (run.joined_own, members.resumed),
    "PeerTroubled": (members.troubled,),
    "PeerLost": (faults.lost, members.lost),
    "PeerGone": (members.gone,),
    "PeerDescribed": (members.described,),
    "ShareChanged": (members.share_changed,),
    "PassOpened": (run.pass_told, pipeline.pass_opened),
    "TableChanged": (pipeline.table_changed,),
    "PassProgress": (pipeline.pass_progress,),
    "StageAmended": (pipeline.stage_amended,),
    "PeerFenced": (pipeline.peer_fenced, members.fenced, faults.fenced),
    "CodecChosen": (pipeline.codec_chosen,),
    "PlannerLooked": (pipeline.planner_looked,),
    "ReduceStarted": (pipeline.reduce_told,),
    "ReduceCancelled": (pipeline.reduce_told,),
    "StagePrepared": (pipeline.reduce_told,),
    "StepDecided": (work.step_decided,),
    "StepMeasured": (work.step_measured,),
    "StepApplied": (work.step_applied,),
    "StepAborted": (faults.aborted, run.step_aborted),
    "PeerWorked": (work.peer_worked,),
    "TrafficMeasured": (links.traffic_measured,),
    "PeerExpelled": (faults.expelled,),
    "RunDiverged": (faults.diverged,),
    "OutOfMemory": (faults.out_of_memory,),
    "RolledBack": (faults.rolled_back, work.rolled_back, run.rolled_back),
    "FaultCosted": (faults.costed,),
    "FrameRecovered": (faults.frame_recovered,),
    "Evaluated": (samples.evaluated,),
    "EvaluationDropped": (faults.evaluation_dropped,),
    "Sampled": (samples.sampled,),
    "CheckpointWritten": (samples.checkpoint_written,),
    "CheckpointArchived": (samples.checkpoint_archived,),
}

CORE = frozenset(
    (
        "RunPaused",
        "PeerSeen",
        "PeerJoined",
        "PeerMoved",
        "PeerLeaving",
        "PeerPaused",
        "PeerResumed",
        "PeerTroubled",
        "PeerLost",
        "PeerGone",
        "PeerFenced",
        "PassOpened",
        "TableChanged",
        "PassProgress",
        "StageAmended",
        "PlannerLooked",
        "StepAborted",
    )
)
"""Kinds of events that count only in the leading coordinator's log. A former leader may not know that it was
replaced.
"""

NOISE = frozenset(("MicrobatchForwarded", "MicrobatchAccumulated"))
"""Kinds of events that are ignored although they are two thirds of a peer's log. PassProgress and PeerWorked contain
the same information.
"""

IGNORED = NOISE | frozenset(
    (
        "ManyReplicas",
        "SeatAsked",
        "SeatTaken",
        "SeatLeft",
        "PeerRefused",
        "FloodNoticed",
        "MemberSlowed",
        "PeerDelays",
        "RequesterSlowed",
        "DuplicateIdentity",
        "CoordinatorCopied",
        "StateFetched",
        "Gathered",
        "PieceRefused",
        "SwarmSplit",
        "CatchUpForecast",
        "CatchUpFailed",
        "MicrobatchesReleased",
        "RouteChanged",
        "StepAudited",
        "RecordOutdated",
        "FreedMemoryReturned",
        "LayersRecomputed",
        "OffloadLimited",
        "SendQueuesUnlimited",
        "SlowAfterPauses",
        "RoundsOtherwise",
        "StateCompared",
        "StateDrifted",
        "SumsMisreported",
        "StageDoubted",
        "PeerIdle",
        "CheckpointsDiffer",
        "CheckpointsMissing",
        "FrameRefused",
        "StreamBroken",
        "MessagesDropped",
        "LogCopyStopped",
        "ClockDiffers",
        "StillDialling",
        "CoordinatorAway",
        "CoordinatorBack",
        "CheckpointRefused",
        "StepHeldUp",
        "ResourcesMeasured",
        "LoopBlocked",
    )
)
"""Kinds of events that change nothing but perhaps the last trouble. They are shown on the log page."""


MOST_APART_S = 600.0
"""If the time in a peer's own log differs by more seconds from that of the coordinators, the peer's clock is wrong."""


def apply(state: RunState, event: Event, at: float, source: str) -> None:
    """Apply `event`, from the log of `source`, at `at` in unix seconds. Changes `state` in place.

    `source`: `coordinator`; in a group `coordinator/ACTOR`; for a peer's own log, its actor.
    """
    apply_record(state, to_record(event, at), at, source)


def apply_record(state: RunState, record: Record, at: float, source: str) -> None:
    """Like `apply`, for a record as read from a log. Never raises, whatever the record contains."""
    kind = record.get("kind")
    if type(kind) is not str:
        state.malformed += 1
        return
    run_, handlers = state.run, HANDLERS.get(kind)
    of_coordinator = source.startswith("coordinator")
    if kind in CORE and run_.voice and source != run_.voice and of_coordinator:
        return
    try:
        at = a_number(at)
        if run_.timed and not of_coordinator and abs(at - run_.last_at) > MOST_APART_S:
            at = run_.last_at
        if handlers is not None:
            for handler in handlers:
                handler(state, record, at, source)
    except Malformed:
        state.malformed += 1
        return
    state.events += 1
    if of_coordinator:
        run.heard(state, source, at)
    if run_.first_at is None or (of_coordinator and not run_.timed):
        run_.first_at = run_.last_at = at
        run_.timed = of_coordinator
    elif at > run_.last_at and (of_coordinator or not run_.timed):
        run_.last_at = at
    if kind in TROUBLE_KINDS:
        run_.trouble_at, run_.trouble = at, in_words(record)
        if source == run_.source:
            run_.own_trouble_at, run_.own_trouble = at, run_.trouble
