"""What a coordinator does when others tell it of another process with its key: only proof makes it leave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peers.coordinator import rival
from peers.coordinator.rival import RivalError, Rivals, check_last_addresses, check_note
from peers.run.home import Home, OpenHome
from swarm.events import CoordinatorCopied, Event
from swarm.net.identity import Identity
from swarm.net.process_card import ProcessCard

RUN = "ab" * 32
WHERE = ("/ip4/203.0.113.7/tcp/4001",)


class Case:
    """A process with the number 100 in a home, and what it does."""

    def __init__(self, home: OpenHome) -> None:
        self.home, self.identity = home, Identity.load(home.identity)
        self.card = ProcessCard.of(RUN, 100, WHERE)
        self.begun = False
        self.stopped: list[str] = []
        self.told: list[Event] = []
        self.rivals = Rivals(
            home,
            self.identity.peer_id,
            self.card,
            ["fellow"],
            lambda: self.begun,
            self.stopped.append,
            self.told.append,
        )

    def shown(self, number: int, by: str = "peer", key: Identity | None = None) -> None:
        self.rivals.heard(by, ProcessCard.of(RUN, number, WHERE).sealed(key or self.identity))


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    with Home.open(tmp_path / "home", lambda: 100.0) as home:
        yield Case(home)


def test_a_newer_process_makes_it_leave_for_good(case: Case) -> None:
    case.begun = True
    case.shown(150)
    (reason,) = case.stopped
    assert f"the key of {case.home.path} was started later, at {WHERE[0]}" in reason and "superseded" in reason
    with pytest.raises(RivalError, match="was started after its last one"):
        check_note(case.home)
    case.home.close()
    case.home.superseded.unlink()  # as the organiser does who wants this one: now it is the newest
    check_note(case.home)
    with Home.open(case.home.path, lambda: 100.0) as again:
        assert again.incarnation == 151


def test_a_false_or_unsigned_word_changes_nothing(case: Case, tmp_path: Path) -> None:
    case.rivals.heard("peer", b"junk")
    case.shown(150, key=Identity.load(tmp_path / "insider.key"))
    case.shown(150, by="fellow", key=Identity.load(tmp_path / "insider.key"))
    case.begun = True
    case.shown(50)  # the card of an earlier process, which an insider has kept
    case.shown(50, by="fellow")
    case.rivals.heard("fellow", case.card.sealed(case.identity))
    assert not case.stopped and not case.home.superseded.exists()


def test_a_new_member_of_a_group_believes_the_others(case: Case) -> None:
    case.shown(50, by="fellow")
    (reason,) = case.stopped
    assert f"takes part in the group, at {WHERE[0]}" in reason
    assert not case.home.superseded.exists(), "it may be started again once the other has ended"


@pytest.mark.parametrize(("answers", "begun"), [(True, False), (False, False), (True, True)])
async def test_a_peers_word_counts_only_if_the_other_process_answers(
    answers: bool, begun: bool, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: asyncio.Queue[Any] = asyncio.Queue()

    async def knock(*words: Any) -> bool:
        case.begun = begun  # a peer may accept this process meanwhile
        asked.put_nowait(words)
        return answers

    monkeypatch.setattr(rival, "knock", knock)
    running = asyncio.create_task(case.rivals.run())
    case.shown(50)
    assert (await asked.get())[:3] == (case.identity.peer_id, WHERE, RUN)
    if not begun:
        async with asyncio.timeout(10):
            while not (case.stopped or case.told):  # noqa: ASYNC110
                await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert bool(case.stopped) is (answers and not begun)
    assert case.told == ([CoordinatorCopied("peer", list(WHERE))] if not answers else [])


async def test_it_asks_at_its_own_last_addresses_only(
    case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    async def knock(*words: Any) -> bool:
        asked.append(words)
        return True

    monkeypatch.setattr(rival, "knock", knock)
    me = case.identity.peer_id
    await check_last_addresses(case.home, me, RUN)
    case.home.join_token.write_text("damaged")
    await check_last_addresses(case.home, me, RUN)
    assert not asked, "it knows of no address"
    other = Identity.load(tmp_path / "other.key").peer_id
    case.home.join_token.write_text(f"{WHERE[0]}/p2p/{other}")
    await check_last_addresses(case.home, me, RUN)
    assert not asked, "that is another coordinator of the group"
    case.home.join_token.write_text(own := f"{WHERE[0]}/p2p/{me}")
    with pytest.raises(RivalError, match=f"the key of {case.home.path} is running, at {WHERE[0]}. Only one"):
        await check_last_addresses(case.home, me, RUN)
    assert [words[1] for words in asked] == [(own,)]
