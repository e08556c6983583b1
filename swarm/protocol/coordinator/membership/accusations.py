"""Who may be to blame for what fails in a step: who says that it failed, and who sent it what it failed on.

That something failed is one peer's word, and so accuses that peer too. The step goes on without it, or is done again
without those who are accused more often than a sibling. Whoever is common to several failures is left, and struck when
the step is decided; who failed on what that one sent is forgiven. Who says falsely that it failed is common to all that
it says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from swarm.protocol.ids import Microbatch

MOST_FAILURES = 256
"""Of one step, the newest."""
REMEMBERED = 4096
"""Peers, those that were accused last."""
MOST_DOUBTS = 64
LASTING = 2
"""So often a peer must have failed, in one step after the other, for what nobody else can have had a part in."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a peer says that it failed on, in a training pass. Peers by id: a restart is no other one."""

    stage: int
    microbatch: Microbatch | None
    """None: it was not over one of them."""
    who: str
    senders: frozenset[str]
    """Of what the microbatch is made from there, but for the coordinator."""
    reason: str
    nonfinite: bool = False
    near: frozenset[int] = frozenset()
    """Stages of the senders."""

    @property
    def accused(self) -> frozenset[str]:
        return self.senders | {self.who}

    def __str__(self) -> str:
        what = "" if self.microbatch is None else f" on microbatch {self.microbatch}"
        sent = f", which {' and '.join(sorted(self.senders))} sent" if self.senders else ""
        return f"{self.who} of stage {self.stage} failed{what}{sent}: {self.reason}"


class Accusations:
    """Failures are of the step that is not decided yet; doubts outlive it."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self._accusers: defaultdict[str, set[str]] = defaultdict(set)
        """Of whom, in this step."""
        self._doubts: Counter[str] = Counter()
        """How often a peer was accused of late, by different ones in each step."""

    def note(self, failure: Failure) -> None:
        self.failures.append(failure)
        del self.failures[:-MOST_FAILURES]
        new = {peer for peer in failure.accused if failure.who not in self._accusers[peer]}
        self._count()
        for peer in sorted(new):
            doubts = self._doubts.pop(peer, 0)
            self._doubts[peer] = min(MOST_DOUBTS, doubts + 1)
        while len(self._doubts) > REMEMBERED:
            del self._doubts[next(iter(self._doubts))]

    def against(self, peer: str) -> int:
        """How many peers have failed on what it sent, or were that peer, in this step."""
        return len(self._accusers.get(peer, ()))

    def common(self, stage: int, m: Microbatch) -> frozenset[str]:
        """Who is accused in every failure of `stage` on a microbatch."""
        return _common(each for each in self.failures if (each.stage, each.microbatch) == (stage, m))

    @property
    def common_to_nonfinite(self) -> frozenset[str]:
        """Who is accused whenever something was not finite."""
        return _common(each for each in self.failures if each.nonfinite)

    def nobodys_fault(self) -> None:
        """What is not finite is so whoever computes it: nobody is accused of that."""
        before = {peer: len(accusers) for peer, accusers in self._accusers.items()}
        self.failures = [failure for failure in self.failures if not failure.nonfinite]
        self._count()
        self._doubts.subtract({peer: times - self.against(peer) for peer, times in before.items()})
        self._doubts = +self._doubts

    def settle(self, workers: Iterable[str], left_out: frozenset[str] = frozenset()) -> list[str]:
        """The step is decided by what these have done. Who is at fault for what failed in it; one doubt less of others.

        `left_out`: it was not finite before they were. One of them is at fault: who was doubted most often, if that is
        not the first time, or if it is the only one.

        The fewest that explain all failures: first who was accused most often of late, and among equals who has done
        nothing of what is decided, then who failed itself.
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
