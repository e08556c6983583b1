"""What the organiser commands, by hand: two replicas of one stage, and one input after another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarm.events import ControlGiven, ControlRefused, PeerExpelled, PeerLeaving, RunPaused
from swarm.protocol import messages as m
from swarm.protocol.admissions import Device
from swarm.protocol.controls import Controls, check
from swarm.protocol.coordinator.audit.audits import Ruling
from swarm.protocol.coordinator.audit.culprit_search import Accused
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import (
    AnswerControl,
    ArchiveStored,
    CollectCheckpoint,
    CommandWritten,
    ControlRequested,
    CoordinatorInput,
    RecordWritten,
    TermWritten,
    WriteCommand,
    WriteRecord,
    WriteTerm,
)
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.ids import Actor, PassId, StageIndex, StepNumber, Term
from swarm.protocol.io import Emit, Received, Send, Tick
from swarm.simulation.runs.plan import small_settings

ME, ONE, TWO = Actor("coordinator", 0), Actor("QmPeerOne", 1), Actor("QmPeerTwo", 1)
SETTINGS = small_settings(stages=1, microbatches=2, steps=4, replicas=2, checkpoint_every=100)


class Desk:
    """A core and two peers that do what they are told. What it writes is on disk when the test says so."""

    def __init__(self, controls: Controls | None = None, decision: m.Decision | None = None) -> None:
        term = 0 if decision is None else decision.term
        self.core = CoordinatorCore(ME, SETTINGS, term, decision, None, controls=controls)
        self.now = 0.0
        self.requests = 0
        self.reports = 0
        self.version = 0 if decision is None else decision.step + 1
        self.orders: list[object] = []
        """Everything so far."""
        self.tell(Tick())
        self.tell(TermWritten(self.of(WriteTerm)[-1].term))
        for actor in (ONE, TWO):
            self.tell(Received(actor, m.Join(actor)))
        self.report()

    def tell(self, event: CoordinatorInput) -> list[object]:
        self.now += 0.001
        orders = list(self.core.handle(event, self.now))
        self.orders += orders
        return orders

    def of(self, kind: type, orders: list[object] | None = None) -> list:
        """Actions of a kind, or what is sent or emitted of it."""
        found = []
        for order in self.orders if orders is None else orders:
            inner = order.message if isinstance(order, Send) else order.event if isinstance(order, Emit) else order
            if isinstance(inner, kind):
                found.append(inner)
        return found

    def report(self, saved: int = -1, prepared: m.Prepared | None = None) -> list[object]:
        """Both say how they stand: in the open pass, if there is one."""
        self.reports += 1
        open_pass, orders = self.core.open_pass, []
        for actor in (ONE, TWO):
            status = m.Status(
                actor,
                StageIndex(0),
                self.version,
                None if open_pass is None else open_pass.pass_state.pass_id,
                () if open_pass is None else (0,),
                0 if prepared is None else 3,
                prepared,
                checkpoint_version=saved,
                checkpoint_digest="file" if saved >= 0 else "",
                sequence=self.reports,
            )
            orders += self.tell(Received(actor, status))
        return orders

    def step(self) -> m.Decision:
        """The open step is computed and decided, and the next one opens if it may."""
        assert self.core.open_pass is not None
        attempt = self.core.open_pass.pass_state.attempt(0)
        self.report(prepared=m.Prepared(attempt, "digest", 1.0, 1.0))
        decision = self.of(WriteRecord)[-1].decision
        self.tell(RecordWritten(decision))
        self.version = decision.step + 1
        self.report()
        return decision

    def ask(self, command: str, value: str = "", request: str = "", why: str = "because") -> list[object]:
        self.requests += 1
        return self.tell(ControlRequested(request or f"{self.version} r{self.requests}", command, value, "Ann", why))

    def give(self, command: str, value: str = "") -> list[object]:
        """It is asked for, and written at once."""
        (write,) = self.of(WriteCommand, self.ask(command, value))
        return self.tell(CommandWritten(write.command))

    def refused(self, command: str, value: str = "") -> str:
        orders = self.ask(command, value)
        (answer,), (event,) = self.of(AnswerControl, orders), self.of(ControlRefused, orders)
        assert not self.of(WriteCommand, orders) and answer.number == 0 and answer.error == event.reason
        return str(answer.error)


def test_a_command_takes_effect_when_it_is_written_and_not_before() -> None:
    desk = Desk()
    assert desk.core.phase is Phase.OPEN
    orders = desk.ask("pause")
    (write,) = desk.of(WriteCommand, orders)
    assert write.command == m.Command(1, "pause", "", "Ann", "because", "0 r1")
    assert not desk.of(ControlGiven, orders) and not desk.of(AnswerControl, orders)
    assert desk.core.history.controls.paused is None
    orders = desk.tell(CommandWritten(write.command))
    assert desk.of(ControlGiven, orders) == [ControlGiven(1, "pause", "", "Ann", "because")]
    assert desk.of(AnswerControl, orders)[0].number == 1
    assert desk.core.phase is Phase.OPEN, "what is open is finished"
    desk.step()
    assert desk.core.phase is Phase.BETWEEN
    assert desk.of(RunPaused)[-1] == RunPaused("paused by Ann: because")
    assert desk.of(m.Decide)[-1].decision.step == 0, "who has not applied it is told, for no Open tells it soon"
    desk.give("resume")
    assert desk.core.phase is Phase.OPEN


def test_no_pass_opens_while_a_command_is_written() -> None:
    desk = Desk()
    desk.give("pause")
    desk.step()
    desk.ask("resume")
    (resume,) = [write.command for write in desk.of(WriteCommand)[1:]]
    desk.ask("rate", "0.5")
    desk.tell(CommandWritten(resume))
    assert desk.core.phase is Phase.BETWEEN, "the rate is still on its way to the disk"
    desk.tell(CommandWritten(desk.of(WriteCommand)[-1].command))
    assert desk.core.phase is Phase.OPEN and desk.step().rate == 0.5


def test_a_rate_counts_for_steps_that_open_later() -> None:
    desk = Desk()
    desk.give("rate", "0.5")
    assert desk.step().rate == 1.0, "it had opened before"
    assert desk.step().rate == 0.5


def test_a_request_that_comes_again_is_one_command() -> None:
    desk = Desk()
    (write,) = desk.of(WriteCommand, desk.ask("rate", "2", "mine"))
    assert not desk.of(WriteCommand, desk.ask("rate", "2", "mine"))
    desk.tell(CommandWritten(write.command))
    orders = desk.ask("rate", "2", "mine")
    assert not desk.of(WriteCommand, orders) and desk.of(AnswerControl, orders)[0].number == 1
    assert not desk.of(ControlGiven, desk.tell(CommandWritten(write.command))), "nor does it count twice"
    told = desk.of(ControlRefused)
    assert desk.ask("rate", "none", "bad") and desk.ask("rate", "none", "bad")
    assert len(desk.of(ControlRefused)) == len(told) + 1 and len(desk.of(AnswerControl)) == 4


@pytest.mark.parametrize(
    ("command", "value", "why"),
    [
        ("rate", "0", "'0' is not a rate"),
        ("rate", "nan", "'nan' is not a rate"),
        ("rate", "inf", "'inf' is not a rate"),
        ("rate", "fast", "'fast' is not a rate"),
        ("steps", "-1", "'-1' is not a number of steps"),
        ("steps", "1e3", "'1e3' is not a number of steps"),
        ("steps", "99999999999999999999", "is not a number of steps"),
        ("steps", "1", "1 steps are too few: step 2 is trained, or under way"),
        ("steps", "4", "the run ends after step 4 anyway"),
        ("stop_after", "1", "1 steps are too few"),
        ("stop_after", "5", "the run ends after step 4, before step 5: `steps 5` moves its end later"),
        ("resume", "", "the run is not paused"),
        ("pause", "now", "pause takes no value"),
        ("expel", "", "the command needs a peer"),
        ("expel", "nobody", "no peer 'nobody' is in the run now"),
        ("expel", "QmPeer", "no peer 'QmPeer' is in the run now"),
        ("dismiss", "12D3KooWGLRVVPvcDMrJhekde9TpTBD1qiwdW8xK32UZrBTnp9fm", "is in the run now"),
        ("fly", "", "no command is called 'fly': there are pause, resume, "),
        ("rate", "1\n2", "`value` must be one line"),
        ("rate", "1" * 200, "`value` must be one line of at most 128 bytes"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_value_and_the_fix(command: str, value: str, why: str) -> None:
    desk = Desk()
    desk.step()
    assert why in desk.refused(command, value)
    assert desk.core.history.controls == Controls()


def test_the_end_moves_and_the_last_version_is_saved_wherever_it_is() -> None:
    desk = Desk()
    desk.give("stop_after", "1")
    desk.step()
    assert desk.core.phase is Phase.BETWEEN and not desk.core.open_pass
    assert any(decide.save and not decide.finished for decide in desk.of(m.Decide)), "its peers do not know"
    (order,) = desk.of(CollectCheckpoint, desk.report(saved=1))
    assert order.version == 1
    desk.tell(ArchiveStored(1, Term(1), ("file",)))
    assert desk.core.phase is Phase.FINISHED
    assert desk.of(m.Decide)[-1].finished
    assert "the run has ended" in desk.refused("pause")


def test_the_end_may_be_later_than_the_manifest_says() -> None:
    desk = Desk()
    desk.give("steps", "6")
    assert [desk.step().step for _ in range(6)] == list(range(6))
    assert desk.core.phase is Phase.BETWEEN and desk.of(m.Open)[-1].steps == 6


def test_a_checkpoint_of_now_is_asked_of_all_and_archived_while_paused() -> None:
    desk = Desk()
    assert "needs no checkpoint" not in desk.refused("checkpoint", "3")
    desk.give("pause")
    desk.step()
    orders = desk.give("checkpoint")
    assert desk.of(ControlGiven, orders)[0].value == "1"
    desk.now += 1.0
    assert [decide.save for decide in desk.of(m.Decide, desk.report())] == [True, True]
    (order,) = desk.of(CollectCheckpoint, desk.report(saved=1))
    assert (order.version, order.holders) == (1, ((ONE, TWO),))
    desk.tell(ArchiveStored(1, Term(1), ("file",)))
    assert "version 1 is in the archive already" in desk.refused("checkpoint")
    desk.give("resume")
    assert not desk.of(m.Open)[-1].save


def test_a_checkpoint_that_comes_to_nothing_is_asked_for_again_after_a_step_budget() -> None:
    """Asked for while a step is under way, it is of the version that step leads to."""
    desk = Desk()
    desk.give("checkpoint")
    assert not desk.of(m.Open)[-1].save
    saves = []
    for _ in range(3):
        desk.step()
        saves.append((desk.of(m.Open)[-1].pass_id.step, desk.of(m.Open)[-1].save))
        if len(saves) == 2:
            desk.now += SETTINGS.step_budget_s
            desk.core._next_tick = desk.now  # it has not stood still
    assert saves == [(1, True), (2, False), (3, True)]


def test_who_is_expelled_is_halted_and_stays_out_after_a_restart() -> None:
    desk = Desk()
    orders = desk.give("expel", str(ONE))
    why = "expelled from the run by Ann: because"
    assert [a for a in orders if isinstance(a, Send) and isinstance(a.message, m.Halt)] == [
        Send(ONE, m.Halt(why, Term(1), expelled=True))
    ]
    assert desk.of(PeerExpelled, orders)[0].actor == str(ONE)
    assert "is in the run now" in desk.refused("expel", ONE.peer), "it is gone"
    later = Actor(ONE.peer, 2)
    again = Desk(desk.core.history.controls)
    assert again.core.members.get(ONE) is None
    assert again.of(m.Halt, again.tell(Received(later, m.Join(later)))) == [m.Halt(why, Term(1), expelled=True)]


def test_nobody_is_halted_before_the_term_is_written() -> None:
    """In a group the term before was another coordinator's."""
    command = m.Command(1, "expel", ONE.peer, "Ann", "", "r")
    core = CoordinatorCore(ME, SETTINGS, 3, None, None, controls=Controls.of([command]))
    assert not [a for a in core.handle(Received(ONE, m.Join(ONE)), 0.0) if isinstance(a, Send)]
    core.handle(TermWritten(4), 0.1)
    (halt,) = [a.message for a in core.handle(Received(ONE, m.Join(ONE, sequence=1)), 0.2) if isinstance(a, Send)]
    assert halt == m.Halt("expelled from the run by Ann", Term(4), expelled=True)


