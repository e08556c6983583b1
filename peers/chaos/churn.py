"""Churn: during the whole scenario, peers join and are killed at random. The seed determines all of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random

from peers.chaos import quantity
from peers.chaos.quantity import QuantityError
from peers.chaos.table import ScenarioError, Table

MAX_TURNS = 100_000


@dataclass(frozen=True, slots=True)
class ChurnPlan:
    """How peers come and go. Every `least_s` to `most_s` seconds a peer is killed (SIGKILL) with probability `kill`,
    otherwise one is started.

    There are never fewer than `fewest` peers and never more than `most`. `spare_last`: the last replica of a stage is
    not killed.
    """

    least_s: float
    most_s: float
    kill: float
    fewest: int
    most: int
    lasts_s: float
    spare_last: bool
    seed: int

    def names(self, first: Collection[str]) -> tuple[str, ...]:
        """The names of the hosts that churn adds. Each name is used again after the death of its peer."""
        return tuple(f"c{number}" for number in range(max(0, self.most - len(first))))


@dataclass(frozen=True, slots=True)
class Turn:
    """One random decision. `pick` chooses among the candidates of that moment."""

    after_s: float
    kills: bool
    pick: float


def turns(churn: ChurnPlan) -> list[Turn]:
    random = Random(f"churn/{churn.seed}")
    found: list[Turn] = []
    total = 0.0
    while True:
        pause = random.uniform(churn.least_s, churn.most_s)
        total += pause
        if total > churn.lasts_s:
            return found
        found.append(Turn(pause, random.random() < churn.kill, random.random()))


def read_churn(table: Table) -> ChurnPlan:
    """The table [churn]. Raises ScenarioError."""
    least, most = table.take("every", _every, (0.5, 2.0))
    found = ChurnPlan(
        least,
        most,
        table.take("kill", quantity.share, 0.4),
        table.need("fewest", quantity.count, "minimum number of peers that stay alive"),
        table.need("most", quantity.count, "maximum number of peers at a time"),
        table.need("lasts", quantity.span, "how long, such as 45s"),
        table.take("spare_last", quantity.yes, True),
        table.take("seed", quantity.count, 1),
    )
    table.close()
    if found.most < found.fewest:
        raise ScenarioError(f"churn.most = {found.most} is below churn.fewest = {found.fewest}")
    if found.lasts_s > MAX_TURNS * found.least_s:
        raise ScenarioError(
            f"churn.lasts and churn.every allow more than {MAX_TURNS:,} changes: give it less time, or longer pauses"
        )
    return found


def _every(value: object) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise QuantityError(f'{value!r}: write the shortest and the longest pause, ["0.5s", "2s"]')
    least, most = (quantity.span(part) for part in value)
    if not 0 < least <= most:
        raise QuantityError(f"{value!r}: the shortest pause must be above 0 and at most the longest")
    return least, most
