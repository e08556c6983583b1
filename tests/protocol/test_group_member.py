"""A member of a group by hand: what its coordinator may say and write, and when."""

from __future__ import annotations

from dataclasses import replace

from swarm.events import ControlGiven, DecisionRecorded, LeadershipLost, LeadershipTaken, MajorityMissing, PeerExpelled
from swarm.protocol import messages as m
from swarm.protocol.admissions import Device
from swarm.protocol.coordinator.commands import AUDIT
from swarm.protocol.coordinator.io import AnswerControl, ArchiveStored, CollectCheckpoint, ControlRequested
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.ids import Actor, StageIndex, StepNumber, Term
from swarm.protocol.io import Emit, LeaveRequested, LinkLost, Received, Send, Stop, Tick
from swarm.protocol.raft.audience import Audience
from swarm.protocol.raft.io import GroupAction, GroupInput, GroupWritten, WriteGroup
from swarm.protocol.raft.log import Standing, Stored
from swarm.protocol.raft.member import GroupMember
from swarm.protocol.settings import Settings
from swarm.simulation.runs.plan import small_settings

ME, TWO, THREE = (Actor(f"c{i}", 0) for i in range(3))
GROUP = (ME, TWO, THREE)
PEER = Actor("peer", 1)
SETTINGS = small_settings(stages=1, microbatches=2, steps=4, replicas=1)


class Desk:
    """One member whose disk is as quick as you like; the others say what the test has them say."""

    def __init__(
        self,
        stored: Stored | None = None,
        holds: dict[int, tuple[str, ...]] | None = None,
        settings: Settings = SETTINGS,
        group: tuple[Actor, ...] = GROUP,
    ) -> None:
        self.now = 0.0
        self.member = GroupMember(group[0], group, settings, stored or Stored(), holds or {})
        self.writes: list[WriteGroup] = []
        self.tell(Tick())

    def tell(self, event: GroupInput) -> list[GroupAction]:
        """What is ordered, disks included."""
        orders = self.member.handle(event, self.now)
        for write in [order for order in orders if isinstance(order, WriteGroup)]:
            self.writes.append(write)
            orders += self.tell(GroupWritten(write.number))
        return orders

    def hear(self, sender: Actor, message: m.Message) -> list[GroupAction]:
        return self.tell(Received(sender, message))

    def lead(self) -> list[GroupAction]:
        """Long enough alone, and with the vote of another, this member leads; that one has all it is sent."""
        self.now += 10 * SETTINGS.heartbeat_s
        return self.lead_at_once()

    def lead_at_once(self) -> list[GroupAction]:
        self.tell(Tick())
        ballot = self.member.record.ballot + 1
        self.hear(self.member._group[1], m.Vote(ballot, True, binding=False))
        orders = self.hear(self.member._group[1], m.Vote(ballot, True, binding=True))
        assert self.member.record.leads
        return orders + self.agree()

    def agree(self, held: m.Offer | None = None) -> list[GroupAction]:
        """Another member has the whole log on disk, and holds what is offered, if that is so."""
        record = self.member.record
        version, term = (-1, 0) if held is None else (held.version, held.term)
        return self.hear(self.member._group[1], m.Appended(record.ballot, record.log.last, held=version, held_in=term))


def sent(orders: list[GroupAction], kind: type, to: Actor | None = None) -> list[m.Message]:
    return [o.message for o in orders if isinstance(o, Send) and isinstance(o.message, kind) and to in (None, o.to)]


def emitted(orders: list[GroupAction], kind: type) -> list[object]:
    return [o.event for o in orders if isinstance(o, Emit) and isinstance(o.event, kind)]


def joined(sequence: int = 1) -> m.Join:
    return m.Join(PEER, None, 1.0, sequence)


def test_nothing_is_said_to_peers_before_the_term_stands() -> None:
    desk = Desk()
    desk.hear(PEER, joined())
    desk.now += 10 * SETTINGS.heartbeat_s
    desk.tell(Tick())
    desk.hear(PEER, joined(2))
    desk.hear(TWO, m.Vote(1, True, binding=False))
    orders = desk.hear(TWO, m.Vote(1, True, binding=True))
    assert emitted(orders, LeadershipTaken) and not sent(orders, m.Assign)
    assert desk.member.phase is Phase.STARTING and desk.member.standing.term == 0
    orders = desk.agree()
    assert desk.member.standing.term == 1
    assert sent(orders, m.Assign, PEER) == [m.Assign(Term(1), StageIndex(0), 0)], "who was heard before is known"


