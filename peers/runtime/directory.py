"""Tells others the addresses of this process, and learns from their records which addresses to dial.

Members tell the coordinators all their addresses, and ask them for the addresses of others (`address_book`). In the DHT
they publish only addresses that everybody on the internet can dial, and none of a private network. A peer looks up in
the DHT those peers that no coordinator knows, for example one that has moved while it was away. It looks up only the
peers that it needs, a few at a time, so a large run costs a peer no more than a small one.

The coordinator also writes its peers' addresses to its notebook and dials them after a restart. The peers would
reconnect by themselves, but after failed dials libp2p makes them wait for seconds, and later for minutes. Peers note
the coordinators, and learn from a coordinator's own record that it has moved.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from peers.runtime.address_book import AddressBook, ask
from peers.runtime.notebook import MAX_NOTED, Notebook
from swarm.net import records
from swarm.net.addresses import is_global, split_peer
from swarm.net.dht_clock import get_dht_time
from swarm.net.handshake import Role
from swarm.net.host import DHT_ERRORS, Host
from swarm.net.network import Network
from swarm.protocol.ids import Actor, StageIndex

LIFETIME_S = 120.0
"""Seconds for which this process's record is valid after it was last published."""

_LOOK_S = 10.0
"""Longest time in seconds between two checks for due lookups."""
_PUBLISH_S = 20.0
_TELL_S = 40.0
"""Seconds until this process tells a coordinator its addresses again."""
_REFRESH_S = 60.0
"""Seconds until the record of a reachable peer is looked up again."""
_AT_ONCE = 8
"""Number of records that are looked up together. All arrive together at the end, or none if it takes too long."""
_RETRY_S = 0.5
_DHT_AFTER_S = 2.0
"""Seconds after the start until the DHT is asked, unless a coordinator is connected earlier."""
_FORGET_S = 600.0
_log = logging.getLogger(__name__)


