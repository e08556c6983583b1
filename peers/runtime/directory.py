"""Publishes this process's signed record in the DHT, and takes the addresses to dial from others' records.

It only looks up the records of the peers that are needed, a few at a time, so a large run costs a peer no more than a
small one.

The coordinator also writes its peers' addresses to a file. After a restart it dials them. They would find it again by
themselves, but after failed dials libp2p makes them wait for seconds, later minutes.
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
"""Seconds for which this process's record is valid after it was last published."""

DHT_ERRORS = (OSError, ValueError, TimeoutError, P2PDaemonError)
"""The errors of a DHT or a daemon that does not answer."""

_LOOK_S = 10.0
"""Longest time in seconds between two checks for due lookups."""
_PUBLISH_S = 20.0
_REFRESH_S = 60.0
"""Seconds until the record of a reachable peer is looked up again."""
_AT_ONCE = 8
"""Number of records that are looked up together: they all arrive at the end, or none if it takes too long."""
_RETRY_S = 0.5
_FORGET_S = 600.0
_log = logging.getLogger(__name__)


class Directory:
    """`describe` gives (stage, version, capacity) for the own record. `need` makes sure that actors can be dialled.

    `given`: addresses known from elsewhere, such as the invite. They are kept beside those of the record, and never
    forgotten.
    `notebook`: a file that keeps the addresses of all recent peers, to be dialled at the next start.
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
        """When the record of each needed peer was last looked up."""
        self._publish_at = now
        self._wanted: frozenset[Actor] = frozenset()
        self._missing: set[Actor] = set()
        self._retry_s = _RETRY_S
        self._wake = asyncio.Event()

    def need(self, actors: Iterable[Actor]) -> None:
        """These actors are needed now, and no others: look up soon those whose addresses are unknown.

        Until they are found, each dial asks the libp2p DHT.
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
        """The addresses of a peer, according to its record; each ends in its id."""
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
        """Seconds until the next check: short while a peer is missing, but not for ever."""
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
        """Ids of the peers whose records are to be looked up now, longest ago first.

        A reachable peer counts as seen.
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
        """Forget peers without a record or connection for a while, so that past peers are not dialled for ever."""
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