def test_who_was_not_heard_of_late_is_not_counted_on() -> None:
    desk = Desk()
    desk.hear(PEER, joined())
    assert not sent(desk.lead(), m.Assign)
    assert desk.member.known == {PEER}, "though the archive is open to it"
    desk.tell(LinkLost(PEER))
    assert not desk.member.known


def test_it_takes_over_where_the_record_stands() -> None:
    decision = m.Decision(Term(3), StepNumber(1), 1.0, 1.0, 128, 1.0, (m.StageOutcome(0, "d"),))
    standing = Standing(3, replace(decision, step=StepNumber(0)))
    stored = Stored(5, "c1", 2, standing, ((1, 5),), (m.DecisionEntry(5, decision),))  # its end may not stand
    desk = Desk(stored)
    desk.lead()
    assert desk.member.core is not None
    history = desk.member.core.history
    assert (history.version, history.term, history.decision) == (2, 4, decision)
    assert desk.member.record.ballot == 6 and desk.member.standing.version == 2, "and now it stands"


def test_the_next_leader_reports_the_expulsions_that_the_former_one_could_not() -> None:
    """They are in its record, and the former leader died before it heard that a majority has them."""
    others = [Actor(name, 1) for name in ("liar", "guest", "standby", "gone")]
    liar, guest, standby, gone = others
    commands = [
        m.Command(1, "expel", liar.peer, AUDIT, "at step 0 its numbers differ", "r1"),
        m.Command(2, "admit", Device("ab" * 16, 2, guest.peer).value, "pass", "", "r2"),
        m.Command(3, "admit", Device("ab" * 16, 2, standby.peer).value, "pass", "", "r3"),
        m.Command(4, "revoke", "ab" * 16, "Ann", "a slip", "r4"),
        m.Command(5, "expel", gone.peer, "Ann", "", "r5"),
    ]
    desk = Desk(Stored(5, "c1", 0, tail=tuple(m.CommandEntry(5, command) for command in commands)))
    desk.now = 9 * SETTINGS.heartbeat_s
    for actor in (liar, guest, PEER):
        desk.hear(actor, m.Status(actor, StageIndex(0), 0, sequence=1))
    desk.hear(standby, m.Join(standby))
    orders = desk.lead_at_once()
    assert len(emitted(orders, ControlGiven)) == len(commands)
    assert emitted(orders, PeerExpelled) == [
        PeerExpelled(str(liar), 0, 0, "at step 0 its numbers differ"),
        PeerExpelled(str(guest), 0, 0, "it is sent away by Ann: a slip"),
    ]
    assert not emitted(desk.agree(), PeerExpelled)


def test_nobody_is_sent_home_as_failed_by_a_leader_that_was_replaced() -> None:
    desk = Desk()
    desk.lead()
    desk.hear(PEER, joined())
    core = desk.member.core
    assert core is not None
    core._cycle.end(m.Halt("it failed eight times", Term(1)), desk.now)
    desk.now += SETTINGS.heartbeat_s
    orders = desk.tell(Tick())
    assert not sent(orders, m.Halt) and desk.writes[-1].entries == (m.TermEntry(1, Term(2)),)
    desk.agree()
    desk.now += SETTINGS.heartbeat_s
    assert sent(desk.tell(Tick()), m.Halt, PEER)
    desk.agree()
    desk.tell(LinkLost(PEER))
    desk.now += SETTINGS.heartbeat_s
    orders = desk.tell(Tick())
    assert Stop("it failed eight times", failed=True) in orders
    assert sent(orders, m.Adjourn) == [m.Adjourn(1, "it failed eight times", failed=True)] * 2