class Directory:
    """`describe` gives (stage, version, capacity) for this process's own record. `need` makes sure that actors can be
    dialled.

    `given`: addresses known from elsewhere, such as the invite. They are used in addition to those of the record, and
    never forgotten.
    `notebook`: keeps addresses, to be dialled at the next start. `neighbours`: keeps addresses of other members.
    `coordinators`: those of the run, without this process.
    `book`: the records that members have sent to this process, if it is a coordinator.
    """

    def __init__(
        self,
        host: Host,
        network: Network,
        run_hash: str,
        role: Role,
        describe: Callable[[], tuple[StageIndex | None, int, float]],
        given: Mapping[Actor, tuple[str, ...]] | None = None,
        notebook: Notebook | None = None,
        coordinators: Sequence[Actor] = (),
        book: AddressBook | None = None,
        neighbours: Notebook | None = None,
    ) -> None:
        self._host = host
        self._network = network
        self._run_hash = run_hash
        self._role = role
        self._describe = describe
        self._given = given or {}
        self._notebook = notebook
        self._neighbours = neighbours
        self._coordinators = tuple(coordinators)
        self._book = book
        self._told: dict[Actor, tuple[tuple[str, ...], float]] = {}
        """For each coordinator: the addresses of this process that it knows, and when it was told."""
        self._known: dict[str, tuple[int, tuple[str, ...]]] = {} if notebook is None else notebook.read()
        """For each peer id, the incarnation and addresses of its newest record."""
        now = asyncio.get_running_loop().time()
        self._seen = dict.fromkeys(self._known, now)
        self._asked: dict[str, float] = {}
        """For each needed peer: when its record was last looked up."""
        self._publish_at = now
        self._ask_dht_from = now + _DHT_AFTER_S
        self._wanted: frozenset[Actor] = frozenset()
        self._missing: set[Actor] = set()
        self._retry_s = _RETRY_S
        self._wake = asyncio.Event()

    def need(self, actors: Iterable[Actor]) -> None:
        """Replace the set of needed actors. Actors with unknown addresses are looked up soon."""
        self._wanted = frozenset(actor for actor in actors if actor.peer != self._host.peer_id)
        missing = {actor for actor in self._wanted if self._known.get(actor.peer, (-1,))[0] < actor.incarnation}
        if missing - self._missing:
            self._retry_s = _RETRY_S
            self._wake.set()
        self._missing = missing

    def wants(self, actor: Actor) -> bool:
        return actor in self._wanted

    def link_up(self, actor: Actor) -> None:
        """A connection has opened, for the first time or again; a coordinator may have restarted at another address.

        Ask a coordinator at once for its present addresses and all unknown ones, so that the other coordinators are
        known before this one may die.
        """
        told = self._told.pop(actor, None) is not None
        if actor in self._coordinators:
            self._asked.pop(actor.peer, None)
        if told or actor in self._coordinators:
            self._retry_s = _RETRY_S
            self._wake.set()

    def noted(self, peer: str) -> None:
        """The address book of this process has a new record of a peer."""
        if any(actor.peer == peer for actor in self._missing):
            self._wake.set()

    def addresses_of(self, peer: str) -> tuple[str, ...]:
        """The addresses of a peer, according to its record; each ends in its id."""
        return tuple(
            address if split_peer(address)[1] else f"{address}/p2p/{peer}"
            for address in self._known.get(peer, (0, ()))[1]
        )

    async def run(self) -> None:
        """Publish and refresh until cancelled. If a DHT does not answer, it is tried again."""
        for peer, (incarnation, addresses) in self._known.items():
            self._learn(Actor(peer, incarnation), addresses)
            self._network.dial(Actor(peer, incarnation))
        while True:
            self._wake.clear()
            try:
                await self._tell()
                await self._refresh()
                if asyncio.get_running_loop().time() >= self._publish_at:
                    await self._publish()
            except DHT_ERRORS as error:
                _log.warning("the DHT does not answer: %s", error)
            self._forget()
            try:
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _pause(self) -> float:
        """Seconds until the next check: short while a peer is missing, but longer if it stays missing."""
        if not self._missing:
            return _LOOK_S
        pause, self._retry_s = self._retry_s, min(2 * self._retry_s, _LOOK_S)
        return pause

    async def _own(self) -> records.PeerRecord:
        stage, version, capacity = self._describe()
        return records.PeerRecord(
            run_hash=self._run_hash,
            actor=self._network.me,
            addresses=tuple(await self._host.addresses())[: records.MAX_ADDRESSES],
            role=self._role,
            stage=stage,
            version=version,
            capacity=capacity,
            expires_at=get_dht_time() + LIFETIME_S,
        )

    async def _tell(self) -> None:
        """Tell the coordinators the addresses of this process, unless they were told recently.

        The same request asks them for missing peers.
        """
        if not self._coordinators:
            return
        own, now = await self._own(), asyncio.get_running_loop().time()
        due = []
        for actor in self._coordinators:
            if self._network.why_lost(actor) is not None:
                self._told.pop(actor, None)  # it may restart without the addresses it was told
            elif self._told.get(actor, ((), 0.0))[0] != own.addresses or now - self._told[actor][1] >= _TELL_S:
                due.append(actor)
        if due:
            signed = records.sign_peer(self._host.identity, own).SerializeToString()
            missing = sorted({actor.peer for actor in self._missing})[:_AT_ONCE]
            if self._take(await self._ask(due, signed, own.addresses, missing)):
                self._note()

    async def _ask(
        self, coordinators: Sequence[Actor], own: bytes, addresses: tuple[str, ...], peers: Sequence[str]
    ) -> list[records.PeerRecord]:
        answered, found = await ask(self._network.bulk, coordinators, self._run_hash, own, peers)
        if own:
            now = asyncio.get_running_loop().time()
            self._told |= dict.fromkeys(answered, (addresses, now))
        return found

    async def _publish(self) -> None:
        """Put the addresses that everybody can dial into the DHT, if there are any, and all into the own book."""
        own = await self._own()
        if self._book is not None:
            self._book.note(self._host.peer_id, records.sign_peer(self._host.identity, own).SerializeToString())
        open_to_all = tuple(address for address in own.addresses if is_global(address))
        if not open_to_all or await records.publish(self._host, replace(own, addresses=open_to_all)):
            self._publish_at = asyncio.get_running_loop().time() + _PUBLISH_S

    def _due(self, now: float) -> list[str]:
        """Return the ids of the peers whose records must be looked up now, the least recently looked up first.

        For a reachable peer, its connection counts as a lookup.
        """
        self._asked = {actor.peer: self._asked.get(actor.peer, -math.inf) for actor in self._wanted}
        due = {actor.peer for actor in self._missing}
        for actor in self._wanted:
            reached = self._network.why_lost(actor) is None
            if reached and actor.peer in self._known:
                self._seen[actor.peer] = now
            if now - self._asked[actor.peer] >= (_REFRESH_S if reached else _LOOK_S):
                due.add(actor.peer)
        return sorted(due, key=lambda peer: (self._asked[peer], peer))[:_AT_ONCE]

    async def _refresh(self) -> None:
        """Ask the own book, then the coordinators, then the DHT, each for the peers that are not found yet."""
        due = self._due(asyncio.get_running_loop().time())
        if not due:
            return
        self._asked |= dict.fromkeys(due, asyncio.get_running_loop().time())
        changed = False
        for source in (self._of_book, self._of_coordinators, self._of_dht):
            if due:
                found = await source(due)
                changed |= self._take(found)
                due = sorted(set(due) - {record.actor.peer for record in found})
        if changed:
            self._note()

    def _take(self, found: Iterable[records.PeerRecord]) -> bool:
        """Make the network dial the addresses in these records. Return whether any address is new."""
        now, changed = asyncio.get_running_loop().time(), False
        for record in found:
            actor, where = record.actor, (record.actor.incarnation, tuple(record.addresses))
            self._seen[actor.peer] = now
            if self._known.get(actor.peer) == where:
                continue
            self._known.pop(actor.peer, None)
            self._known[actor.peer] = where
            if len(self._known) > MAX_NOTED:
                oldest = next(iter(self._known))
                del self._known[oldest], self._seen[oldest]
            self._missing.discard(actor)
            self._learn(actor, where[1])
            changed = True
        return changed

    def _learn(self, actor: Actor, addresses: tuple[str, ...]) -> None:
        self._network.learn(actor, tuple(dict.fromkeys((*addresses, *self._given.get(actor, ())))))

    async def _of_book(self, peers: list[str]) -> list[records.PeerRecord]:
        return [] if self._book is None else self._book.find(peers)

    async def _of_coordinators(self, peers: list[str]) -> list[records.PeerRecord]:
        there = [actor for actor in self._coordinators if self._network.why_lost(actor) is None]
        return await self._ask(there, b"", (), peers) if there else []

    async def _of_dht(self, peers: list[str]) -> list[records.PeerRecord]:
        reached = any(self._network.why_lost(actor) is None for actor in self._coordinators)
        if self._coordinators and not reached and asyncio.get_running_loop().time() < self._ask_dht_from:
            return []  # a lookup takes seconds, in which no coordinator could be asked
        return await records.lookup(self._host, self._run_hash, peers)

    def _forget(self) -> None:
        """Forget peers without a record or connection for a while, so that past peers are not dialled for ever.

        Coordinators are kept: a peer that waits for one needs its last address at the next start.
        """
        now = asyncio.get_running_loop().time()
        gone = {peer for peer in self._known if now - self._seen[peer] > _FORGET_S}
        for actor in self._network.forget_lost(_FORGET_S, keep=self._wanted | self._given.keys()):
            if self._known.get(actor.peer, (-1,))[0] == actor.incarnation:
                gone.add(actor.peer)
        gone -= {coordinator.peer for coordinator in self._coordinators}
        for peer in gone:
            del self._known[peer], self._seen[peer]
        if gone:
            self._note()

    def _note(self) -> None:
        if self._notebook is not None:
            self._notebook.write(self._known)
        if self._neighbours is not None:
            coordinators = {actor.peer for actor in self._coordinators}
            others = {peer: entry for peer, entry in self._known.items() if peer not in coordinators}
            if others:  # the last known ones stay when this peer is left alone
                self._neighbours.write(others)
