"""The directory of a run's records: whom it looks for, what it believes, whom it forgets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.utils import get_dht_time

from peers.runtime import directory as module
from peers.runtime.directory import Directory
from peers.runtime.notebook import Notebook
from swarm.net.handshake import Role
from swarm.net.records import PeerRecord
from swarm.protocol.ids import Actor

RUN = "ab" * 32
ME, COORDINATOR, OTHER = Actor("me", 1), Actor("coordinator", 0), Actor("other", 4)


class Net:
    """Writes down what is learned; `lost` are those it would forget."""

    def __init__(self) -> None:
        self.learned: list[tuple[Actor, tuple[str, ...]]] = []
        self.lost: list[Actor] = []
        self.kept: set[Actor] = set()
        self.unreached: set[Actor] = set()

    def learn(self, actor: Actor, addresses: Sequence[str]) -> None:
        self.learned.append((actor, tuple(addresses)))

    def why_lost(self, actor: Actor) -> str | None:
        return "no route" if actor in self.unreached else None

    def forget_lost(self, after_s: float, keep: Any) -> list[Actor]:
        self.kept = set(keep)
        return [actor for actor in self.lost if actor not in keep]


def record(actor: Actor, *addresses: str) -> PeerRecord:
    return PeerRecord(RUN, actor, addresses, Role.PEER, None, -1, 1.0, get_dht_time() + 30)


class Setting:
    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, notebook: Path | None = None, coordinators: Sequence[Actor] = ()
    ) -> None:
        self.records: list[PeerRecord] = []
        self.net = Net()
        host: Any = SimpleNamespace(peer_id=ME.peer)
        net: Any = self.net

        self.asked: list[list[str]] = []

        async def lookup(_host: object, _run_hash: str, peers: Sequence[str]) -> list[PeerRecord]:
            self.asked.append(sorted(peers))
            return [record for record in self.records if record.actor.peer in peers]

        monkeypatch.setattr(module.records, "lookup", lookup)
        given = {COORDINATOR: ("/ip4/1.2.3.4/tcp/1",)}
        kept = None if notebook is None else Notebook(notebook)
        self.directory = Directory(host, net, RUN, Role.PEER, lambda: (None, -1, 0.0), given, kept, coordinators)


async def test_changed_addresses_are_taken_and_those_of_the_invite_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Setting(monkeypatch)
    monkeypatch.setattr(module, "_REFRESH_S", 0.0)
    it.directory.need([ME, COORDINATOR, OTHER])
    it.records = [record(ME, "/ip4/10.0.0.9/tcp/9"), record(COORDINATOR, "/ip4/10.0.0.1/tcp/1"), record(OTHER, "a")]
    await it.directory._refresh()
    await it.directory._refresh()  # no news
    it.records = [record(OTHER, "a", "b")]
    await it.directory._refresh()
    assert it.net.learned == [
        (COORDINATOR, ("/ip4/10.0.0.1/tcp/1", "/ip4/1.2.3.4/tcp/1")),
        (OTHER, ("a",)),
        (OTHER, ("a", "b")),
    ]


async def test_who_is_not_found_is_looked_for_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Setting(monkeypatch)
    assert it.directory._pause() == 10.0
    it.directory.need([OTHER, ME])
    assert [it.directory._pause() for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    it.directory.need([OTHER])
    assert it.directory._pause() == 10.0
    another = Actor("another", 1)
    it.directory.need([another])
    assert it.directory._pause() == 0.5
    it.records = [record(another, "x")]
    await it.directory._refresh()
    assert it.directory._pause() == 10.0  # those of an older pass are nobody's business any more


async def test_only_who_is_wanted_is_looked_up_and_who_is_reached_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Setting(monkeypatch)
    lost = Actor("lost", 1)
    it.records = [record(actor, "x") for actor in (COORDINATOR, OTHER, lost, Actor("a stranger", 1))]
    await it.directory._refresh()
    assert it.asked == [], "nobody is wanted"
    it.directory.need([OTHER, lost])
    await it.directory._refresh()
    assert it.asked == [["lost", "other"]]
    await it.directory._refresh()
    assert len(it.asked) == 1, "both are known"
    it.net.unreached = {lost}
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    await it.directory._refresh()
    assert it.asked[1:] == [["lost"]], "it may have moved"


async def test_many_are_looked_up_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Setting(monkeypatch)
    it.directory.need(Actor(f"p{number:03}", 1) for number in range(80))
    it.directory._missing = set()
    for _ in range(4):
        await it.directory._refresh()
    assert [len(peers) for peers in it.asked] == [8, 8, 8, 8]
    assert len({peer for peers in it.asked for peer in peers}) == 32


async def test_who_is_lost_or_without_a_record_for_long_leaves_the_notebook(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notebook = tmp_path / "peers.json"
    it = Setting(monkeypatch, notebook)
    monkeypatch.setattr(module, "_REFRESH_S", 0.0)
    wanted, silent = Actor("wanted", 1), Actor("silent", 1)
    it.directory.need([wanted, silent, OTHER])
    it.records = [record(actor, "x") for actor in (wanted, silent, OTHER)]
    await it.directory._refresh()
    assert set(json.loads(notebook.read_text())) == {"wanted", "silent", "other"}
    it.directory.need([wanted])
    it.net.lost = [wanted, OTHER]
    it.directory._forget()
    assert it.net.kept == {wanted, COORDINATOR}
    assert set(json.loads(notebook.read_text())) == {"wanted", "silent"}
    it.records = [record(wanted, "x")]
    monkeypatch.setattr(module, "_FORGET_S", 0.0)
    it.directory.need([wanted])
    await it.directory._refresh()
    it.directory._seen["wanted"] += 3600.0
    it.directory._forget()
    assert set(json.loads(notebook.read_text())) == {"wanted"}


async def test_coordinators_stay_in_the_notebook_while_a_peer_waits_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notebook = tmp_path / "peers.json"
    it = Setting(monkeypatch, notebook, [COORDINATOR])
    it.records = [record(COORDINATOR, "x"), record(OTHER, "y")]
    it.directory.need([COORDINATOR, OTHER])
    it.directory._ask_dht_from = 0.0
    it.net.unreached = {COORDINATOR, OTHER}
    await it.directory._refresh()
    monkeypatch.setattr(module, "_FORGET_S", -1.0)
    it.directory._forget()
    assert set(json.loads(notebook.read_text())) == {"coordinator"}


async def test_a_coordinator_that_is_back_is_asked_at_once_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Setting(monkeypatch, None, [COORDINATOR])
    it.directory._ask_dht_from = 0.0
    it.net.unreached = {COORDINATOR}  # so that the DHT answers in this test
    it.directory.need([COORDINATOR])
    it.records = [record(COORDINATOR, "x")]
    await it.directory._refresh()
    await it.directory._refresh()
    assert it.asked == [["coordinator"]]
    it.directory._wake.clear()
    it.directory.link_up(COORDINATOR)
    await it.directory._refresh()
    assert it.directory._wake.is_set() and it.asked == [["coordinator"]] * 2


async def test_who_is_reached_stays_in_the_notebook_though_no_record_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notebook = tmp_path / "peers.json"
    notebook.write_text(json.dumps({"other": [4, ["x"]], "lost": [1, ["y"]]}))
    it = Setting(monkeypatch, notebook)
    lost = Actor("lost", 1)
    it.directory.need([OTHER, lost])
    assert it.directory.wants(lost) and not it.directory.wants(COORDINATOR)
    it.net.unreached = {lost}
    it.directory._seen = {"other": -module._FORGET_S, "lost": -module._FORGET_S}
    await it.directory._refresh()
    it.directory._forget()
    assert set(json.loads(notebook.read_text())) == {"other"}


NOTEBOOKS = {
    "empty": "",
    "a list": "[]",
    "no addresses": '{"other": 3}',
    "infinity": '{"other": [1e400, ["x"]]}',
    "deep": "[" * 100_000,
    "not UTF-8": "\udcff",
}


@pytest.mark.parametrize("text", NOTEBOOKS.values(), ids=NOTEBOOKS)
async def test_a_damaged_notebook_is_said_and_replaced(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notebook = tmp_path / "peers.json"
    notebook.write_text(text, encoding="utf-8", errors="surrogateescape")
    it = Setting(monkeypatch, notebook)
    assert text == NOTEBOOKS["infinity"] or "peers.json cannot be used, so this process" in caplog.text
    it.directory.need([OTHER])
    it.records = [record(OTHER, "x")]
    await it.directory._refresh()
    assert set(json.loads(notebook.read_text())) == {"other"}


async def test_a_folder_in_place_of_the_notebook_prevents_no_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "peers.json").mkdir()
    Setting(monkeypatch, tmp_path / "peers.json")
    assert "peers.json cannot be used" in caplog.text and "Is a directory" in caplog.text


async def test_a_notebook_that_cannot_be_written_is_said_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    it = Setting(monkeypatch, tmp_path / "gone" / "peers.json")
    it.directory.need([OTHER])
    it.records = [record(OTHER, "x")]
    await it.directory._refresh()
    assert "peers.json cannot be written" in caplog.text and "DHT" not in caplog.text
