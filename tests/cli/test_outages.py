"""A state is told once, then its change."""

from __future__ import annotations

from peers.runtime.outages import _MOST, Outages
from swarm.protocol.ids import Actor

COORDINATOR, PEER = Actor("coordinator", 1), Actor("peer", 7)


def made() -> tuple[Outages, list[tuple[Actor, int, str]]]:
    told: list[tuple[Actor, int, str]] = []
    return Outages(lambda *what: told.append(what)), told


def test_waiting_for_somebody_is_one_line_and_its_end_another() -> None:
    outages, told = made()
    for number in range(50):
        outages.dropped(COORDINATOR, 2, "dial backoff" if number % 2 else "connection refused")
    outages.dropped(PEER, 1, "no answer")
    assert told == [(COORDINATOR, 2, "connection refused"), (PEER, 1, "no answer")]
    outages.up(COORDINATOR)
    assert told[2:] == [(COORDINATOR, 98, "before it was reached again (connection refused)")]
    outages.up(PEER)
    assert len(told) == 3, "nothing was added to what is told"
    outages.dropped(COORDINATOR, 1, "it hangs")
    assert told[3:] == [(COORDINATOR, 1, "it hangs")], "another outage"


def test_names_do_not_grow_without_end() -> None:
    outages, told = made()
    for number in range(2 * _MOST):
        outages.dropped(Actor("peer", number), 1, "gone")
        outages.dropped(Actor("peer", number), 1, "gone")
    assert len(outages._of) == _MOST and sum(count for _, count, _ in told) == 3 * _MOST