def test_who_is_dismissed_is_asked_to_leave_until_it_says_that_it_does() -> None:
    desk = Desk()
    orders = desk.give("dismiss", "PeerTwo")
    assert desk.of(m.Excuse, orders) == [m.Excuse(Term(1), "let go by Ann: because")]
    assert desk.of(PeerLeaving, orders)[0].actor == str(TWO)
    desk.now += SETTINGS.heartbeat_s
    assert desk.of(m.Excuse, desk.report()), "it may not have heard"
    status = m.Status(TWO, StageIndex(0), 0, PassId(Term(1), StepNumber(0)), (0,), sequence=99, leaving=True)
    desk.tell(Received(TWO, status))
    desk.now += SETTINGS.heartbeat_s
    assert not desk.of(m.Excuse, desk.tell(Tick()))
    later = Actor(TWO.peer, 2)
    desk.now += SETTINGS.heartbeat_s
    assert not desk.of(m.Excuse, desk.tell(Received(later, m.Join(later)))), "it may come again"


def test_a_coordinator_that_starts_again_goes_on_as_commanded() -> None:
    desk = Desk()
    desk.give("rate", "0.25")
    desk.give("steps", "9")
    desk.give("pause")
    decision = desk.step()
    again = Desk(desk.core.history.controls, decision)
    assert again.core.phase is Phase.BETWEEN and again.of(RunPaused) == [RunPaused("paused by Ann: because")]
    again.give("resume")
    assert again.of(ControlGiven)[-1].number == 4
    assert again.step().rate == 0.25 and again.core.history.end(SETTINGS) == 9


