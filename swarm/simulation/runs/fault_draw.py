"""Draws the faults of a run at random."""

from __future__ import annotations

from random import Random

from swarm.simulation.faults.faults import GROUP_KINDS, Cell, SimFault
from swarm.simulation.toy.toy_model import buckets_of

_FREQUENT = ("forward", "backward", "weights", "reduce")


class FaultDraw:
    """Draws faults with the random numbers of one run. The order of the calls decides what is drawn."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def of_cell(self, cell: Cell, *, late: bool = False) -> SimFault:
        """`late`: True if the fault may occur in any step, not only in the first."""
        rng = self._rng
        if cell.phase in _FREQUENT:
            occurrence = rng.randrange(24 if late else 6)
        else:
            occurrence = rng.randrange(3 if late else 2) if late or rng.random() < 0.3 else 0
        return SimFault(
            cell,
            occurrence=occurrence,
            delay=0.0 if rng.random() < 0.5 else 0.015 * rng.random(),
            seconds=self._seconds(cell.kind),
        )

    def some_of_a_stage(self, peers: int) -> list[SimFault]:
        """So many replicas of one stage die that others must move there, once newcomers have shown how long they
        take.
        """
        rng = self._rng
        role, at = rng.choice(("first", "last")), rng.randrange(12, 40)
        return [
            SimFault(Cell("crash", "forward", role), at + n, 0.02 * n, seconds=0.0) for n in range(max(1, peers - 1))
        ]

    def beside_each_other(self, stages: int, replicas: int, shared: int) -> list[SimFault]:
        """In a later step, a sender dies, and soon afterwards a receiver. The receiver's own frames may already have
        been used.
        """
        rng = self._rng
        step = rng.choice((1, 2))
        # moments of a step that reduces
        first, last = (buckets_of(stage, shared) * replicas for stage in (0, stages - 1))
        return [
            SimFault(Cell("crash", "reduce", "first"), step * first + rng.randrange(first), delay=0.0, seconds=0.0),
            SimFault(
                Cell("crash", "reduce", "last"), step * last + rng.randrange(last), 0.2 * rng.random(), seconds=0.0
            ),
        ]

    def among_coordinators(self) -> list[SimFault]:
        """Leaders die or are cut off repeatedly, often while others stand for election or have just voted."""
        rng = self._rng
        faults = [
            SimFault(
                Cell(rng.choice(GROUP_KINDS), rng.choice(("forward", "reduce", "deciding", "decided")), "leader"),
                occurrence=rng.randrange(12),
                delay=0.0 if rng.random() < 0.5 else 0.3 * rng.random(),
                seconds=rng.choice((0.1, 1.0, 2.0)),
            )
            for _ in range(rng.randrange(1, 4))
        ]
        if rng.random() < 0.5:
            faults.append(
                SimFault(Cell("members late", "joining", "follower"), rng.randrange(3), 0.0, rng.choice((2.0, 9.0)))
            )
            for _ in range(rng.randrange(1, 4)):
                voter = Cell("member restart", "voted", "follower")
                faults.append(
                    SimFault(voter, rng.randrange(6), 0.002 * rng.random(), seconds=rng.choice((0.001, 0.05)))
                )
        return faults

    def votes(self) -> list[SimFault]:
        """Two members stand for election in one ballot, because each asks before it hears of the other. Then every
        vote counts. A voter dies.
        """
        rng = self._rng
        late = [SimFault(Cell("members late", "joining", role), 0, 0.0, seconds=6.0) for role in ("leader", "follower")]
        voters = [
            SimFault(
                Cell("member restart", "voted", rng.choice(("leader", "follower", "follower"))),
                occurrence=rng.randrange(3),
                delay=rng.choice((0.0, 0.002, 0.02)),
                seconds=rng.choice((0.001, 0.02)),
            )
            for _ in range(rng.randrange(2, 6))
        ]
        again = [
            SimFault(
                Cell("member restart", rng.choice(("forward", "deciding")), "leader"),
                rng.randrange(6),
                0.0,
                seconds=2.0,
            )
            for _ in range(rng.randrange(3))
        ]
        return late + voters + again

    def at_one_end(self, replicas: int) -> SimFault:
        """A peer of the first or last stage dies after it has prepared, perhaps together with the other end, and
        perhaps unnoticed.
        """
        rng = self._rng
        cell = Cell("crash", "prepared", rng.choice(("first", "last")))
        return SimFault(cell, rng.randrange(2 * replicas), 0.005 * rng.random(), seconds=0.0)

    def _seconds(self, kind: str) -> float:
        rng = self._rng
        if kind in ("restart", "decision unsent", "decision half sent", "member restart"):
            return rng.choice((0.001, 0.05, 0.3))
        if kind == "flap":
            return rng.choice((0.01, 0.05, 0.2))
        if kind in ("crash", "leave", "exception"):
            return 0.0
        return rng.choice((0.05, 0.3, 1.0, 4.0))
