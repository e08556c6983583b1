"""The address book: who tells a coordinator what, and what it tells whom."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from peers.runtime import address_book, directory
from peers.runtime.address_book import AddressBook, ask
from peers.runtime.directory import Directory
from swarm.net import records
from swarm.net.addresses import is_global
from swarm.net.bulk import ADDRESSES, BulkError, Transfer
from swarm.net.daemon import DialError
from swarm.net.dht_clock import get_dht_time
from swarm.net.handshake import Role
from swarm.net.identity import Identity
from swarm.net.proto import records_pb2
from swarm.net.records import PeerRecord
from swarm.protocol.ids import Actor

RUN = "ab" * 32
LAN, GLOBAL = "/ip4/192.168.1.7/tcp/4001", "/ip4/8.8.8.8/tcp/4001"
C0, C1 = Actor("c0", 0), Actor("c1", 0)


class Member:
    def __init__(self, folder: Path, name: str) -> None:
        self.identity = Identity.load(folder / name)
        self.actor = Actor(self.identity.peer_id, 1)

    def record(self, *addresses: str, **changes: Any) -> PeerRecord:
        expires_at = get_dht_time() + 60
        made = PeerRecord(RUN, self.actor, addresses or (LAN,), Role.PEER, None, -1, 1.0, expires_at)
        return dataclasses.replace(made, **changes)

    def signed(self, record: PeerRecord) -> bytes:
        return records.sign_peer(self.identity, record).SerializeToString()


class Net:
    """Carries questions to coordinators' books; those in `away` cannot be reached, those in `silent` never answer."""

    def __init__(self, me: Actor, **books: AddressBook) -> None:
        self.me = me
        self.bulk = self
        self.books = books
        self.away: set[str] = set()
        self.silent: set[str] = set()
        self.asked: list[tuple[str, bool, int]] = []
        self.learned: dict[Actor, tuple[str, ...]] = {}

    async def fetch(self, who: Actor | str, request: bytes, max_bytes: int) -> Transfer:
        assert isinstance(who, Actor)
        query = records_pb2.AddressQuery.FromString(request.removeprefix(ADDRESSES))
        self.asked.append((who.peer, bool(query.record), len(query.peers)))
        if who.peer in self.away:
            raise DialError("away")
        if who.peer in self.silent:
            await asyncio.Event().wait()
        return self.books[who.peer].answer(self.me, request)

    def why_lost(self, actor: Actor) -> str | None:
        return "away" if actor.peer in self.away else None

    def learn(self, actor: Actor, addresses: tuple[str, ...]) -> None:
        self.learned[actor] = addresses


@pytest.fixture
def one(tmp_path: Path) -> Member:
    return Member(tmp_path, "one")


@pytest.fixture
def two(tmp_path: Path) -> Member:
    return Member(tmp_path, "two")


async def test_a_member_is_told_where_another_is_by_any_coordinator_that_knows(one: Member, two: Member) -> None:
    net = Net(one.actor, c0=AddressBook(RUN), c1=AddressBook(RUN))
    mine, theirs = one.record(LAN, GLOBAL), two.record()
    net.books["c1"].note(two.actor.peer, two.signed(theirs))
    answered, found = await ask(net, [C0, C1], RUN, one.signed(mine), [two.actor.peer, "unknown"])
    assert found == [theirs] and answered == {C0, C1}
    assert all(book.find([one.actor.peer]) == [mine] for book in net.books.values())
    net.away = {"c1"}
    answered, found = await ask(net, [C0, C1], RUN, b"", [two.actor.peer])
    assert found == [] and answered == {C0}


async def test_the_newest_record_counts(one: Member, two: Member) -> None:
    net = Net(one.actor, c0=AddressBook(RUN), c1=AddressBook(RUN))
    older, newer = two.record(), two.record(GLOBAL, actor=Actor(two.actor.peer, 2))
    net.books["c0"].note(two.actor.peer, two.signed(newer))
    net.books["c0"].note(two.actor.peer, two.signed(older))
    net.books["c1"].note(two.actor.peer, two.signed(older))
    for order in ([C0, C1], [C1, C0]):
        assert (await ask(net, order, RUN, b"", [two.actor.peer]))[1] == [newer]


def test_nobody_speaks_for_another_or_for_another_run(one: Member, two: Member) -> None:
    book = AddressBook(RUN)
    for raw in (two.signed(two.record()), one.signed(one.record(run_hash="cd" * 32)), b"junk"):
        query = records_pb2.AddressQuery(record=raw)
        with pytest.raises(BulkError, match="not a question for addresses"):
            book.answer(one.actor, ADDRESSES + query.SerializeToString())
    many = records_pb2.AddressQuery(peers=["x"] * (address_book.MAX_ASKED + 1))
    with pytest.raises(BulkError, match="33 peers are asked for; at most 32"):
        book.answer(one.actor, ADDRESSES + many.SerializeToString())
    assert book.find([one.actor.peer, two.actor.peer]) == []


