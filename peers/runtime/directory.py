"""Keeps this process's signed record in the DHT, and knows from the others' records where to dial them.

Only the records of those it has to do with are looked up, some at a time: a peer has no more to do here in a large run
than in a small one.

The coordinator also writes down where its peers are. After a restart it dials them: they would find it again by
themselves, but libp2p makes them wait for seconds, later minutes, after dials that failed while it was away.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError

from swarm.net import records
from swarm.net.addresses import split_peer
from swarm.net.dht_clock import get_dht_time
from swarm.net.handshake import Role
from swarm.net.host import Host
from swarm.net.network import Network
from swarm.protocol.ids import Actor, StageIndex

LIFETIME_S = 120.0
"""How long a record of ours is believed after we last published it."""

DHT_ERRORS = (OSError, ValueError, TimeoutError, P2PDaemonError)
"""What a DHT or a daemon that does not answer raises."""

_LOOK_S = 10.0
"""Between two looks at what is due, at most."""
_PUBLISH_S = 20.0
_REFRESH_S = 60.0
"""Until the record of somebody who can be reached is looked up again."""
_AT_ONCE = 8
"""Records that are looked up in one go: all of them come at the end of it, or none if it takes too long."""
_RETRY_S = 0.5
_FORGET_S = 600.0
_log = logging.getLogger(__name__)


class Directory:
    """`describe` gives (stage, version, capacity) for the own record. `need` makes sure that actors can be dialled.

    `given`: addresses that are known from elsewhere, as from the invite: kept beside those of the record, and never
    forgotten. `notebook`: file that keeps the addresses of all who were there of late, to be dialled at the next start.
    """

    def __init__(
        self,
        host: Host,
        network: Network,
        run_hash: str,
        role: Role,
        describe: Callable[[], tuple[StageIndex | None, int, float]],
        given: Mapping[Actor, tuple[str, ...]] | None = None,
        notebook: Path | None = None,
    ) -> None:
        self._host = host
        self._network = network
        self._run_hash = run_hash
        self._role = role
        self._describe = describe
        self._given = given or {}
        self._notebook = notebook
        self._known: dict[str, tuple[int, tuple[str, ...]]] = {} if notebook is None else _read(notebook)
        """By peer id, the incarnation and addresses of its newest record."""
        now = asyncio.get_running_loop().time()
        self._seen = dict.fromkeys(self._known, now)
        self._asked: dict[str, float] = {}
        """When the record of each peer that is wanted was last looked up."""
        self._publish_at = now
        self._wanted: frozenset[Actor] = frozenset()
        self._missing: set[Actor] = set()
        self._retry_s = _RETRY_S
        self._wake = asyncio.Event()

    def need(self, actors: Iterable[Actor]) -> None:
        """These are wanted now, and no others: look up soon whose addresses are unknown.

        Until they are found the libp2p DHT is asked per dial.
        """
        self._wanted = frozenset(actor for actor in actors if actor.peer != self._host.peer_id)
        missing = {actor for actor in self._wanted if self._known.get(actor.peer, (-1,))[0] < actor.incarnation}
        if missing - self._missing:
            self._retry_s = _RETRY_S
            self._wake.set()
        self._missing = missing

    def wants(self, actor: Actor) -> bool:
        return actor in self._wanted

    def addresses_of(self, peer: str) -> tuple[str, ...]:
        """Where a peer can be dialled, as far as its record says; each ends in its id."""
        return tuple(
            address if split_peer(address)[1] else f"{address}/p2p/{peer}"
            for address in self._known.get(peer, (0, ()))[1]
        )

    async def run(self) -> None:
        """Publish and refresh until cancelled. A DHT that does not answer is tried again."""
        for peer, (incarnation, addresses) in self._known.items():
            self._network.learn(Actor(peer, incarnation), addresses)
            self._network.dial(Actor(peer, incarnation))
        while True:
            self._wake.clear()
            try:
                if asyncio.get_running_loop().time() >= self._publish_at:
                    await self._publish()
                await self._refresh()
            except DHT_ERRORS as error:
                _log.warning("the DHT does not answer: %s", error)
            self._forget()
            try:
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _pause(self) -> float:
        """Until the next look, seconds: short while somebody is missing, but not for ever."""
        if not self._missing:
            return _LOOK_S
        pause, self._retry_s = self._retry_s, min(2 * self._retry_s, _LOOK_S)
        return pause

    async def _publish(self) -> None:
        stage, version, capacity = self._describe()
        record = records.PeerRecord(
            run_hash=self._run_hash,
            actor=self._network.me,
            addresses=tuple(await self._host.addresses())[: records.MAX_ADDRESSES],
            role=self._role,
            stage=stage,
            version=version,
            capacity=capacity,
            expires_at=get_dht_time() + LIFETIME_S,
        )
        if await records.publish(self._host, record):
            self._publish_at = asyncio.get_running_loop().time() + _PUBLISH_S

    def _due(self, now: float) -> list[str]:
        """Whose records are to be looked up now, those first who were not looked up for longest.

        Who is reached counts as seen.
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
        now = asyncio.get_running_loop().time()
        changed = False
        due = self._due(now)
        if not due:
            return
        self._asked |= dict.fromkeys(due, now)
        for record in await records.lookup(self._host, self._run_hash, due):
            actor, found = record.actor, (record.actor.incarnation, tuple(record.addresses))
            self._seen[actor.peer] = now
            if self._known.get(actor.peer) != found:
                self._known[actor.peer] = found
                self._missing.discard(actor)
                self._network.learn(actor, tuple(dict.fromkeys((*record.addresses, *self._given.get(actor, ())))))
                changed = True
        if changed:
            self._note()

    def _forget(self) -> None:
        """Who has had no record, or could not be reached, for a while: the swarm's past is not dialled for ever."""
        now = asyncio.get_running_loop().time()
        gone = {peer for peer in self._known if now - self._seen[peer] > _FORGET_S}
        for actor in self._network.forget_lost(_FORGET_S, keep=self._wanted | self._given.keys()):
            if self._known.get(actor.peer, (-1,))[0] == actor.incarnation:
                gone.add(actor.peer)
        for peer in gone:
            del self._known[peer], self._seen[peer]
        if gone:
            self._note()

    def _note(self) -> None:
        if self._notebook is None:
            return
        try:
            fresh = self._notebook.with_suffix(".new")
            fresh.write_text(json.dumps(self._known))
            fresh.replace(self._notebook)
        except OSError as error:
            _log.warning("%s cannot be written, peers will dial by themselves: %s", self._notebook, error)


def _read(notebook: Path) -> dict[str, tuple[int, tuple[str, ...]]]:
    try:
        noted = json.loads(notebook.read_text())
        return {str(peer): (int(life), tuple(map(str, addresses))) for peer, (life, addresses) in noted.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError):
        _log.warning("%s is damaged; peers will dial by themselves", notebook)
        return {}
