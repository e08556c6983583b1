"""The links that pairs of peers report, and the bytes that they carried, by kind."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from peers.fold.reading import LARGEST, MOST_NAME, Malformed, Record, a_count, a_number

if TYPE_CHECKING:
    from peers.fold.state import RunState

KINDS = {kind: kind for kind in ("forward", "backward", "sums", "state", "padding", "control")}
"""The kinds of bytes. Each name is mapped to itself, so that a million names in memory share these five strings."""
MOST_PAIRS = 16_384
"""Maximum number of pairs. In a larger swarm, only the totals and the pairs reported first are kept."""
MOST_TOLD = 32
"""Number of links in one message of a peer."""
MOST_SOURCES = 1024


@dataclass(slots=True)
class Pair:
    """A link as reported by `sender`. `rate`: bytes/s. `via`: the actor that forwards the traffic; None: a direct
    link.
    """

    sender: str
    receiver: str
    rate: float | None = None
    rtt_s: float | None = None
    via: str | None = None
    sent: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Traffic:
    """Bytes by channel that one process's own log reports: since its start, and before its start."""

    sent: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    sent_before: int = 0
    received_before: int = 0


@dataclass(slots=True)
class Links:
    pairs: dict[str, dict[str, Pair]] = field(default_factory=dict)
    """The links, by sender and receiver."""
    number: int = 0
    """Number of pairs in `pairs`."""
    sent: dict[str, int] = field(default_factory=dict)
    """Bytes by kind, of all pairs so far."""
    traffic: dict[str, Traffic] = field(default_factory=dict)
    """The traffic, by source of events."""

    def forget(self, actor: str) -> None:
        """Forget the links of a process that has ended. Other peers' reports about it disappear with their next
        reports.
        """
        self.number -= len(self.pairs.pop(actor, ()))

    def keep(self, present: Container[str]) -> None:
        """Forget the links of all processes but these. After the end of a run its links stay, until it goes on."""
        for actor in [actor for actor in self.pairs if actor not in present]:
            self.forget(actor)


def told(state: RunState, sender: str, links: list[Any]) -> dict[str, int]:
    """Record a peer's links from `PeerWorked.links`. Returns the bytes that the peer has sent, by kind. Raises
    Malformed.

    These lists are most of a week's log, so this function is optimised for speed.
    """
    for link in links:
        _check(link)
    store, here, everybody = state.links, state.members.here, not state.run.coordinated
    people, by_peer = state.people, state.people.by_peer
    totals: dict[str, int] = {}
    of_sender = store.pairs.get(sender)
    if of_sender is None:
        of_sender = store.pairs[sender] = {}
    for link in links:
        other = link["other"]
        receiver, pair = here.get(other), of_sender.get(other)
        if pair is None and store.number < MOST_PAIRS and (receiver is not None or everybody):
            known = receiver.actor if receiver is not None else other
            pair = of_sender[known] = Pair(sender, known)
            store.number += 1
        sent = link.get("sent")
        if sent:
            add(totals, sent)
            if pair is not None:
                add(pair.sent, sent)
            if receiver is not None:
                person = by_peer.get(receiver.peer) or people.of(receiver.peer)
                for kind in sent:
                    if kind in KINDS:
                        person.received += sent[kind]
        if pair is not None:
            pair.rate, pair.rtt_s, pair.via = link.get("rate"), link.get("rtt_s"), link.get("via") or None
    add(store.sent, totals)
    if len(of_sender) > len(links) and not everybody:
        for other in [other for other in of_sender if other not in here]:
            del of_sender[other]
            store.number -= 1
    return totals


def add(totals: dict[str, int], sent: dict[str, int]) -> None:
    """Add bytes by kind. Unknown kinds are ignored."""
    for kind in sent:
        if kind in totals:
            totals[kind] += sent[kind]
        elif kind in KINDS:
            totals[KINDS[kind]] = sent[kind]


def _check(link: Any) -> None:
    if type(link) is not dict:
        raise Malformed("links")
    other, sent, via = link.get("other"), link.get("sent"), link.get("via")
    if type(other) is not str or len(other) > MOST_NAME:
        raise Malformed("other")
    if via is not None and (type(via) is not str or len(via) > MOST_NAME):
        raise Malformed("via")
    rate, rtt_s = link.get("rate"), link.get("rtt_s")
    if rate is not None:
        a_number(rate)
    if rtt_s is not None:
        a_number(rtt_s)
    if sent:
        if type(sent) is not dict or len(sent) > 64:
            raise Malformed("sent")
        for nbytes in sent.values():
            if type(nbytes) is not int or not 0 <= nbytes < LARGEST:
                raise Malformed("sent")


def traffic_measured(state: RunState, record: Record, at: float, source: str) -> None:
    sent, received = _channels(record.get("sent")), _channels(record.get("received"))
    store = state.links.traffic
    if source not in store and len(store) >= MOST_SOURCES:
        return
    traffic = store.setdefault(source, Traffic())
    traffic.sent, traffic.received = sent, received


def life_begins(state: RunState, source: str) -> None:
    """A process has started, so its counts begin again at zero."""
    traffic = state.links.traffic.get(source)
    if traffic is not None:
        traffic.sent_before += sum(traffic.sent.values())
        traffic.received_before += sum(traffic.received.values())
        traffic.sent, traffic.received = {}, {}


def _channels(value: object) -> dict[str, int]:
    if type(value) is not dict or len(value) > 64:
        raise Malformed("channels")
    return {str(channel)[:MOST_NAME]: a_count(nbytes) for channel, nbytes in value.items()}