def test_a_checkpoint_counts_when_a_majority_holds_it() -> None:
    desk = Desk()
    desk.lead()
    core = desk.member.core
    assert core is not None
    order = CollectCheckpoint(1, Term(1), ((PEER,),), ("file",))
    desk.member._pass_on(order, desk.now)
    core.history.version = 3
    desk.tell(ArchiveStored(1, Term(1), ("file",)))
    assert core.history.archived is None, "it is here alone"
    desk.member._pass_on(replace(order, version=2), desk.now)
    assert 2 not in desk.member._copies._ordered, "one after the other"
    desk.now += SETTINGS.heartbeat_s
    appends = sent(desk.tell(Tick()), m.Append, TWO)
    offer = m.Offer(1, Term(1), ("file",))
    assert isinstance(appends[-1], m.Append) and appends[-1].offer == offer
    desk.agree(replace(offer, term=Term(0)))
    assert core.history.archived is None, "that was another offer"
    desk.agree(offer)
    assert desk.writes[-1].entries[-1] == m.ArchivedEntry(1, 1, Term(1), ("file",))
    desk.agree(offer)
    assert core.history.archived == 1


def test_the_copies_that_are_stored_count_and_not_those_of_a_later_order() -> None:
    """If the copies of two people differ, the core orders them in turn, even while the first ones are fetched."""
    desk = Desk()
    desk.lead()
    core = desk.member.core
    assert core is not None
    core.history.version = 20
    one = CollectCheckpoint(10, Term(1), ((PEER,),), ("hash of one",))
    two = replace(one, digests=("hash of two",))
    for order in (one, two):
        desk.member._pass_on(order, desk.now)
    desk.tell(ArchiveStored(10, Term(1), one.digests))
    assert desk.member._copies.collect(one, desk.now) == [one], "it may have been lost"
    assert not desk.member._copies.collect(two, desk.now), "the other members copy the first ones now"
    desk.now += SETTINGS.heartbeat_s
    desk.tell(Tick())
    offer = desk.member.record.offer
    assert offer == m.Offer(10, Term(1), one.digests)
    for _ in range(2):
        desk.agree(offer)
    assert core.history.archived == 10


def test_a_checkpoint_that_the_others_cannot_copy_is_replaced_later_and_later() -> None:
    desk = Desk()
    desk.lead()

    def waited(order: CollectCheckpoint) -> float:
        """How long the leader refuses the order, in step budgets. Then it holds the checkpoint."""
        began = desk.now
        while not desk.member._copies.collect(order, desk.now):
            desk.now += SETTINGS.heartbeat_s / 2
            desk.agree()
            desk.tell(Tick())
            if desk.now - began > SETTINGS.step_budget_s:  # the core repeats its order for what is here already
                again = desk.member.record.offer
                assert again is not None
                desk.tell(ArchiveStored(again.version, Term(1), again.digests))
        desk.tell(ArchiveStored(order.version, Term(1), order.digests))
        desk.tell(Tick())
        assert desk.member.record.offer == m.Offer(order.version, Term(1), order.digests)
        return (desk.now - began) / SETTINGS.step_budget_s

    order = CollectCheckpoint(10, Term(1), ((PEER,),), ("file",))
    times = [waited(replace(order, version=version)) for version in (10, 20, 30)]
    assert times[0] == 0 and 4 <= times[1] < 5 and 8 <= times[2] < 9
    offer = desk.member.record.offer
    for _ in range(2):
        desk.agree(offer)
    assert desk.member.standing.archived == m.ArchivedEntry(1, 30, Term(1), ("file",))
    assert waited(replace(order, version=40)) == 0 and 4 <= waited(replace(order, version=50)) < 5


def appended(ballot: int, before: int, *entries: m.Entry, committed: int = 0, offer: m.Offer | None = None) -> m.Append:
    before_ballot = 1 if before else 0
    return m.Append(ballot, before, before_ballot, entries, committed, offer)


def test_a_follower_copies_what_the_leader_offers_and_says_so() -> None:
    desk = Desk()
    offer = m.Offer(1, Term(1), ("file",))
    decision = m.Decision(Term(1), StepNumber(0), 1.0, 1.0, 128, 1.0, (m.StageOutcome(0, "d"),))
    entries = (m.TermEntry(1, Term(1)), m.DecisionEntry(1, decision))
    orders = desk.hear(TWO, appended(1, 0, *entries, committed=2, offer=offer))
    assert emitted(orders, DecisionRecorded) == [DecisionRecorded(1, 0, str(TWO), 1.0, 1 / 128, 1.0, 128)]
    copies = [o for o in desk.hear(TWO, appended(1, 2, committed=2, offer=offer)) if isinstance(o, CollectCheckpoint)]
    assert copies == [CollectCheckpoint(1, Term(1), ((TWO,),), ("file",), from_archive=True)]
    desk.tell(ArchiveStored(1, Term(1), ("file",)))
    (reply,) = sent(desk.hear(TWO, appended(1, 2, committed=2, offer=offer)), m.Appended)
    assert isinstance(reply, m.Appended) and (reply.held, reply.held_in) == (1, 1)
    (reply,) = sent(desk.hear(TWO, appended(1, 2, committed=2, offer=replace(offer, term=Term(2)))), m.Appended)
    assert isinstance(reply, m.Appended)


