"""The peer's core by hand, and what it keeps of messages that come too early."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swarm.events import LeaderFollowed, OutOfMemory, PeerFenced, ReduceStarted, RouteChanged
from swarm.protocol import answers as answering
from swarm.protocol import messages as m
from swarm.protocol.ids import (
    Actor,
    Attempt,
    Direction,
    FrameKey,
    Microbatch,
    PartKey,
    PassId,
    PassKind,
    StageIndex,
    StepNumber,
    Term,
)
from swarm.protocol.io import Emit, LinkLost, LinkUp, Received, Send, Stop, Tick
from swarm.protocol.outbox import Outbox
from swarm.protocol.peer import early_messages as early
from swarm.protocol.peer.core import PeerCore
from swarm.protocol.peer.early_messages import EarlyMessages
from swarm.protocol.peer.held_stage import HeldStage
from swarm.protocol.peer.io import (
    Backward,
    BackwardDone,
    CheckpointSaved,
    ComputeFailed,
    Forward,
    ForwardDone,
    MemoryShort,
    PartEncoded,
    PeerInput,
    SaveCheckpoint,
    StateFailed,
    StateLoaded,
    StateSpoilt,
    SumBucket,
    Undelivered,
)
from swarm.protocol.peer.reachability import Reachability
from swarm.protocol.peer.status_reports import Saved
from swarm.protocol.slots import UNASKED
from swarm.simulation.runs.plan import small_settings

COORDINATOR, ME, OTHER = Actor("coordinator", 0), Actor("one", 1), Actor("two", 1)
PASS = PassId(Term(1), StepNumber(0))


def part(bucket: int, size: int) -> m.ReducePart:
    return m.ReducePart(PartKey(Attempt(PASS, StageIndex(0), 0), bucket, OTHER), 1, bytes(size))


def test_a_peer_obeys_the_coordinator_of_the_highest_term() -> None:
    group = tuple(Actor(f"c{i}", 0) for i in range(3))
    core = PeerCore(ME, group[0], small_settings(stages=1, microbatches=2, steps=2, replicas=2), group=group)

    def told(sender: Actor, message: m.Message, now: float) -> list[object]:
        return list(core.handle(Received(sender, message), now))

    first = core.handle(Tick(), 0.0)
    assert [a.to for a in first if isinstance(a, Send)] == list(group), "any of them may lead"
    told(group[1], m.Assign(Term(3), None, 0), 0.01)
    assert core.coordinator == group[1] and core.held_stage.standing_by
    older = told(group[0], m.Halt("I am old", Term(2)), 0.02) + told(group[2], m.Halt("not my term", Term(3)), 0.02)
    assert not [a for a in older if isinstance(a, Stop)] and core.coordinator == group[1]
    news = told(group[2], m.Assign(Term(4), StageIndex(0), 0), 0.03)
    assert Emit(LeaderFollowed(str(group[2]), 4)) in news and core.coordinator == group[2]
    assert [a.to for a in news if isinstance(a, Send) and isinstance(a.message, m.Status)] == list(group), "at once"
    core.handle(StateLoaded(StageIndex(0), 0, 1), 0.04)
    assert not [a for a in told(OTHER, m.Halt("I am no coordinator", Term(9)), 0.05) if isinstance(a, Stop)]
    assert [a for a in told(group[0], m.Halt("it failed", Term(5)), 0.06) if isinstance(a, Stop)]


def test_a_peer_that_runs_out_of_memory_again_leaves() -> None:
    core = PeerCore(ME, COORDINATOR, small_settings(stages=1, microbatches=2, steps=2, replicas=2))
    core.handle(Received(COORDINATOR, m.Assign(Term(1), StageIndex(0), 0)), 0.0)
    core.handle(StateLoaded(StageIndex(0), 0, 1), 0.1)
    first = core.handle(MemoryShort("Forward at microbatch 1: none", 6, 3), 0.2)
    assert Emit(OutOfMemory(str(ME), "Forward at microbatch 1: none", 6, 3, leaves=False)) in first
    assert not core.leaving and not core.short, "it has less to do it with from now on"
    core.handle(MemoryShort("Backward at microbatch 0: none", 3, 1), 0.3)
    assert core.leaving and "Backward at microbatch 0" in core.short and "--max-memory" in core.short


def test_halt_ends_a_peer_as_failed_if_the_coordinator_says_so() -> None:
    core = PeerCore(ME, COORDINATOR, small_settings(stages=1, microbatches=2, steps=2, replicas=2))
    assert not [a for a in core.handle(Received(OTHER, m.Halt("no", Term(1))), 0.1) if isinstance(a, Stop)]
    assert Stop("it failed twice", failed=True) in core.handle(
        Received(COORDINATOR, m.Halt("it failed twice", Term(1))), 0.2
    )


def test_every_report_has_a_higher_number_than_the_one_before() -> None:
    core = PeerCore(ME, COORDINATOR, small_settings(stages=1, microbatches=2, steps=2, replicas=2))
    events: list[PeerInput] = [
        Tick(),
        Tick(),
        Received(COORDINATOR, m.Assign(Term(1), StageIndex(0), 0)),
        StateLoaded(StageIndex(0), 0, 1),
        Tick(),
    ]
    numbers = []
    for second, event in enumerate(events):
        for action in core.handle(event, 2.0 * second):
            if isinstance(action, Send) and isinstance(action.message, m.Join | m.Status):
                numbers.append(action.message.sequence)
    assert len(numbers) == 5 and numbers == sorted(set(numbers))


def test_early_messages_are_bounded_by_number_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "LIMIT", 4)
    monkeypatch.setattr(early, "LIMIT_BYTES", 100)
    kept = EarlyMessages()
    for bucket, size in enumerate((60, 60, 40, 1)):
        kept.keep(OTHER, part(bucket, size), 100)
    assert [message.key.bucket for _, message in kept.take() if isinstance(message, m.ReducePart)] == [0, 2]
    for bucket in range(6):
        kept.keep(OTHER, part(bucket, 0), 100)
    assert len(kept.take()) == 4
    kept.keep(OTHER, part(0, 100), 100)
    assert len(kept.take()) == 1, "what was taken counts no more"


def test_what_is_void_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "LIMIT_BYTES", 100)
    kept = EarlyMessages()
    kept.keep(OTHER, part(0, 80), 100)
    kept.drop(lambda message: isinstance(message, m.ReducePart) and message.key.bucket == 0)
    kept.keep(OTHER, part(1, 80), 100)
    assert [message.key.bucket for _, message in kept.take() if isinstance(message, m.ReducePart)] == [1]


def test_a_flood_takes_no_room_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "LIMIT", 10)
    monkeypatch.setattr(early, "LIMIT_BYTES", 100)
    kept, stranger = EarlyMessages(), Actor("stranger", 1)
    for _ in range(30):
        kept.keep(stranger, m.Want(()), 100)
        kept.keep(stranger, part(0, 30), 100)
    for bucket in range(5):
        kept.keep(OTHER, part(bucket, 10), 100)
    taken = kept.take()
    assert [message for sender, message in taken if sender == OTHER] == [part(bucket, 10) for bucket in range(5)]
    assert len(taken) == 10


def test_a_sender_keeps_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "LIMIT_BYTES", 100)
    kept = EarlyMessages()
    for bucket in range(9):
        kept.keep(OTHER, part(bucket, 10), 40)
    kept.keep(OTHER, m.Want(()), 40)
    assert kept.dropped == {OTHER}
    kept.drop(lambda message: isinstance(message, m.ReducePart) and message.key.bucket == 0)
    kept.keep(OTHER, part(9, 10), 40)
    kept.keep(OTHER, part(10, 10), 40)
    buckets = [message.key.bucket for _, message in kept.take() if isinstance(message, m.ReducePart)]
    assert buckets == [1, 2, 3, 9]


def test_many_senders_do_not_displace_one_that_uses_less_of_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the coordinator, whose tokens may take more than the parts of any member."""
    monkeypatch.setattr(early, "LIMIT_BYTES", 100)
    kept = EarlyMessages()
    for bucket in range(3):
        kept.keep(OTHER, part(bucket, 10), 100)
    for number in range(20):
        for bucket in range(2):
            kept.keep(Actor(f"liar{number}", 1), part(bucket, 10), 20)
    taken = kept.take()
    assert [sender for sender, _ in taken].count(OTHER) == 3 and len(taken) == 10
    assert OTHER not in kept.dropped


