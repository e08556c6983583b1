"""Finds the peers that may have caused the failures of a step: the peer that reports a failure, and the senders of its
input.

A failure is reported by one peer only, which may lie, so the report accuses that peer too. The step continues without
the peer. If this is not possible, it is repeated without the peers that are accused more often than their siblings. A
peer that is involved in several failures stays accused and gets a strike when the step is decided; the peers that
failed on its data are cleared. A peer that reports false failures is involved in all of its own reports. All devices of
one person count as one accuser (`People`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.ids import Microbatch

MOST_FAILURES = 256
"""Number of failures of one step that are kept: the newest ones."""
REMEMBERED = 4096
"""Number of doubted peers that are kept: those accused last."""
MOST_DOUBTS = 64
LASTING = 2
"""Number of consecutive steps in which a peer must have failed alone before it counts as guilty."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure that a peer reports in a training pass. Peers are named by id, so that a restart does not change
    them.
    """

    stage: int
    microbatch: Microbatch | None
    """The microbatch of the failure. None: the failure did not concern a microbatch."""
    who: str
    senders: frozenset[str]
    """The peers that sent the inputs of the microbatch. The coordinator is not included."""
    reason: str
    nonfinite: bool = False
    near: frozenset[int] = frozenset()
    """The stages of these senders."""

    @property
    def accused(self) -> frozenset[str]:
        return self.senders | {self.who}

    def __str__(self) -> str:
        what = "" if self.microbatch is None else f" on microbatch {self.microbatch}"
        sent = f", which {' and '.join(sorted(self.senders))} sent" if self.senders else ""
        return f"{self.who} of stage {self.stage} failed{what}{sent}: {self.reason}"


class Accusations:
    """Holds the failures of the undecided step, and the doubts about peers, which remain after the decision."""

    def __init__(self, people: People) -> None:
        self._people = people
        self.failures: list[Failure] = []
        self._accusers: defaultdict[str, set[str]] = defaultdict(set)
        """For each accused peer, the peers that accuse it in this step."""
        self._doubts: Counter[str] = Counter()
        """For each peer, how often it was accused lately. In each step, one person counts once."""

    def note(self, failure: Failure) -> None:
        self.failures.append(failure)
        del self.failures[:-MOST_FAILURES]
        before = {peer: self._people.count([*self._accusers[peer]]) for peer in failure.accused}
        new = {p for p, times in before.items() if self._people.count([*self._accusers[p], failure.who]) > times}
        self._count()
        for peer in sorted(new):
            doubts = self._doubts.pop(peer, 0)
            self._doubts[peer] = min(MOST_DOUBTS, doubts + 1)
        while len(self._doubts) > REMEMBERED:
            del self._doubts[next(iter(self._doubts))]

    def against(self, peer: str, believed: Callable[[str], bool] = lambda accuser: True) -> int:
        """Return how many people accuse `peer` in this step. The accusers are the peers that failed on its data, and
        `peer` itself if it failed. Only those are counted that are `believed`.
        """
        return self._people.count(filter(believed, self._accusers.get(peer, ())))

    def common(self, stage: int, m: Microbatch) -> frozenset[str]:
        """Return the peers that are accused in every failure of `stage` on microbatch `m`."""
        return _common(each for each in self.failures if (each.stage, each.microbatch) == (stage, m))

    @property
    def common_to_nonfinite(self) -> frozenset[str]:
        """Return the peers that are accused in all reports of a non-finite result."""
        return _common(each for each in self.failures if each.nonfinite)

    def nobodys_fault(self) -> None:
        """Withdraw all accusations about non-finite results, because the result is not finite whichever peer computes
        it.
        """
        before = {peer: self.against(peer) for peer in self._accusers}
        self.failures = [failure for failure in self.failures if not failure.nonfinite]
        self._count()
        self._doubts.subtract({peer: times - self.against(peer) for peer, times in before.items()})
        self._doubts = +self._doubts

    def settle(self, workers: Iterable[str], left_out: frozenset[str] = frozenset()) -> list[str]:
        """The step is decided by the work of `workers`. Return the guilty peers, and reduce the doubts about workers
        that nobody accused.

        `left_out`: the peers without which the result became finite. The most doubted of them is guilty if it was
        doubted before, or if it is the only one left out.

        Apart from these, the guilty peers are the smallest set that explains all failures. Peers that were accused most
        often lately are preferred, then peers without a part in the decided work, then peers that did not report a
        failure themselves.
        """
        worked = frozenset(workers)
        failed_itself = {failure.who for failure in self.failures}
        left = [failure for failure in self.failures if self._counts(failure)]
        guilty: list[str] = []
        while left:
            worst = max(self._guilt(peer, worked, failed_itself) for each in left for peer in each.accused)
            found = {p for each in left for p in each.accused if self._guilt(p, worked, failed_itself) == worst}
            guilty += sorted(found)
            left = [failure for failure in left if not failure.accused & found]
        accused = {peer for failure in self.failures for peer in failure.accused} | left_out
        for peer in sorted(left_out):
            self._doubts[peer] = min(MOST_DOUBTS, self._doubts[peer] + 1)
        most = max((self._doubts[peer] for peer in left_out), default=0)
        if most >= LASTING or len(left_out) == 1:
            guilty += sorted(peer for peer in left_out if self._doubts[peer] == most)
        self._doubts.subtract(worked - accused)
        self._doubts = +self._doubts
        self.failures.clear()
        self._count()
        return guilty

    def _count(self) -> None:
        self._accusers.clear()
        for failure in self.failures:
            for peer in failure.accused:
                self._accusers[peer].add(failure.who)

    def _counts(self, failure: Failure) -> bool:
        return failure.microbatch is not None or self._doubts[failure.who] >= LASTING

    def _guilt(self, peer: str, worked: Collection[str], failed_itself: Collection[str]) -> tuple[int, bool, bool]:
        return self._doubts[peer], peer not in worked, peer in failed_itself


def _common(failures: Iterable[Failure]) -> frozenset[str]:
    those = [failure.accused for failure in failures]
    return frozenset.intersection(*those) if those else frozenset()
