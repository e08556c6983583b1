"""Synthetic traces of volunteers (or spot machines) that come and go, made from statistics alone.

What is known of real traces: 0.55 to 0.61 departures per node and hour, a median life of about an hour, bursts in which
up to a fifth of all leave at once, and arrivals that keep the mean. Departures here are of two kinds: single ones, at a
constant rate per node (so lives are exponential), and bursts, a Poisson process in which each burst takes a random
share of those who are there. Arrivals are a Poisson process that makes up for the mean departures and pulls the number
of nodes back to its target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

HOUR_S = 3600.0
DEPARTURES_PER_NODE_HOUR = 0.58
"""Departures per node and hour, in the middle of the observed range."""
IN_BURSTS = 0.3
"""Fraction of all departures that happen in bursts."""
SMALLEST_BURST, LARGEST_BURST = 0.02, 0.2
"""Smallest and largest fraction of the present nodes that a burst takes; uniform between the two."""
RETURN_S = 600.0
"""Seconds in which new nodes replace those lost in a burst, approximately."""


@dataclass(frozen=True, slots=True)
class Change:
    """Nodes that come, or nodes that go, at one moment. A number names a node for good: a node that has gone does not
    come back.
    """

    at_s: float
    come: tuple[int, ...] = ()
    go: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Preemptions:
    """A trace. Nodes 0 … `nodes` − 1 are present at 0 s; `changes` follow in order of time."""

    nodes: int
    seconds: float
    changes: tuple[Change, ...]

    @property
    def departures(self) -> int:
        return sum(len(change.go) for change in self.changes)

    @property
    def node_hours(self) -> float:
        """Return the total hours for which nodes were present."""
        return self._summed(0.0, self.seconds) / HOUR_S

    def capacity(self, first_s: float, last_s: float, of: Callable[[int], float] = lambda node: 1.0) -> float:
        """The mean capacity of the present nodes between two moments ÷ that at the start. `of`: the capacity of each
        node.
        """
        return self._summed(first_s, last_s, of) / (sum(map(of, range(self.nodes))) * (last_s - first_s))

    def _summed(self, first_s: float, last_s: float, of: Callable[[int], float] = lambda node: 1.0) -> float:
        """The same capacity, summed over the time between the two moments."""
        there = sum(map(of, range(self.nodes)))
        since, total = first_s, 0.0
        for change in self.changes:
            at = min(max(change.at_s, first_s), last_s)
            total += there * (at - since)
            since = at
            there += sum(map(of, change.come)) - sum(map(of, change.go))
        return total + there * (last_s - since)


def preemptions(
    nodes: int,
    seconds: float,
    seed: int,
    *,
    departures_per_node_hour: float = DEPARTURES_PER_NODE_HOUR,
    in_bursts: float = IN_BURSTS,
    least: int = 0,
) -> Preemptions:
    """A trace of `seconds` with about `nodes` nodes. It depends on the arguments alone.

    `departures_per_node_hour` 0 gives a trace without changes. `least`: no node goes while only so many are present.
    Raises ValueError for arguments that describe no trace.
    """
    if nodes < 1 or not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"a trace needs at least one node and a time: not {nodes} nodes, {seconds} s")
    if departures_per_node_hour < 0 or not 0 <= in_bursts <= 1:
        raise ValueError(
            f"{departures_per_node_hour} departures per node and hour, of which {in_bursts} in bursts: "
            "the first must not be negative, the second lies between 0 and 1"
        )
    rng = Random(f"{nodes}/{seconds}/{seed}/{departures_per_node_hour}/{in_bursts}/{least}")
    rate_s = departures_per_node_hour / HOUR_S
    alone_s = rate_s * (1 - in_bursts)
    bursts_s = rate_s * in_bursts / ((SMALLEST_BURST + LARGEST_BURST) / 2)
    there, born, now = list(range(nodes)), nodes, 0.0
    changes = []
    while rate_s:
        arrivals_s = max(0.0, rate_s * nodes + (nodes - len(there)) / RETURN_S)
        leaving_s = alone_s * len(there)
        total = arrivals_s + leaving_s + bursts_s
        now += rng.expovariate(total)
        if now >= seconds:
            break
        kind = rng.random() * total
        if kind < arrivals_s:
            changes.append(Change(now, come=(born,)))
            there.append(born)
            born += 1
            continue
        share = 0.0 if kind < arrivals_s + leaving_s else rng.uniform(SMALLEST_BURST, LARGEST_BURST)
        count = min(max(1, int(share * len(there))), len(there) - least)
        if count > 0:
            changes.append(Change(now, go=tuple(_take(there, rng) for _ in range(count))))
    return Preemptions(nodes, seconds, tuple(changes))


def _take(there: list[int], rng: Random) -> int:
    """Remove one node at random."""
    place = rng.randrange(len(there))
    there[place], there[-1] = there[-1], there[place]
    return there.pop()