def test_a_rollback_takes_no_command_back() -> None:
    history = History(Term(1), None, 0, controls=Controls(count=1, rate=0.5, steps=7), version=3)
    history.asked = 3
    history.rolled_back(0)
    assert history.controls == Controls(count=1, rate=0.5, steps=7) and history.asked == -1


@pytest.mark.parametrize(
    ("name", "value"),
    [("rate", "0"), ("steps", "x"), ("fly", ""), ("checkpoint", ""), ("stop_after", "0"), ("dismiss", "x.y")],
)
def test_no_coordinator_takes_a_command_from_another_that_none_would_write(name: str, value: str) -> None:
    good = m.Command(1, "rate", "2.0", "Ann", "", "r")
    check(good)
    with pytest.raises(ValueError, match=r"no command|is not a "):
        check(replace(good, name=name, value=value))


ALICE, BOB = "a1" * 16, "b0" * 16


def device(serial: str, devices: int, peer: str) -> str:
    return Device(serial, devices, peer).value


def test_as_many_devices_come_with_a_pass_as_it_is_for() -> None:
    desk = Desk()
    for peer in ("QmPeerOne", "QmPeerTwo", "QmPeerOne"):
        desk.give("admit", device(ALICE, 2, peer))
    controls = desk.core.history.controls
    assert controls.came_with(ALICE) == {"QmPeerOne", "QmPeerTwo"} and not controls.banned
    says = "this pass is for 2 devices, and as many have joined with it"
    assert says in desk.refused("admit", device(ALICE, 2, "QmThree"))
    assert says in controls.objection(Device(ALICE, 2, "QmThree"))
    assert not controls.objection(Device(ALICE, 2, "QmPeerOne")), "who has come may come again"
    desk.give("admit", device(BOB, 1, "QmThree"))
    for junk in ("", "x 1 QmThree", f"{ALICE} 0x1 QmThree", f"{ALICE} 1 Qm.Three"):
        assert desk.refused("admit", junk)
    fresh = Desk(Controls.of([write.command for write in desk.of(WriteCommand)]))
    fresh.requests = 100  # names that the record does not know
    assert says in fresh.refused("admit", device(ALICE, 2, "QmThree")), "the record remembers it"