def test_a_new_leader_fetches_what_a_majority_holds_and_it_does_not() -> None:
    archived = m.ArchivedEntry(1, 1, Term(1), ("file",))
    desk = Desk(Stored(1, "", 3, Standing(1, None, 0, archived), ((1, 1),)))
    copies = [order for order in desk.lead() if isinstance(order, CollectCheckpoint)]
    assert copies[0] == CollectCheckpoint(1, Term(1), ((TWO, THREE),), ("file",), from_archive=True)
    assert desk.member.core is not None and desk.member.core.history.archived == 1
    desk.tell(ArchiveStored(1, Term(1), ("file",)))
    desk.now += SETTINGS.heartbeat_s
    desk.tell(Tick())
    assert desk.member.record.offer == m.Offer(1, Term(1), ("file",))


def test_a_checkpoint_that_a_rollback_goes_back_to_is_copied_once() -> None:
    archived = m.ArchivedEntry(1, 1, Term(1), ("file",))
    desk = Desk(Stored(2, "", 4, Standing(2, None, 2, archived), ((1, 1),)))

    def copies(beats: int) -> list[GroupAction]:
        orders: list[GroupAction] = []
        for _ in range(beats):
            desk.now += SETTINGS.heartbeat_s
            orders += desk.tell(Tick()) + desk.agree()
        return [order for order in orders if isinstance(order, CollectCheckpoint)]

    assert any(isinstance(order, CollectCheckpoint) for order in desk.lead())
    desk.tell(ArchiveStored(1, Term(1), ("other",)))
    assert copies(9), "a copy that differs from the one in the record does not count"
    desk.tell(ArchiveStored(1, Term(1), ("file",)))
    assert not copies(9)
    assert desk.member.record.offer == m.Offer(1, Term(1), ("file",))


def test_a_leader_without_a_majority_says_so_and_ends_its_reign() -> None:
    desk = Desk()
    desk.lead()
    desk.now += 4 * SETTINGS.heartbeat_s
    orders = desk.tell(Tick())
    assert [event.reason for event in emitted(orders, LeadershipLost)] == ["heard from 0 of 2 other members"]  # type: ignore[attr-defined]
    assert desk.member.core is None and desk.member.leader is None
    said: list[object] = []
    for _ in range(100):
        desk.now += SETTINGS.heartbeat_s / 2
        said += emitted(desk.tell(Tick()), MajorityMissing)
    assert len(said) == 1, "once"


def test_a_leader_that_hears_less_of_the_swarm_makes_room() -> None:
    desk = Desk()
    desk.lead()
    reply = m.Appended(desk.member.record.ballot, desk.member.record.log.last, peers=3)
    lost: list[object] = []
    for beat in range(60):
        desk.now += SETTINGS.heartbeat_s / 2
        desk.hear(PEER, joined(2 * beat + 1))
        desk.hear(Actor("other", 1), m.Join(Actor("other", 1), None, 1.0, 2 * beat + 1))
        assert not emitted(desk.hear(TWO, reply), LeadershipLost), "two of three are enough"
    for beat in range(60, 90):
        desk.now += SETTINGS.heartbeat_s / 2
        orders = desk.hear(PEER, joined(2 * beat + 1)) + desk.hear(TWO, reply)
        lost += emitted(orders, LeadershipLost)
    assert [event.reason for event in lost] == ["people heard: 1; by another coordinator: 3"]  # type: ignore[attr-defined]
    assert desk.member.core is None and desk.member.record.next_wakeup() > desk.now