@pytest.mark.parametrize("sender", ["sibling", "other"])
def test_a_part_that_found_no_room_before_the_pass_opened_is_asked_for(
    sender: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once when the reduction begins; unless somebody else's message was dropped, who could have any number of
    parts sent twice.
    """
    monkeypatch.setattr("swarm.protocol.peer.peer_messages.MEMBER_BYTES", 10)
    peer = Peer()
    key = PartKey(Attempt(PASS, StageIndex(0), 0), 0, OTHER if sender == "sibling" else LAST)
    peer.take(Received(key.contributor, m.ReducePart(key, 2, bytes(100))))
    peer.open((ME, OTHER), (LAST,))
    peer.told(m.Frame(FrameKey(PASS, StageIndex(0), Direction.FORWARD, Microbatch(0)), b""))
    peer.take(ForwardDone(PASS, Microbatch(0), b"", 0.1))
    gradient = FrameKey(PASS, StageIndex(1), Direction.BACKWARD, Microbatch(0))
    peer.take(Received(LAST, m.Frame(gradient, b"")))
    orders = peer.take(BackwardDone(PASS, Microbatch(0), None))
    wants = [o for o in orders if isinstance(o, Send) and o.to == OTHER and isinstance(o.message, m.Want)]
    assert len(wants) == (sender == "sibling")


class Peer:
    """A core that holds stage 0 of two, what it orders, and a clock."""

    def __init__(self, saved: Saved | None = None, stage: int = 0, version: int = 0) -> None:
        settings = small_settings(stages=2, microbatches=2, steps=2, replicas=2)
        self.core = PeerCore(ME, COORDINATOR, settings, saved=saved)
        self.now = 0.0
        self.take(
            Received(
                COORDINATOR, m.Assign(Term(1), StageIndex(stage), version, (m.Donor(OTHER, 0),) if version else ())
            )
        )
        self.take(StateLoaded(StageIndex(stage), version, 1))

    def take(self, event: PeerInput) -> list[object]:
        self.now += 0.001
        return list(self.core.handle(event, self.now))

    def told(self, message: m.Message) -> list[object]:
        return self.take(Received(COORDINATOR, message))

    def open(self, *rosters: tuple[Actor, ...]) -> list[object]:
        tables = tuple(m.StageTable(0, roster, (0, len(roster) - 1)) for roster in rosters)
        return self.told(m.Open(PASS, PassKind.TRAIN, tables, None))

    def status(self) -> m.Status:
        self.now += self.core.settings.heartbeat_s
        reports = [a.message for a in self.take(Tick()) if isinstance(a, Send)]
        (status,) = [message for message in reports if isinstance(message, m.Status)]
        return status


LAST, LATER = Actor("three", 1), Actor("four", 1)


def events(orders: list[object], kind: type) -> list[object]:
    return [a.event for a in orders if isinstance(a, Emit) and isinstance(a.event, kind)]


def test_a_fence_is_said_once() -> None:
    peer = Peer()
    peer.open((ME, OTHER), (LAST,))
    orders = peer.take(ComputeFailed(PASS, Microbatch(0), "out of memory"))
    for number in (1, 2):
        orders += peer.told(m.Amend(PASS, StageIndex(0), m.StageTable(number, (OTHER,), (0, 0)), "fenced"))
    orders += peer.told(m.Fenced(PASS, "it failed"))
    assert len(events(orders, PeerFenced)) == 1


def test_who_fenced_itself_stays_out_though_a_table_names_it() -> None:
    peer = Peer()
    peer.open((ME, OTHER), (LAST,))
    peer.take(ComputeFailed(PASS, Microbatch(0), "out of memory"))
    peer.told(m.Amend(PASS, StageIndex(0), m.StageTable(1, (ME, OTHER), (0, 0)), "released"))
    assert peer.status().fenced


def test_a_lost_connection_changes_the_route_once() -> None:
    peer = Peer()
    peer.take(LinkUp(OTHER))
    peer.open((ME, OTHER), (LAST,))
    peer.take(LinkLost(LAST))
    peer.now += 1.0
    orders = peer.take(Tick())
    assert [e.via for e in events(orders, RouteChanged) if isinstance(e, RouteChanged)] == [str(OTHER)]
    assert Send(COORDINATOR, m.Unreachable(PASS, LAST)) in orders


def test_a_route_is_told_again_only_if_it_is_another_one() -> None:
    """Each pass finds its routes anew."""
    out = Outbox(ME)

    def told(via: Actor) -> list[str]:
        out.routes.clear()
        out.tell_route(LAST, via, "connection lost")
        return [e.via for e in events(out.take(), RouteChanged) if isinstance(e, RouteChanged)]

    assert told(OTHER) == [str(OTHER)] and told(OTHER) == []
    assert told(LATER) == [str(LATER)]
    out.straight(LAST)
    assert told(LATER) == [str(LATER)], "it was reached directly in between"


def test_no_detour_goes_through_somebody_unreachable() -> None:
    peer = Peer()
    for up in (OTHER, LATER):
        peer.take(LinkUp(up))
    for lost in (LAST, OTHER):
        peer.take(LinkLost(lost))
    peer.now += 1.0
    peer.take(Tick())
    orders = peer.open((ME, OTHER), (LAST, LATER))
    vias = {e.via for e in events(orders, RouteChanged) if isinstance(e, RouteChanged)}
    assert vias == {str(LATER)}


def test_nobody_goes_round_by_somebody_who_was_never_tried_while_the_coordinator_is_there() -> None:
    """A newcomer behind a router reaches none of those who cannot reach each other."""
    peer = Peer()
    for lost in (LAST, COORDINATOR):
        peer.take(LinkLost(lost))
    peer.now += 1.0
    peer.take(Tick())
    peer.take(LinkUp(COORDINATOR))
    orders = peer.open((ME, OTHER), (LAST, LATER))
    vias = {e.via for e in events(orders, RouteChanged) if isinstance(e, RouteChanged)}
    assert vias == {str(COORDINATOR)}


def test_what_was_for_somebody_never_reached_goes_around_as_soon_as_there_is_a_way() -> None:
    peer = Peer()
    peer.take(LinkUp(OTHER))
    peer.open((ME, OTHER), (LAST,))
    frame = m.Frame(FrameKey(PASS, 1, Direction.FORWARD, Microbatch(0)), b"x")
    older = m.Frame(FrameKey(PassId(Term(0), StepNumber(0)), 1, Direction.FORWARD, Microbatch(0)), b"x")
    around = Send(OTHER, m.Relay(ME, LAST, frame))
    assert around not in peer.take(Undelivered(LAST, (frame, older)))
    peer.take(LinkLost(LAST))
    peer.now += 1.0
    assert around in peer.take(Tick())
    assert peer.take(Undelivered(LAST, (frame, older))).count(around) == 1
    assert around not in peer.take(Tick()), "once"
    assert Send(LAST, frame) not in peer.take(LinkUp(LAST))
    peer.take(Undelivered(LAST, (frame,)))
    assert Send(LAST, frame) in peer.take(LinkUp(LAST)), "or straight, once it is there"


def test_the_coordinator_is_the_last_detour() -> None:
    peer = Peer()
    peer.open((ME, OTHER), (LAST,))
    for lost in (LAST, OTHER):
        peer.take(LinkLost(lost))
    peer.now += 1.0
    orders = peer.take(Tick())
    vias = {e.via for e in events(orders, RouteChanged) if isinstance(e, RouteChanged)}
    assert vias == {str(COORDINATOR)}


def test_a_decision_of_before_a_rollback_is_not_waited_for() -> None:
    peer = Peer()
    peer.told(m.Assign(Term(3), StageIndex(0), 0))  # in a new term, the first version again
    peer.take(StateLoaded(StageIndex(0), 0, 1))
    outcomes = (m.StageOutcome(0, "d"), m.StageOutcome(0, "e"))
    late = m.Decide(m.Decision(Term(1), StepNumber(0), 1.0, 1.0, 2, 1.0, outcomes), Term(1), finished=True)
    assert not [order for order in peer.told(late) if isinstance(order, Stop)]
    tables = (m.StageTable(0, (ME,), (0, 0)), m.StageTable(0, (LAST,), (0, 0)))
    peer.told(m.Open(PassId(Term(3), StepNumber(0)), PassKind.TRAIN, tables, None))
    assert peer.core.pass_run is not None, "it begins"


def test_parts_of_outsiders_are_not_kept() -> None:
    peer = Peer()
    peer.open((ME, OTHER), (LAST,))
    assert peer.core.pass_run is not None
    stranger = Actor("stranger", 1)
    for sender in (stranger, OTHER):
        key = PartKey(Attempt(PASS, StageIndex(0), 0), 0, sender)
        peer.take(Received(sender, m.ReducePart(key, 2, b"")))
    assert [sender for sender, _ in peer.core.pass_run._early.take()] == [OTHER]


def forwards(orders: list[Any]) -> list[Microbatch]:
    return [order.microbatch for order in orders if isinstance(order, Forward)]


@pytest.mark.parametrize("relayed", [False, True])
def test_frames_count_only_from_the_actor_that_has_to_send_them(relayed: bool) -> None:
    """Otherwise any peer of the pass could compute, in its own way, what is assigned to others."""
    peer = Peer(stage=1)
    peer.open((LAST, LATER), (ME, OTHER))
    frame = m.Frame(FrameKey(PASS, 1, Direction.FORWARD, Microbatch(0)), b"")
    for intruder in (LATER, OTHER):
        message = m.Relay(intruder, ME, frame) if relayed else frame
        assert not forwards(peer.take(Received(OTHER if relayed else intruder, message)))
    assert forwards(peer.take(Received(OTHER, m.Relay(LAST, ME, frame)) if relayed else Received(LAST, frame))) == [0]


def test_gradients_count_only_from_the_actor_that_has_to_send_them() -> None:
    peer = Peer()
    peer.open((ME, OTHER), (LAST, LATER))
    peer.told(m.Frame(FrameKey(PASS, 0, Direction.FORWARD, Microbatch(0)), b""))
    peer.take(ForwardDone(PASS, Microbatch(0), b""))
    gradient = m.Frame(FrameKey(PASS, 1, Direction.BACKWARD, Microbatch(0)), b"")
    for intruder in (LATER, OTHER, COORDINATOR):
        assert not [a for a in peer.take(Received(intruder, gradient)) if isinstance(a, Backward)]
    assert [a.microbatch for a in peer.take(Received(LAST, gradient)) if isinstance(a, Backward)] == [0]


def test_who_was_asked_before_an_amendment_may_still_answer() -> None:
    """Any copy of a frame is as good as another, and this one is on its way."""
    peer = Peer(stage=1)
    peer.open((LAST, LATER), (ME, OTHER))
    peer.told(m.Amend(PASS, StageIndex(0), m.StageTable(1, (LAST, LATER), (1, 1)), "stolen"))
    assert forwards(peer.take(Received(LAST, m.Frame(FrameKey(PASS, 1, Direction.FORWARD, Microbatch(0)), b"")))) == [0]


def test_a_part_of_a_table_that_has_not_come_yet_waits_for_it() -> None:
    peer = Peer()
    idle = tuple(m.StageTable(0, roster, (len(roster) - 1,) * 2) for roster in ((ME, OTHER), (LAST,)))
    orders = peer.told(m.Open(PASS, PassKind.TRAIN, idle, None))
    assert events(orders, ReduceStarted)
    late = m.ReducePart(PartKey(Attempt(PASS, StageIndex(0), 1), 0, OTHER), 3, b"part")
    assert not [a for a in peer.take(Received(OTHER, late)) if isinstance(a, SumBucket)]
    orders = peer.told(m.Amend(PASS, StageIndex(0), replace(idle[0], number=1), "one new attempt"))
    assert [a.parts for a in orders if isinstance(a, SumBucket)] == [(b"part",)]


def test_a_checkpoint_found_on_disk_is_reported_for_its_own_stage() -> None:
    saved = Saved(StageIndex(0), 1, "file")
    status = Peer(saved, version=1).status()
    assert (status.checkpoint_version, status.checkpoint_digest) == (1, "file")
    status = Peer(saved, stage=1, version=1).status()
    assert (status.checkpoint_version, status.checkpoint_digest) == (-1, "")
    status = Peer(saved, version=0).status()
    assert status.checkpoint_version == -1, "the run went back over it"


def decision() -> m.Decision:
    return m.Decision(Term(1), StepNumber(1), 0.01, 1.0, 128, 1.0, (m.StageOutcome(0, "d"), m.StageOutcome(0, "d")))


def test_a_checkpoint_that_is_missing_is_saved_when_the_decision_is_told_again() -> None:
    peer = Peer(version=2)
    assert SaveCheckpoint(2) in peer.told(m.Decide(decision(), Term(1))), "it fetched the version and never saved it"
    assert SaveCheckpoint(2) not in peer.told(m.Decide(decision(), Term(1))), "it is being saved"
    peer.now += peer.core.settings.step_budget_s
    assert SaveCheckpoint(2) in peer.told(m.Decide(decision(), Term(1))), "the disk was full"
    peer.take(CheckpointSaved(2, "file"))
    assert peer.status().checkpoint_version == 2
    peer.now += peer.core.settings.step_budget_s
    assert SaveCheckpoint(2) not in peer.told(m.Decide(decision(), Term(1)))


def test_a_late_save_does_not_count_for_the_stage_or_the_history_that_is_held_now() -> None:
    """Both have the same version."""
    peer = Peer(version=2)
    decided = m.Decide(decision(), Term(1))
    assert SaveCheckpoint(2, number=0) in peer.told(decided)
    peer.told(m.Assign(Term(1), StageIndex(1), 2, (m.Donor(OTHER, 0),), move=1))
    peer.take(StateLoaded(StageIndex(1), 2, 1))
    peer.take(StateSpoilt(2, number=0))
    assert not peer.status().spoilt
    assert SaveCheckpoint(2, number=1) in peer.told(decided)
    peer.take(CheckpointSaved(2, "file of stage 0", number=0))
    peer.take(StateSpoilt(2, number=0))
    status = peer.status()
    assert (status.checkpoint_version, status.spoilt) == (-1, False)
    for term, version in ((2, 0), (3, 2)):  # the run goes back, and reaches the version again
        peer.told(m.Assign(Term(term), StageIndex(1), version, (m.Donor(OTHER, 0),)))
        peer.take(StateLoaded(StageIndex(1), version, 1))
    assert SaveCheckpoint(2, number=2) in peer.told(m.Decide(decision(), Term(3)))
    peer.take(CheckpointSaved(2, "void file", number=1))
    assert peer.status().checkpoint_version == -1
    peer.take(CheckpointSaved(2, "file", number=2))
    status = peer.status()
    assert (status.checkpoint_version, status.checkpoint_digest) == (2, "file")
    peer.take(StateSpoilt(2, number=2))
    assert peer.status().spoilt


def test_only_the_load_that_was_ordered_counts() -> None:
    held_stage = HeldStage()
    held_stage.assigned(m.Assign(Term(1), StageIndex(0), 1, (m.Donor(OTHER, 0),)))
    held_stage.assigned(m.Assign(Term(1), StageIndex(0), 2, (m.Donor(OTHER, 0),)))
    assert not held_stage.loaded(StateFailed(StageIndex(0), 1, "cancelled")) and held_stage.loading
    assert not held_stage.loaded(StateLoaded(StageIndex(0), 1, 1)) and held_stage.version is None
    assert held_stage.loaded(StateLoaded(StageIndex(0), 2, 1)) and held_stage.version == 2


def test_earlier_incarnations_are_forgotten() -> None:
    reachability = Reachability(0.1)
    for incarnation in range(1, 5):
        reachability.up(Actor("two", incarnation))
        reachability.lost(Actor("two", incarnation), float(incarnation))
        reachability.given_up(incarnation + 0.5)
    assert reachability.unreachable == [Actor("two", 4)] and len(reachability._met) == 1


def test_who_is_asked_again_says_what_is_yet_to_be_made() -> None:
    peer = Peer()
    peer.open((ME, OTHER), (LAST,))
    mine, others = (FrameKey(PASS, StageIndex(1), Direction.FORWARD, Microbatch(number)) for number in (0, 1))

    def pending(want: m.Message, sender: Actor = LAST) -> list[object]:
        return [a for a in peer.take(Received(sender, want)) if isinstance(a, Send) and "Pending" in repr(a)]

    assert not pending(m.Want((mine, others))), "the first time it is remembered, no more"
    assert pending(m.Want((mine, others), again=True)) == [Send(LAST, m.Pending((mine,)))]
    assert not pending(m.Relay(LAST, ME, m.Want((mine,), again=True)), OTHER), "which says nothing of the direct way"
    peer.told(m.Release(PASS, 0, (Microbatch(0),)))
    assert not pending(m.Want((mine,), again=True)), "somebody else will make it"


def test_nobody_gets_the_same_frame_for_ever() -> None:
    """Each answer takes the uplink that all others need."""
    peer = Peer()
    peer.open((ME, OTHER), (LAST, LATER))
    peer.told(m.Frame(FrameKey(PASS, 0, Direction.FORWARD, Microbatch(0)), b""))
    peer.take(ForwardDone(PASS, Microbatch(0), b"frame"))
    want = m.Want((FrameKey(PASS, 1, Direction.FORWARD, Microbatch(0)),))

    def answers(sender: Actor) -> int:
        return len([a for a in peer.take(Received(sender, want)) if isinstance(a, Send) and a.to == sender])

    assert sum(answers(LATER) for _ in range(3 * answering.MOST)) == answering.MOST
    assert answers(LAST) == 1, "the limit is for each peer"


def test_frames_go_only_to_the_stage_that_uses_them() -> None:
    peer = Peer()
    peer.open((ME, OTHER), (LAST,))
    peer.told(m.Frame(FrameKey(PASS, 0, Direction.FORWARD, Microbatch(0)), b""))
    key = FrameKey(PASS, 1, Direction.FORWARD, Microbatch(0))
    peer.take(Received(OTHER, m.Want((key,))))
    orders = peer.take(ForwardDone(PASS, Microbatch(0), b"frame"))
    for sender in (OTHER, LAST):
        orders += peer.take(Received(sender, m.Want((key, key))))
    assert {a.to for a in orders if isinstance(a, Send) and isinstance(a.message, m.Frame)} == {LAST}


def test_a_repeated_request_is_answered_once_that_the_frame_is_yet_to_be_made() -> None:
    peer = Peer()
    peer.open((ME, OTHER), (LAST,))
    key = FrameKey(PASS, 1, Direction.FORWARD, Microbatch(0))
    orders = peer.take(Received(LAST, m.Want((key,) * 500, again=True)))
    assert Send(LAST, m.Pending((key,))) in orders


def reducing() -> Peer:
    """A peer that has encoded its part of the only bucket, which the first member of the roster sums."""
    peer = Peer()
    idle = tuple(m.StageTable(0, roster, (len(roster) - 1,) * 2) for roster in ((OTHER, ME, LATER), (LAST,)))
    idle = (replace(idle[0], assignment=(0, 2)), idle[1])
    orders = peer.told(m.Open(PASS, PassKind.TRAIN, idle, None))
    assert events(orders, ReduceStarted)
    peer.take(PartEncoded(Attempt(PASS, StageIndex(0), 0), 0, b"part"))
    return peer


def test_parts_go_to_the_actor_that_sums_them_and_not_for_ever() -> None:
    peer = reducing()

    def answers(sender: Actor, contributor: Actor = ME) -> int:
        want = m.Want((PartKey(Attempt(PASS, StageIndex(0), 0), 0, contributor),))
        return len([a for a in peer.take(Received(sender, want)) if isinstance(a, Send) and a.to == sender])

    assert answers(LATER) == answers(LAST) == 0, "it is not theirs to sum"
    assert sum(answers(OTHER) for _ in range(answering.MOST)) == answering.MOST
    assert answers(OTHER) == answers(OTHER, LATER) == 0


def test_a_peer_without_room_for_graphs_asks_for_less_at_once() -> None:
    """Two stages: four microbatches at least."""

    def asked(kept: bool) -> list[int]:
        """How many inputs are wanted when a step begins, the second after four forwards."""
        peer = Peer()
        settings = replace(small_settings(stages=2, microbatches=24, steps=2, replicas=1), slots=12)
        peer.core = PeerCore(ME, COORDINATOR, settings)
        peer.told(m.Assign(Term(1), StageIndex(0), 0))
        peer.take(StateLoaded(StageIndex(0), 0, 1))
        tables = (m.StageTable(0, (ME,), (0,) * 24), m.StageTable(0, (LAST,), (0,) * 24))
        counts = []
        for term in (1, 2):
            pass_id = replace(PASS, term=Term(term))
            orders = peer.told(m.Open(pass_id, PassKind.TRAIN, tables, None))
            wants = [order.message for order in orders if isinstance(order, Send) and isinstance(order.message, m.Want)]
            counts.append(UNASKED + sum(len(want.keys) for want in wants))
            for number in range(4):
                peer.told(m.Frame(FrameKey(pass_id, 0, Direction.FORWARD, Microbatch(number)), b""))
                peer.take(ForwardDone(pass_id, Microbatch(number), b"", kept=kept))
        return counts

    assert asked(kept=True) == [12, 12] and asked(kept=False) == [12, 4]


def test_tokens_that_come_unasked_wait_for_a_slot() -> None:
    peer = Peer()
    settings = replace(small_settings(stages=2, microbatches=8, steps=2, replicas=1), slots=1)
    peer.core = PeerCore(ME, COORDINATOR, settings)
    peer.told(m.Assign(Term(1), StageIndex(0), 0))
    peer.take(StateLoaded(StageIndex(0), 0, 1))

    tokens = [m.Frame(FrameKey(PASS, 0, Direction.FORWARD, Microbatch(n)), b"") for n in range(UNASKED)]
    assert not forwards(peer.told(tokens[0])), "ahead of the opening"
    tables = (m.StageTable(0, (ME,), (0,) * 8), m.StageTable(0, (LAST,), (0,) * 8))
    assert forwards(peer.told(m.Open(PASS, PassKind.TRAIN, tables, None))) == [0]
    assert not [n for frame in tokens[1:] for n in forwards(peer.told(frame))], "its only slot is taken"
    peer.take(ForwardDone(PASS, Microbatch(0), b""))
    gradient = m.Frame(FrameKey(PASS, 1, Direction.BACKWARD, Microbatch(0)), b"")
    peer.take(Received(LAST, gradient))
    orders = peer.take(BackwardDone(PASS, Microbatch(0), None))
    assert forwards(orders) == [1] and not [a for a in orders if isinstance(a, Send) and isinstance(a.message, m.Want)]


def test_an_input_that_is_not_computed_yet_gives_its_slot_to_the_next_one() -> None:
    """One slot; the even microbatches come from OTHER, the odd ones from LATER. OTHER is idle at first."""
    peer = Peer()
    settings = replace(small_settings(stages=2, microbatches=6, steps=2, replicas=2), slots=1)
    peer.core = PeerCore(ME, COORDINATOR, settings)
    peer.told(m.Assign(Term(1), StageIndex(1), 0))
    peer.take(StateLoaded(StageIndex(1), 0, 1))
    inputs = [FrameKey(PASS, StageIndex(1), Direction.FORWARD, Microbatch(n)) for n in range(6)]
    tables = (m.StageTable(0, (OTHER, LATER), (0, 1) * 3), m.StageTable(0, (ME,), (0,) * 6))

    def wanted(orders: list[object]) -> list[tuple[Actor, int]]:
        wants = [(a.to, a.message) for a in orders if isinstance(a, Send) and isinstance(a.message, m.Want)]
        return [(to, key.microbatch) for to, want in wants if not want.again for key in want.keys]

    def pending(sender: Actor, number: int) -> list[object]:
        """The answer to the next repeated Want of an input."""
        for _ in range(1000):
            peer.now += 0.01
            for order in peer.take(Tick()):
                if isinstance(order, Send) and order.message == m.Want((inputs[number],), (), again=True):
                    return peer.take(Received(sender, m.Pending((inputs[number],))))
        raise AssertionError("the input was not wanted again")

    assert wanted(peer.told(m.Open(PASS, PassKind.TRAIN, tables, None))) == [(OTHER, 0)]
    assert wanted(pending(OTHER, 0)) == [(LATER, 1)]
    assert wanted(pending(LATER, 1)) + wanted(pending(OTHER, 2)) == [(OTHER, 2), (LATER, 3)]
    assert not wanted(pending(LATER, 3)), "three late inputs for each slot"
    assert forwards(peer.take(Received(OTHER, m.Frame(inputs[0], b"")))) == [0]
    assert not forwards(peer.take(Received(LATER, m.Frame(inputs[1], b"")))), "its slot is taken"
    orders = peer.take(BackwardDone(PASS, Microbatch(0), b""))
    assert forwards(orders) == [1] and not wanted(orders), "the input is there already"
    assert wanted(peer.take(BackwardDone(PASS, Microbatch(1), b""))) == [(OTHER, 4)]


def test_what_was_given_up_and_stays_mine_is_asked_for_with_its_gradient() -> None:
    """A sibling's answer to its Release came first. The gradient came between: it was dropped, and must come again."""
    peer = Peer()
    peer.open((ME, OTHER), (LAST,))
    tokens, gradient = (
        FrameKey(PASS, StageIndex(0), Direction.FORWARD, Microbatch(0)),
        FrameKey(PASS, StageIndex(1), Direction.BACKWARD, Microbatch(0)),
    )
    peer.told(m.Frame(tokens, b""))
    peer.take(ForwardDone(PASS, Microbatch(0), b"", 0.1))
    peer.told(m.Release(PASS, 0, (Microbatch(0),)))
    peer.take(Received(LAST, m.Frame(gradient, b"")))
    orders = peer.told(m.Amend(PASS, StageIndex(0), m.StageTable(1, (ME, OTHER), (0, 1)), "released"))
    assert Send(COORDINATOR, m.Want((tokens,))) in orders and Send(LAST, m.Want((gradient,))) in orders


def test_what_waited_for_forwards_that_are_given_up_is_computed() -> None:
    """Two forwards are ordered at a time. Both are released, and nothing of them is ever done."""
    peer = Peer()
    settings = small_settings(stages=2, microbatches=3, steps=2, replicas=2)
    peer.core = PeerCore(ME, COORDINATOR, settings)
    peer.told(m.Assign(Term(1), StageIndex(0), 0))
    peer.take(StateLoaded(StageIndex(0), 0, 1))
    tables = (m.StageTable(0, (ME, OTHER), (0, 0, 0)), m.StageTable(0, (LAST,), (0, 0, 0)))
    peer.told(m.Open(PASS, PassKind.TRAIN, tables, None))

    def forwards(orders: list[object]) -> list[int]:
        return [order.microbatch for order in orders if isinstance(order, Forward)]

    def tokens(number: int) -> m.Frame:
        return m.Frame(FrameKey(PASS, StageIndex(0), Direction.FORWARD, Microbatch(number)), b"")

    assert forwards([order for number in range(3) for order in peer.told(tokens(number))]) == [0, 1]
    assert forwards(peer.told(m.Release(PASS, 0, (Microbatch(0), Microbatch(1))))) == [2]


def test_the_gradient_of_what_was_given_up_and_stays_mine_is_pushed() -> None:
    """The stage before has seen no change, and asks for nothing."""
    peer = Peer(stage=1)
    peer.open((OTHER,), (ME, LAST))
    activation, gradient = (
        FrameKey(PASS, StageIndex(1), direction, Microbatch(0)) for direction in (Direction.FORWARD, Direction.BACKWARD)
    )
    peer.told(m.Release(PASS, 0, (Microbatch(0),)))
    peer.told(m.Amend(PASS, StageIndex(1), m.StageTable(1, (ME, LAST), (0, 1)), "released"))
    peer.take(Received(OTHER, m.Frame(activation, b"")))
    orders = peer.take(BackwardDone(PASS, Microbatch(0), b"", 0.1))
    assert Send(OTHER, m.Frame(gradient, b"")) in orders


def test_only_who_is_to_send_a_frame_can_say_that_it_is_yet_to_be_made() -> None:
    peer = Peer()
    peer.open((ME, OTHER), (LAST,))
    tokens = FrameKey(PASS, StageIndex(0), Direction.FORWARD, Microbatch(0))

    def asked_again_after(answer: list[m.Message], sender: Actor) -> float:
        """Seconds until the next WANT of the tokens, from one that was overdue."""
        began = peer.now
        while not [a for a in peer.take(Tick()) if isinstance(a, Send) and a.message == m.Want((tokens,), (), True)]:
            peer.now += 0.05
            for message in answer:
                peer.take(Received(sender, message))
            answer = []
            if peer.now > began + 10.0:
                break
        return peer.now - began

    asked_again_after([], LAST)
    silent = asked_again_after([], LAST)
    pending = [m.Pending((tokens,))]
    assert asked_again_after(pending, LAST) == pytest.approx(2 * silent, rel=0.2), "it doubles in silence"
    assert asked_again_after(pending, COORDINATOR) == pytest.approx(silent, rel=0.2), "as after one answer"


def test_a_version_is_saved_that_the_manifest_does_not_name_when_the_coordinator_asks() -> None:
    core = PeerCore(ME, COORDINATOR, small_settings(stages=1, microbatches=2, steps=9, replicas=2, checkpoint_every=9))
    core.handle(Received(COORDINATOR, m.Assign(Term(1), StageIndex(0), 3)), 0.0)
    core.handle(StateLoaded(StageIndex(0), 3, 1), 0.1)
    table = m.StageTable(0, (ME, OTHER), (0, 1))
    opening = m.Open(PassId(Term(1), StepNumber(3)), PassKind.TRAIN, (table,), None)
    assert SaveCheckpoint(3) not in core.handle(Received(COORDINATOR, opening), 0.2)
    later = replace(opening, pass_id=PassId(Term(2), StepNumber(3)), save=True)
    assert SaveCheckpoint(3) in core.handle(Received(COORDINATOR, later), 0.3)
    assert SaveCheckpoint(3) not in core.handle(Received(COORDINATOR, later), 0.4), "one order is enough"
    before = m.Decision(Term(1), StepNumber(2), 1.0, 1.0, 128, 1.0, (m.StageOutcome(0, "d"),))
    core.handle(CheckpointSaved(3, "file"), 0.5)
    assert SaveCheckpoint(3) not in core.handle(Received(COORDINATOR, m.Decide(before, Term(2), save=True)), 9.0)


def test_told_between_steps_a_peer_saves_what_it_holds() -> None:
    core = PeerCore(ME, COORDINATOR, small_settings(stages=1, microbatches=2, steps=9, replicas=2, checkpoint_every=9))
    core.handle(Received(COORDINATOR, m.Assign(Term(1), StageIndex(0), 3)), 0.0)
    core.handle(StateLoaded(StageIndex(0), 3, 1), 0.1)
    before = m.Decision(Term(1), StepNumber(2), 1.0, 1.0, 128, 1.0, (m.StageOutcome(0, "d"),))
    assert SaveCheckpoint(3) not in core.handle(Received(COORDINATOR, m.Decide(before, Term(1))), 0.2)
    assert SaveCheckpoint(3) in core.handle(Received(COORDINATOR, m.Decide(before, Term(1), save=True)), 0.3)


def test_whom_the_organiser_lets_go_leaves_as_if_its_owner_had_asked() -> None:
    core = PeerCore(ME, COORDINATOR, small_settings(stages=1, microbatches=2, steps=2, replicas=2))
    core.handle(Received(COORDINATOR, m.Assign(Term(1), StageIndex(0), 0)), 0.0)
    core.handle(StateLoaded(StageIndex(0), 0, 1), 0.1)
    excuse = m.Excuse(Term(1), "let go by Ann")
    core.handle(Received(OTHER, excuse), 0.2)
    assert not core.leaving, "only a coordinator lets anybody go"
    core.handle(Received(COORDINATOR, excuse), 0.3)
    orders = core.handle(Received(COORDINATOR, excuse), 0.4)
    assert core.leaving and not [a for a in orders if isinstance(a, Stop)], "told again is not asked twice"
    (stop,) = [
        a
        for a in core.handle(Received(COORDINATOR, m.Dismiss(Term(1), "others hold stage 0")), 0.5)
        if isinstance(a, Stop)
    ]
    assert stop == Stop("let go by Ann: others hold stage 0")
