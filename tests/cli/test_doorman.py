"""Who is shut out: what coordinators tell, what peers keep, and what a certificate needs first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from authority import Authority

from peers.coordinator.doorman import AGAIN_S, LAST_WORD_S, LOOK_S, Doorman
from peers.coordinator.registrar import Registrar
from peers.coordinator.turnstile import OF_A_BLOCK_AT_ONCE, Turnstile
from peers.stage.bans import Bans
from swarm.net.bulk import BulkError, Busy
from swarm.net.passes import Certificate
from swarm.protocol.admissions import Device
from swarm.protocol.controls import Controls
from swarm.protocol.coordinator.io import AnswerControl, ControlRequested
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Banned, Command

RUN = "ab" * 32
SERIAL = "a1" * 16
ONE, TWO, THREE = Actor("QmOne", 1), Actor("QmTwo", 1), Actor("QmThree", 1)
OURS = Authority()


class Net:
    """Writes down what is sent, and whom it shuts out."""

    def __init__(self) -> None:
        self.admission = SimpleNamespace(door=OURS.door(RUN))
        self.sent: list[tuple[Actor, Banned]] = []

    def send(self, actor: Actor, message: Banned) -> None:
        self.sent.append((actor, message))

    def shut_out(self, banned: dict[str, str]) -> None:
        self.admission.door.banned = dict(banned)

    @property
    def banned(self) -> set[str]:
        return set(self.admission.door.banned)


class Record:
    def __init__(self) -> None:
        self.controls = Controls()

    def write(self, name: str, value: str) -> None:
        number = self.controls.count + 1
        self.controls = self.controls.after(Command(number, name, value, "Ann", "", f"r{number}"))

    async def command(self, request: ControlRequested) -> AnswerControl:
        """A command that is written at once."""
        self.write(request.command, request.value)
        return AnswerControl(request.request, self.controls.count)


def test_all_are_told_at_once_and_the_last_word_reaches_who_is_shut_out() -> None:
    net: Any = Net()
    record, known = Record(), [ONE, TWO]
    doorman = Doorman(net, lambda: record.controls, lambda: known)
    doorman.look(0.0)
    assert not net.sent, "as long as nobody is shut out there is nothing to tell"
    record.write("expel", TWO.peer)
    doorman.look(1.0)
    assert net.sent == [(ONE, Banned(1, (TWO.peer,)))] and not net.banned
    assert LOOK_S + LAST_WORD_S < 5.0
    doorman.look(1.0 + LAST_WORD_S)
    assert net.banned == {TWO.peer} and len(net.sent) == 1
    known.append(THREE)
    doorman.look(4.0)
    assert net.sent[1:] == [(THREE, Banned(1, (TWO.peer,)))], "a newcomer is told too"
    doorman.look(5.0 + AGAIN_S)
    assert len(net.sent) == 4, "and all once more, as a message may be lost"
    again: Any = Net()
    Doorman(again, lambda: record.controls, lambda: known)
    assert again.banned == {TWO.peer}, "after a restart it is so from the start"


def test_who_comes_with_another_pass_is_let_in_at_once() -> None:
    net: Any = Net()
    record = Record()
    record.write("admit", Device(SERIAL, 8, ONE.peer).value)
    record.write("revoke", SERIAL)
    doorman = Doorman(net, lambda: record.controls, lambda: [TWO])
    assert net.banned == {ONE.peer} and set(net.admission.door.revoked) == {bytes.fromhex(SERIAL)}
    doorman.look(0.0)
    record.write("admit", Device("b0" * 16, 8, ONE.peer).value)
    doorman.look(0.1)
    assert not net.banned and net.sent == [(TWO, Banned(2, (ONE.peer,))), (TWO, Banned(3, ()))]


def test_a_peer_keeps_the_newest_list_of_its_run(tmp_path: Path) -> None:
    net: Any = Net()
    path = tmp_path / "bans.json"
    bans = Bans(path, RUN, net)
    bans.heard(Banned(3, (ONE.peer,)))
    assert net.banned == {ONE.peer}
    bans.heard(Banned(2, ()))
    assert net.banned == {ONE.peer}, "an older list is out of date"
    for run, expected in ((RUN, {ONE.peer}), ("cd" * 32, set())):
        other: Any = Net()
        Bans(path, run, other)
        assert other.banned == expected
    for junk in ("", "[]", '{"run": 1}', f'{{"run": "{RUN}", "number": "x", "peers": []}}'):
        path.write_text(junk)
        assert Bans(path, RUN, net).known == Banned(0, ())


def test_a_list_that_cannot_be_written_is_obeyed_all_the_same(tmp_path: Path) -> None:
    net: Any = Net()
    (tmp_path / "bans.json").mkdir()
    Bans(tmp_path / "bans.json", RUN, net).heard(Banned(3, (ONE.peer,)))
    assert net.banned == {ONE.peer}


async def test_a_certificate_is_signed_when_the_record_holds_the_device() -> None:
    record, asked = Record(), asyncio.Queue[ControlRequested]()
    answer = asyncio.get_running_loop().create_future()

    async def command(request: ControlRequested) -> AnswerControl:
        asked.put_nowait(request)
        return await answer

    registrar = Registrar(RUN, OURS.coordinator, lambda: record.controls, command)
    given = OURS.ticket(RUN, devices=1).given
    me = Authority(3).coordinator.peer_id
    waiting = [asyncio.create_task(registrar.certificate(me, given, "")) for _ in range(2)]
    request = await asked.get()
    assert (request.command, request.value, request.by) == ("admit", f"{given.serial.hex()} 1 {me}", "pass alice")
    assert not any(task.done() for task in waiting)
    record.write("admit", request.value)
    answer.set_result(AnswerControl(request.request, 1))
    for task in waiting:
        shown = Certificate.open(await task)
        assert (shown.peer, shown.issuer, shown.serial) == (me, OURS.coordinator.peer_id, given.serial)
        assert shown.expires_at == given.expires_at
    assert asked.empty(), "who asks twice at once is written down once"
    assert Certificate.open(await registrar.certificate(me, given, "")).peer == me and asked.empty()
    with pytest.raises(BulkError, match="this pass is for 1 device,"):
        await registrar.certificate(Authority(4).coordinator.peer_id, given, "")
    record.write("expel", me)
    with pytest.raises(BulkError, match="this device is expelled"):
        await registrar.certificate(me, given, "")


async def test_an_open_run_gives_each_device_a_pass_of_its_own_and_so_many_at_a_time() -> None:
    record = Record()

    shown = OURS.ticket(RUN, devices=100_000, open=True).given
    peers = [Authority(n).coordinator.peer_id for n in range(10, 10 + OF_A_BLOCK_AT_ONCE + 2)]
    closed = Registrar(RUN, OURS.coordinator, lambda: record.controls, record.command)
    with pytest.raises(BulkError, match="is not open to everybody any more"):
        await closed.certificate(peers[0], shown, "203.0.113.0/24")
    registrar = Registrar(RUN, OURS.coordinator, lambda: record.controls, record.command, turnstile=Turnstile())
    for peer in peers[:OF_A_BLOCK_AT_ONCE]:
        found = Certificate.open(await registrar.certificate(peer, shown, "203.0.113.0/24"))
        assert (found.peer, found.expires_at) == (peer, shown.expires_at)
        assert found.serial == shown.of_device(peer).serial != shown.serial
    assert {device.devices for device in record.controls.admitted} == {1}
    assert len({device.serial for device in record.controls.admitted}) == OF_A_BLOCK_AT_ONCE, "each has its own"
    with pytest.raises(BulkError, match="try again in 5 minutes"):
        await registrar.certificate(peers[-1], shown, "203.0.113.0/24")
    assert await registrar.certificate(peers[-1], shown, "198.51.100.0/24"), "others may come"
    assert await registrar.certificate(peers[0], shown, "203.0.113.0/24"), "who is in already is not counted again"
    assert await closed.certificate(peers[0], shown, ""), "and stays in"
    record.write("expel", peers[0])
    with pytest.raises(BulkError, match="this device is expelled"):
        await registrar.certificate(peers[0], shown, "198.51.100.0/24")


async def test_passes_that_a_device_shows_in_turn_do_not_make_the_record_grow() -> None:
    record = Record()
    me, passes = Authority(3).coordinator.peer_id, [OURS.ticket(RUN, name).given for name in ("alice", "bob")]
    registrar = Registrar(RUN, OURS.coordinator, lambda: record.controls, record.command)
    for turn in range(20):
        shown = Certificate.open(await registrar.certificate(me, passes[turn % 2], ""))
        assert shown.serial == passes[turn % 2].serial
    assert record.controls.count == len(record.controls.admitted) == 2


async def test_a_device_gets_no_certificate_for_another_role() -> None:
    record = Record()
    registrar = Registrar(RUN, OURS.coordinator, lambda: record.controls, record.command)
    trains, watches = OURS.ticket(RUN).given, OURS.ticket(RUN, "bob", observes=True).given
    one, two = (Authority(number).coordinator.peer_id for number in (3, 4))
    assert not Certificate.open(await registrar.certificate(one, trains, "")).observes
    with pytest.raises(BulkError, match="this device takes part in the run: to observe it as well, use another home"):
        await registrar.certificate(one, watches, "")
    assert Certificate.open(await registrar.certificate(two, watches, "")).observes
    with pytest.raises(BulkError, match="this device observes the run"):
        await registrar.certificate(two, trains, "")
    assert [device.observes for device in record.controls.admitted] == [False, True]


async def test_an_open_run_counts_devices_and_not_admissions(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record()
    monkeypatch.setattr("peers.coordinator.registrar.MOST_ADMITTED", 2)
    shown = OURS.ticket(RUN, devices=100_000, open=True).given
    registrar = Registrar(RUN, OURS.coordinator, lambda: record.controls, record.command, turnstile=Turnstile())
    one, two, three = (Authority(number).coordinator.peer_id for number in (3, 4, 5))
    for name in ("alice", "bob", "carol"):
        await registrar.certificate(one, OURS.ticket(RUN, name).given, "")
    assert await registrar.certificate(two, shown, ""), "three admissions, but one device"
    with pytest.raises(BulkError, match="has let in as many devices as it can"):
        await registrar.certificate(three, shown, "")


async def test_what_the_leader_refuses_is_told_and_what_nobody_answers_may_be_had_later() -> None:
    given, me = OURS.ticket(RUN).given, Authority(3).coordinator.peer_id
    for answer, kind in (
        (AnswerControl("r", error="the run has ended"), BulkError),
        (AnswerControl("r", error="nobody leads", unsure=True), Busy),
    ):

        async def command(_: ControlRequested, said: AnswerControl = answer) -> AnswerControl:
            return said

        registrar = Registrar(RUN, OURS.coordinator, Controls, command)
        with pytest.raises(kind, match=answer.error):
            await registrar.certificate(me, given, "")


async def test_a_device_whose_request_nobody_answers_asks_again_without_another_turn() -> None:
    """Otherwise an open run refuses it for minutes, because its first request has used its block's turns."""
    record, unsure = Record(), [True] * (OF_A_BLOCK_AT_ONCE + 1)

    async def command(request: ControlRequested) -> AnswerControl:
        if unsure:
            unsure.pop()
            return AnswerControl(request.request, error="nobody leads", unsure=True)
        record.write(request.command, request.value)
        return AnswerControl(request.request, len(record.controls.admitted))

    shown, me = OURS.ticket(RUN, devices=100_000, open=True).given, Authority(3).coordinator.peer_id
    registrar = Registrar(RUN, OURS.coordinator, lambda: record.controls, command, turnstile=Turnstile())
    while unsure:
        with pytest.raises(Busy, match="nobody leads"):
            await registrar.certificate(me, shown, "203.0.113.0/24")
    assert Certificate.open(await registrar.certificate(me, shown, "203.0.113.0/24")).peer == me