def test_what_has_expired_is_not_told_and_the_book_is_bounded(
    tmp_path: Path, one: Member, two: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [get_dht_time()]
    monkeypatch.setattr(address_book, "MAX_KEPT", 2)
    book = AddressBook(RUN, lambda: now[0])
    three = Member(tmp_path, "three")
    for member in (one, two, three):
        book.note(member.actor.peer, member.signed(member.record()))
    peers = [member.actor.peer for member in (one, two, three)]
    assert [record.actor for record in book.find(peers)] == [two.actor, three.actor]
    now[0] += 61
    assert book.find(peers) == []


async def test_a_lying_coordinator_is_not_believed(one: Member, two: Member) -> None:
    class Lying(Net):
        async def fetch(self, who: Actor | str, request: bytes, max_bytes: int) -> Transfer:
            forged = records_pb2.SignedRecord.FromString(two.signed(two.record()))
            forged.signature = bytes(64)
            lies = [
                b"junk",
                forged.SerializeToString(),
                one.signed(one.record()),
                two.signed(two.record(run_hash="cd" * 32)),
            ]
            return Transfer.of(records_pb2.AddressAnswer(records=lies).SerializeToString())

    assert (await ask(Lying(one.actor), [C0], RUN, b"", [two.actor.peer]))[1] == []


class Machine:
    """A host with addresses, and what it has put into the DHT."""

    def __init__(self, member: Member, *addresses: str) -> None:
        self.identity, self.peer_id = member.identity, member.actor.peer
        self.where = list(addresses)

    async def addresses(self) -> list[str]:
        return self.where


async def test_coordinators_are_told_all_addresses_and_the_dht_those_of_the_internet(
    one: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[tuple[str, ...]] = []

    async def publish(host: object, record: PeerRecord) -> bool:
        published.append(record.addresses)
        return True

    monkeypatch.setattr(directory.records, "publish", publish)
    net: Any = Net(one.actor, c0=AddressBook(RUN))
    host: Any = Machine(one, LAN, GLOBAL)
    it = Directory(host, net, RUN, Role.PEER, lambda: (None, -1, 1.0), coordinators=[C0])
    await it._tell()
    await it._publish()
    assert net.books["c0"].find([one.actor.peer])[0].addresses == (LAN, GLOBAL)
    assert published == [(GLOBAL,)]
    await it._tell()
    assert len(net.asked) == 1, "it knows"
    host.where = [LAN]
    await it._tell()
    await it._publish()
    assert net.books["c0"].find([one.actor.peer])[0].addresses == (LAN,)
    assert published == [(GLOBAL,)], "nothing is published of a machine that has private addresses alone"
    net.away = {"c0"}
    await it._tell()
    net.away, net.books["c0"] = set(), AddressBook(RUN)
    await it._tell()
    assert net.books["c0"].find([one.actor.peer]), "who was away is told again"
    net.books["c0"] = AddressBook(RUN)
    it._wake.clear()
    it.link_up(C0)
    assert it._wake.is_set(), "it has come back before anybody saw that it was away"
    await it._tell()
    assert net.books["c0"].find([one.actor.peer])


async def test_the_dht_is_asked_for_those_that_no_coordinator_knows(
    one: Member, two: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = Member(tmp_path, "three")
    asked: list[list[str]] = []

    async def lookup(host: object, run_hash: str, peers: list[str]) -> list[PeerRecord]:
        asked.append(list(peers))
        return [three.record(GLOBAL)]

    monkeypatch.setattr(directory.records, "lookup", lookup)
    net: Any = Net(one.actor, c0=AddressBook(RUN))
    net.books["c0"].note(two.actor.peer, two.signed(two.record()))
    host: Any = Machine(one, LAN)
    it = Directory(host, net, RUN, Role.PEER, lambda: (None, -1, 1.0), coordinators=[C0])
    it.need([two.actor, three.actor])
    await it._refresh()
    assert net.learned == {two.actor: (LAN,), three.actor: (GLOBAL,)} and asked == [[three.actor.peer]]


async def test_a_coordinator_looks_again_when_its_book_has_news_of_a_peer_that_it_needs(
    one: Member, two: Member
) -> None:
    net: Any = Net(one.actor)
    host: Any = Machine(one, LAN)
    book = AddressBook(RUN)
    it = Directory(host, net, RUN, Role.COORDINATOR, lambda: (None, -1, 0.0), book=book)
    it.need([two.actor])
    it._wake.clear()
    it.noted("somebody else")
    assert not it._wake.is_set()
    book.note(two.actor.peer, two.signed(two.record()))
    it.noted(two.actor.peer)
    assert it._wake.is_set()
    assert (await it._of_book([two.actor.peer]))[0].addresses == (LAN,)


@pytest.mark.parametrize(
    ("address", "everybody"),
    [
        (GLOBAL, True),
        ("/ip6/2606:4700::1111/tcp/1", True),
        ("/dns4/swarm.example/tcp/1", True),
        ("/ip4/10.1.2.3/tcp/1", False),
        ("/ip4/172.20.0.1/tcp/1", False),
        (LAN, False),
        ("/ip4/100.64.0.1/tcp/1", False),
        ("/ip4/169.254.1.1/tcp/1", False),
        ("/ip4/127.0.0.1/tcp/1", False),
        ("/ip6/fd00::1/tcp/1", False),
        ("/ip6/fe80::1/tcp/1", False),
        ("/ip6/::1/tcp/1", False),
    ],
)
def test_private_addresses_are_known(address: str, everybody: bool) -> None:
    assert is_global(address) is everybody


async def test_a_coordinator_that_does_not_answer_holds_nobody_up(
    one: Member, two: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that nobody has told the address of: the other one may die meanwhile."""
    monkeypatch.setattr(address_book, "_ANSWER_S", 3600.0)
    net: Any = Net(one.actor, c0=AddressBook(RUN), c1=AddressBook(RUN))
    net.silent.add("c1")
    net.books["c0"].note(two.actor.peer, two.signed(two.record()))
    host: Any = Machine(one, LAN)
    it = Directory(host, net, RUN, Role.PEER, lambda: (None, -1, 1.0), coordinators=[C0, Actor("c1", 0)])
    it.need([two.actor])
    async with asyncio.timeout(60):
        await it._tell()
    assert net.learned == {two.actor: (LAN,)}, "asked when it was told"
    assert set(net.asked) == {("c0", True, 1), ("c1", True, 1)}