def test_what_a_dead_coordinator_last_heard_does_not_count() -> None:
    """People have left since it died."""
    desk = Desk()
    desk.lead()
    record = desk.member.record
    peers = [Actor(f"p{number}", 1) for number in range(10)]
    desk.hear(THREE, m.Appended(record.ballot, record.log.last, peers=len(peers)))
    for beat in range(120):
        here = peers if beat < 60 else peers[:4]
        desk.now += SETTINGS.heartbeat_s / 2
        for peer in here:
            desk.hear(peer, m.Join(peer, None, 1.0, beat + 1))
        desk.hear(TWO, m.Appended(record.ballot, record.log.last, peers=len(here)))
        desk.tell(Tick())
    assert record.peers == 4 and record.leads


def test_the_devices_of_one_person_do_not_make_a_coordinator_lead() -> None:
    """They could all be silent towards whoever leads."""
    audience = Audience(SETTINGS.heartbeat_s, SETTINGS.step_budget_s)
    devices = [Actor(f"device{n}", 1) for n in range(8)]
    for actor in (*devices, Actor("one", 1), Actor("two", 1)):
        audience.hear(m.Join(actor), 0.0)
    assert audience.people(0.0) == 10, "nobody has said who joined with which pass"
    same = tuple(Device("ab" * 16, 8, device.peer) for device in devices)
    audience.learn(same)
    assert audience.people(0.0) == 10, "one pass: who is who is unknown"
    watched = (*same, Device("aa" * 16, 1, "three", observes=True), Device("ab" * 16, 8, "one", observes=True))
    audience.learn(watched)
    assert audience.people(0.0) == 10, "observers are no people of the run"
    audience.learn((*watched, Device("cd" * 16, 1, "one"), Device("ef" * 16, 1, "two")))
    assert audience.people(0.0) == 3


def test_no_coordinator_of_the_group_can_be_expelled() -> None:
    """Nothing could take it back, and nobody would hear it again."""
    ids = [f"12D3KooW{letter * 44}" for letter in "ABC"]
    desk, orders = Desk(group=tuple(Actor(peer, 0) for peer in ids)), []
    desk.lead()
    for number, peer in enumerate(ids):
        orders += desk.tell(ControlRequested(f"r{number}", "expel", peer, "Ann", "a slip"))
    answers = [order.error for order in orders if isinstance(order, AnswerControl)]
    assert answers == [f"{peer!r} is a coordinator of this run: only peers can be expelled" for peer in ids]


def test_strangers_have_no_say_in_the_record() -> None:
    desk = Desk()
    desk.tell(Tick())
    for sender in (PEER, Actor("c1", 7)):
        for message in (m.Canvass(9, 9, 9, True), appended(9, 0, m.TermEntry(9, Term(9))), m.Adjourn(9, "go")):
            assert not desk.hear(sender, message)
    assert desk.member.record.ballot == 0 and desk.member.record.log.last == 0


def test_ctrl_c_ends_this_member_alone() -> None:
    desk = Desk()
    desk.lead()
    orders = desk.tell(LeaveRequested("interrupted"))
    assert Stop("interrupted") in orders and not sent(orders, m.Adjourn)


def test_who_may_have_prepared_the_last_step_is_told_of_the_decision_before_a_state() -> None:
    """What it told the leader that died, no other knows: its last report to all is from before."""
    decision = m.Decision(Term(1), StepNumber(0), 1.0, 1.0, 128, 1.0, (m.StageOutcome(0, "d"),))
    settings = small_settings(stages=1, microbatches=2, steps=4, replicas=2)
    desk = Desk(Stored(1, "c1", 2, Standing(1, decision), ((1, 2),)), settings=settings)
    other = Actor("other", 1)
    desk.now = 9 * SETTINGS.heartbeat_s
    desk.hear(other, m.Status(other, StageIndex(0), 1, sequence=1, state_term=1))
    desk.hear(PEER, m.Status(PEER, StageIndex(0), 0, sequence=1, state_term=1))
    orders = desk.lead_at_once()
    assert sent(orders, m.Decide, PEER) and not sent(orders, m.Assign, PEER) and not sent(orders, m.Open)
    orders = desk.hear(PEER, m.Status(PEER, StageIndex(0), 0, sequence=2, state_term=1))
    assert sent(orders, m.Assign, PEER), "it has nothing prepared"
