"""What a peer tells of itself: its machine once to whoever leads, its work after each step, little over a slow line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from peers.stage import telemetry
from peers.stage.tcp_settings import queues_much, slows_after_pauses
from peers.stage.telemetry import Reports
from peers.stage.usage import Usage, machine_traits
from swarm.compute.meter import FORWARD, Meter
from swarm.events import EventLog, PeerDescribed, PeerWorked, read_log
from swarm.net.link_rates import LinkRates
from swarm.net.round_trips import RoundTrips
from swarm.protocol.ids import Actor, PassId, PassKind, StepNumber, Term
from swarm.protocol.messages import LINK_KINDS, Join, Means, Message, Open, StageTable, Telemetry, Trait
from swarm.protocol.peer.core import PeerCore
from swarm.simulation.runs.plan import small_settings

ME, ONE, TWO, SIBLING = Actor("me", 1), Actor("c1", 0), Actor("c2", 0), Actor("sibling", 1)
SENT = {SIBLING: (10, 0, 30, 0, 0, 50)}


class Line:
    """What Reports uses of a network."""

    def __init__(self) -> None:
        self.sent: list[tuple[Actor, Message]] = []
        self.pinged: list[Actor] = []
        self.traffic = self
        self.link_rates = LinkRates()
        self.round_trips = RoundTrips()

    def send(self, to: Actor, message: Message) -> None:
        self.sent.append((to, message))

    def ping(self, actor: Actor) -> None:
        self.pinged.append(actor)
        self.round_trips.answered(actor, self.round_trips.ping(actor).number)

    def take_sent(self, most: int) -> dict[Actor, tuple[int, ...]]:
        return dict(list(SENT.items())[:most])


class Desk:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, uplink: float | None = None) -> None:
        monkeypatch.setattr(telemetry, "LATER_S", 0.01)
        self.core = PeerCore(ME, ONE, small_settings(stages=1, microbatches=2, steps=4, replicas=1), group=(ONE, TWO))
        self.core.offers(Means(uplink=uplink))
        self.line, self.meter, self.path = Line(), Meter(), folder / "events.jsonl"
        self.log = EventLog(self.path, lambda: 1.0)
        traits = machine_traits("cpu", 2, 1000, "cafe")
        self.reports = Reports(self.core, self.line, lambda: self.meter, Usage("cpu"), traits, self.log)  # type: ignore[arg-type]

    def open(self, step: int, sender: Actor = ONE) -> None:
        table = StageTable(0, (ME,), (0, 0))
        opening = Open(PassId(Term(1), StepNumber(step)), PassKind.TRAIN, (table,), None)
        self.reports.heard(sender, opening)

    def work(self) -> None:
        self.meter.begin(FORWARD, 0)
        end = self.meter.clock() + 0.03
        while self.meter.clock() < end:
            pass
        self.meter.end()

    async def told(self) -> list[Telemetry]:
        await asyncio.sleep(0.05)
        return [message for _, message in self.line.sent if isinstance(message, Telemetry)]


async def test_a_step_is_told_when_the_next_one_opens_and_logged_here_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path, monkeypatch)
    desk.open(0, sender=SIBLING)  # it coordinates nothing
    desk.open(0)
    desk.work()
    assert await desk.told() == []
    desk.open(1)
    (told,) = await desk.told()
    assert told.work is not None and told.actor == ME and told.work.pass_id.step == 0
    assert told.work.seconds[FORWARD] >= 0.03 and len(told.work.spans) == 1
    (link,) = told.work.links
    assert (link.other, link.sent) == (SIBLING, SENT[SIBLING]) and len(link.sent) == len(LINK_KINDS)
    assert {figure.name for figure in told.work.usage} >= {"cpu", "resident"}
    (event,) = [event for _, event in read_log(desk.path)]
    assert isinstance(event, PeerWorked) and event.pass_id == "1:0" and event.links[0]["other"] == str(SIBLING)
    assert desk.line.pinged == [SIBLING]
    desk.open(2)
    assert (await desk.told())[-1].work.links[0].rtt_s is not None  # type: ignore[union-attr]
    assert desk.line.pinged == [SIBLING], "not with every step"


def test_only_a_system_that_slows_after_pauses_is_named(tmp_path: Path) -> None:
    def system(control: str, slow_start: str) -> Path:
        (tmp_path / "tcp_congestion_control").write_text(f"{control}\n")
        (tmp_path / "tcp_slow_start_after_idle").write_text(f"{slow_start}\n")
        return tmp_path

    assert slows_after_pauses(system("cubic", "1")) == "cubic"
    assert slows_after_pauses(system("reno", "1")) == "reno"
    assert slows_after_pauses(system("cubic", "0")) is None, "it has the setting"
    assert slows_after_pauses(system("bbr", "1")) is None, "it keeps its rate"
    assert slows_after_pauses(tmp_path / "not linux") is None


@pytest.mark.parametrize(("setting", "much"), [("4294967295", True), ("32768", False), ("", False)])
def test_a_system_that_queues_little_is_not_told_of(setting: str, much: bool, tmp_path: Path) -> None:
    (tmp_path / "tcp_notsent_lowat").write_text(f"{setting}\n")
    assert queues_much(tmp_path) is much and not queues_much(tmp_path / "not linux")


async def test_over_a_slow_line_the_sums_are_told_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, monkeypatch, uplink=100_000.0)
    desk.open(0)
    desk.work()
    desk.open(1)
    (told,) = await desk.told()
    assert told.work is not None and told.work.seconds[FORWARD] >= 0.03
    assert told.work.spans == () and told.work.links == ()
    (event,) = [event for _, event in read_log(desk.path)]
    assert isinstance(event, PeerWorked) and event.spans, "its own log has all"


async def test_what_is_complete_is_told_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, monkeypatch)
    monkeypatch.setattr(telemetry, "LATER_S", 60.0)
    desk.open(0)
    desk.reports.applied(0)
    desk.reports.close()
    assert len(await desk.told()) == 1
    desk.reports.close()
    assert len(await desk.told()) == 1


async def test_the_machine_is_told_once_to_whoever_leads_and_to_another_life_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path, monkeypatch)
    for to in (TWO, ONE, ONE):  # TWO follows
        desk.reports.sent(to, Join(ME))
    assert [to for to, _ in desk.line.sent] == [ONE]
    (told,) = await desk.told()
    names = {trait.name for trait in told.machine}
    assert names >= {"device", "processor", "cores", "threads", "memory", "system", "release"} and told.work is None
    assert Trait("process", "cafe") in told.machine
    desk.reports.link_up(ONE)
    desk.reports.sent(ONE, Join(ME))
    desk.core.leader.actor = TWO
    desk.reports.sent(TWO, Join(ME))
    assert [to for to, _ in desk.line.sent] == [ONE, ONE, TWO]
    assert [event.kind for _, event in read_log(desk.path)] == [PeerDescribed.__name__], "its own log needs it once"