def test_two_that_ask_at_once_for_the_last_place_get_one() -> None:
    desk = Desk()
    (write,) = desk.of(WriteCommand, desk.ask("admit", device(ALICE, 1, "QmThree")))
    assert "this pass is for 1 device," in desk.refused("admit", device(ALICE, 1, "QmFour"))
    desk.tell(CommandWritten(write.command))
    assert desk.core.history.controls.came_with(ALICE) == {"QmThree"}


def test_the_devices_of_a_revoked_pass_are_sent_away_and_come_with_another_one_only() -> None:
    desk = Desk()
    desk.give("admit", device(ALICE, 2, TWO.peer))
    desk.give("admit", device(BOB, 2, ONE.peer))
    orders = desk.give("revoke", ALICE)
    (halt,) = desk.of(m.Halt, orders)
    assert halt.expelled and halt.reason == "excluded from the run, because its pass was revoked by Ann: because"
    assert {send.to for send in orders if isinstance(send, Send) and isinstance(send.message, m.Halt)} == {TWO}
    assert desk.refused("revoke", ALICE) == "that pass is revoked already"
    assert "is not the serial number of a pass" in desk.refused("revoke", "alice")
    assert "this pass is revoked" in desk.refused("admit", device(ALICE, 2, TWO.peer))
    controls = desk.core.history.controls
    assert set(controls.banned) == {TWO.peer}
    again = Desk(controls)
    assert TWO not in [member.actor for member in again.core.members], "nor after a restart"
    banned_at = controls.banned_at
    desk.give("admit", device(BOB, 2, TWO.peer))
    assert not desk.core.history.controls.banned and desk.core.history.controls.banned_at > banned_at
    desk.tell(Received(TWO, m.Join(TWO)))
    assert TWO in [member.actor for member in desk.core.members]


