"""Churn: peers that join and are killed at random for their whole lives; a function of the seed alone."""

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
    """Every `least_s` to `most_s` seconds a peer is killed (SIGKILL) with probability `kill`, else one is started.

    Never fewer than `fewest` peers, never more than `most`. `spare_last`: the last replica of a stage is spared.
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
        """Names of the hosts beyond the first ones; each is used again after its death, in its next life."""
        return tuple(f"c{number}" for number in range(max(0, self.most - len(first))))


@dataclass(frozen=True, slots=True)
class Turn:
    """One draw. `pick` chooses among the candidates of that moment."""

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
        table.need("fewest", quantity.count, "least number of peers that stay alive"),
        table.need("most", quantity.count, "peers at a time"),
        table.need("lasts", quantity.span, "how long, such as 45s"),
        table.take("spare_last", quantity.yes, True),
        table.take("seed", quantity.count, 1),
    )
    table.close()
    if found.most < found.fewest:
        raise ScenarioError(f"churn.most = {found.most} is below churn.fewest = {found.fewest}")
    if found.lasts_s > MAX_TURNS * found.least_s:
        raise ScenarioError(f"churn: more than {MAX_TURNS:,} turns may be taken: give it less time, or longer pauses")
    return found


def _every(value: object) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise QuantityError(f'{value!r}: write the shortest and the longest pause, ["0.5s", "2s"]')
    least, most = (quantity.span(part) for part in value)
    if not 0 < least <= most:
        raise QuantityError(f"{value!r} does not go from less to more")
    return least, most
