"""What peers report of themselves: told once for a pass, of members alone, whatever they send."""

from __future__ import annotations

from dataclasses import replace

from swarm.events import Event, PeerDescribed, PeerSeen, PeerTroubled, PeerWorked
from swarm.protocol import messages as m
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import TermWritten
from swarm.protocol.ids import Actor, PassId, StageIndex, StepNumber, Term
from swarm.protocol.io import Emit, LinkLost, Received, Tick
from swarm.simulation.runs.plan import small_settings

ME, ONE, TWO, STRANGER = Actor("coordinator", 0), Actor("one", 1), Actor("two", 1), Actor("three", 1)
PASS = PassId(Term(1), StepNumber(0))
WORK = m.Work(
    PASS,
    StageIndex(0),
    (0.5, 1.0, 0.25, 0.125, 0.0625, 0.0),
    (m.Span(0, 0, 1, 2), m.Span(3, -1, 5, 6)),
    (m.Figure("cpu", 1.23456),),
    (m.LinkUse(TWO, rate=1000.0, rtt_s=0.02, via=ME, sent=(1, 2, 3, 0, 0, 5)), m.LinkUse(STRANGER, rate=5.0)),
)


class Coordinator:
    def __init__(self) -> None:
        self.core = CoordinatorCore(ME, small_settings(stages=1, microbatches=2, steps=2, replicas=2), 0, None, None)
        self.now = 0.0
        self.core.handle(Tick(), 0.0)
        self.core.handle(TermWritten(1), 0.0)
        for actor in (ONE, TWO):
            self.core.handle(Received(actor, m.Join(actor, sequence=1)), 0.0)

    def hear(self, sender: Actor, work: m.Work | None, *machine: m.Trait, of: Actor | None = None) -> list[Event]:
        self.now += 0.001
        orders = self.core.handle(Received(sender, m.Telemetry(of or sender, machine, work)), self.now)
        return [o.event for o in orders if isinstance(o, Emit) and isinstance(o.event, PeerWorked | PeerDescribed)]


def test_work_is_told_once_for_a_pass_with_what_the_other_end_said_of_the_link() -> None:
    coordinator = Coordinator()
    (told,) = coordinator.hear(ONE, WORK)
    assert isinstance(told, PeerWorked)
    assert (told.actor, told.stage, told.pass_id) == (str(ONE), 0, "1:0")
    kinds = ("forward", "backward", "waiting", "reducing", "applying", "recovering")
    assert told.seconds == dict(zip(kinds, WORK.seconds, strict=True))
    assert told.spans == [["forward", 0, 1, 2], ["reducing", -1, 5, 6]]
    assert told.usage == {"cpu": 1.235}
    sent = {"forward": 1, "backward": 2, "sums": 3, "control": 5}
    assert told.links == [{"other": str(TWO), "rtt_s": 0.02, "via": str(ME), "sent": sent}], "of strangers nothing"
    assert coordinator.hear(ONE, WORK) == [], "once for a pass"
    (other,) = coordinator.hear(TWO, replace(WORK, links=(m.LinkUse(ONE, rate=7.0),)))
    assert isinstance(other, PeerWorked)
    assert other.links == [{"other": str(ONE), "rate": 1000}], "as the receiver measures it"


def test_nothing_is_told_of_strangers_of_others_and_of_passes_that_are_not_of_late() -> None:
    coordinator = Coordinator()
    assert coordinator.hear(STRANGER, WORK, m.Trait("device", "cpu")) == []
    assert coordinator.core.members.get(STRANGER) is None, "it is no member for that"
    assert coordinator.hear(TWO, WORK, of=ONE) == []
    for pass_id in (PassId(Term(2), StepNumber(0)), PassId(Term(1), StepNumber(1)), PassId(Term(1), StepNumber(0), 1)):
        assert coordinator.hear(ONE, replace(WORK, pass_id=pass_id)) == []
    assert coordinator.hear(ONE, replace(WORK, stage=StageIndex(1))) == []


def test_a_machine_is_described_once_and_again_when_it_changes_but_not_at_once() -> None:
    coordinator = Coordinator()
    machine = (m.Trait("device", "cpu"), m.Trait("memory", "", 8e9))
    assert coordinator.hear(ONE, None, *machine) == [PeerDescribed(str(ONE), {"device": "cpu", "memory": 8e9})]
    assert coordinator.hear(ONE, None, *machine) == []
    assert coordinator.hear(ONE, None, machine[0]) == []
    coordinator.now += 60.0
    assert coordinator.hear(ONE, None, machine[0]) == [PeerDescribed(str(ONE), {"device": "cpu"})]


def test_a_trouble_is_told_with_its_peer_and_not_with_every_report() -> None:
    coordinator = Coordinator()

    def hear(sender: Actor, trouble: str, of: Actor | None = None) -> list[Event]:
        told = m.Telemetry(of or sender, trouble=trouble)
        orders = coordinator.core.handle(Received(sender, told), coordinator.now)
        return [order.event for order in orders if isinstance(order, Emit) and isinstance(order.event, PeerTroubled)]

    full = "the state of stage 0 at version 3 cannot be loaded: No space left on device"
    assert hear(STRANGER, full) == [] and hear(TWO, full, of=ONE) == []
    assert hear(ONE, full + "\x1b[2J") == [PeerTroubled(str(ONE), 0, full + "\ufffd[2J")]
    assert hear(ONE, "another") == [], "however fast it invents troubles"
    beat_s = coordinator.core.settings.heartbeat_s
    coordinator.now += 60 * beat_s
    assert hear(ONE, "another") == [PeerTroubled(str(ONE), 0, "another")]
    coordinator.now += 60 * beat_s
    assert hear(ONE, "another") == [], "the organiser knows"
    coordinator.now += 1000 * beat_s
    assert hear(ONE, "another") == [PeerTroubled(str(ONE), 0, "another")]
    assert hear(ONE, "") == [] and hear(TWO, "") == []


def test_who_is_gone_is_forgotten() -> None:
    coordinator = Coordinator()
    assert coordinator.hear(ONE, WORK)
    coordinator.core.handle(LinkLost(ONE), 1.0)
    coordinator.core.handle(Tick(), 9.0)
    assert coordinator.hear(ONE, WORK) == []
    orders = coordinator.core.handle(Received(ONE, m.Join(ONE, sequence=2)), 9.0)
    assert Emit(PeerSeen(str(ONE))) in orders
    assert coordinator.hear(ONE, WORK)


def test_in_a_large_swarm_spans_are_not_told() -> None:
    coordinator = Coordinator()
    for number in range(300):
        actor = Actor(f"peer{number}", 1)
        coordinator.core.handle(Received(actor, m.Join(actor, sequence=1)), 0.0)
    (told,) = coordinator.hear(ONE, WORK)
    assert isinstance(told, PeerWorked) and told.spans == [] and told.seconds["forward"] == 0.5