def test_when_two_devices_of_a_pass_are_expelled_it_lets_nobody_in_any_more() -> None:
    desk = Desk()
    for peer in (ONE.peer, TWO.peer, "QmThree"):
        desk.give("admit", device(ALICE, 8, peer))
    desk.give("expel", str(ONE))
    assert "this device is expelled" in desk.refused("admit", device(ALICE, 8, ONE.peer))
    desk.give("admit", device(ALICE, 8, "QmFour"))
    desk.give("expel", str(TWO))
    assert "2 devices of this pass are expelled" in desk.refused("admit", device(ALICE, 8, "QmFive"))
    assert set(desk.core.history.controls.banned) == {ONE.peer, TWO.peer}, "the others stay"


def test_the_newest_exclusion_comes_last() -> None:
    """Peers are told of the last ones only, if there are thousands."""
    desk = Desk()
    desk.give("admit", device(ALICE, 1, TWO.peer))
    desk.give("expel", str(ONE))
    desk.give("revoke", ALICE)
    assert tuple(desk.core.history.controls.banned) == (ONE.peer, TWO.peer)


def test_whom_an_audit_expels_the_record_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    found = tuple(Accused(actor, StageIndex(0), "its numbers differ") for actor in (ONE, TWO))
    monkeypatch.setattr(desk.core._cycle._audits, "judge", lambda *_: Ruling(again="audited", expelled=found))
    assert desk.core.open_pass is not None
    desk.report(prepared=m.Prepared(desk.core.open_pass.pass_state.attempt(0), "digest", 1.0, 1.0))
    written = [write.command for write in desk.of(WriteCommand)]
    assert [(each.number, each.name, each.value) for each in written] == [
        (1, "expel", ONE.peer),
        (2, "expel", TWO.peer),
    ]
    assert "its numbers differ" in written[0].why
    assert not desk.core.members, "they get no more work"
    desk.tell(Received(ONE, m.Join(ONE)))
    assert not desk.of(PeerExpelled) and not desk.of(m.Halt), "if this process dies, the next one knows nothing of it"
    for command in written:
        desk.tell(CommandWritten(command))
    assert [event.actor for event in desk.of(PeerExpelled)] == [str(ONE), str(TWO)]
    why = "expelled from the run: at step 0 its numbers differ"
    assert desk.of(m.Halt) == [m.Halt(why, desk.core.history.term, expelled=True)] * 2, "each is told once"
    assert not [member.actor for member in Desk(desk.core.history.controls).core.members]
