"""What a simulated peer keeps for listeners, and what it fetches to catch up itself.

Sums are fetched as in reality: from any donor that still has them. Other donors refuse, and some sums are corrupted in
transit. A version is downloaded piece by piece, so it takes longer than a step, and a donor may die meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarm.protocol.donors import verdict
from swarm.protocol.ids import Actor, Attempt
from swarm.protocol.peer import io as peer_io
from swarm.simulation.checks.watch import reduced_digest
from swarm.simulation.faults.lie import GRUDGING_S
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.toy.peer_body import PeerBody

_FETCH_S, _ROUND_S = 0.03, 0.1
_ROUNDS = 8
"""Number of rounds in which all donors are asked before the sums of a step count as lost."""
_PIECES = 6


@dataclass(slots=True)
class _Download:
    order: peer_io.LoadState
    left: int = _PIECES
    state: int | None = None


class Loans:
    """Copies and sums that one process lends or borrows. `loaded`: called with the downloaded state, or None if the
    download failed.
    """

    def __init__(self, peer: PeerBody, loaded: Callable[[peer_io.LoadState, int | None], None]) -> None:
        self.copies: dict[int, int] = {}
        """{version: state}"""
        self.sums: dict[int, tuple[str, dict[int, int]]] = {}
        """{step: (digest, {bucket: sum})}"""
        self._peer = peer
        self._loaded = loaded
        self._lent: peer_io.Lend | None = None
        self._spool: dict[int, dict[int, int]] = {}
        self._fetching: peer_io.FetchSums | None = None
        self._rounds = 0
        self._fetch = self._epoch = 0
        self._taken = 0

    def clear(self) -> None:
        """Another state is loaded. Everything kept belongs to the one before."""
        self.copies.clear()
        self.sums.clear()
        self._spool.clear()
        self._lent = self._fetching = None
        self._fetch += 1
        self._epoch += 1

    # ------------------------------------------------------------ lending

    def lend(self, action: peer_io.Lend) -> None:
        peer = self._peer
        self._lent = action
        self.copies = {version: state for version, state in self.copies.items() if version in action.versions}
        self.sums = {step: sums for step, sums in self.sums.items() if step >= action.since}
        version = action.pass_id.version
        if version in action.versions and version not in self.copies:
            if peer.version != version:
                raise Violation("contract", f"{peer.label} should copy version {version}")
            self.copies[version] = peer.given()

    def applied(self, attempt: Attempt, sums: dict[int, int]) -> None:
        lent = self._lent
        if lent is not None and lent.sums and lent.pass_id == attempt.pass_id:
            self.sums[attempt.pass_id.step] = (reduced_digest(attempt.stage, sums), dict(sums))

    # ------------------------------------------------------------ fetching sums

    def fetch(self, action: peer_io.FetchSums) -> None:
        running = self._fetching
        self._fetching = action
        if running is not None and running.step == action.step:
            return  # only the donors are new
        self._spool.pop(action.step, None)
        self._rounds = 0
        self._fetch += 1
        self._ask(self._fetch, _FETCH_S)

    def _ask(self, number: int, delay: float) -> None:
        world = self._peer.world
        world.at(world.now + delay * (0.5 + world.random.random()), self._peer, (self._answered, number))

    def _answered(self, number: int) -> None:
        action, peer = self._fetching, self._peer
        if number != self._fetch or action is None:
            return
        for donor in self._shuffled(action.donors):
            digest, sums = donor.loans.sums.get(action.step, ("", {}))
            if digest == action.digest and donor.stage == action.stage and not donor.keeps_its_state:
                self._spool[action.step] = self._received(sums)
                self._fetching = None
                self._come()
                peer.feed(peer_io.SumsFetched(action.stage, action.step))
                return
        self._rounds += 1
        if self._rounds < _ROUNDS:
            self._ask(number, _ROUND_S)
        else:
            self._fetching = None
            peer.feed(peer_io.SumsMissing(action.stage, action.step, "no donor has them"))

    def _received(self, sums: dict[int, int]) -> dict[int, int]:
        rng, came = self._peer.world.random, dict(sums)
        if rng.random() < self._peer.world.spoils:
            came[rng.choice(sorted(came))] ^= 1 << rng.randrange(64)
        return came

    def _come(self) -> None:
        self._taken += 1
        self._peer.feed(peer_io.Fetched(self._taken))

    def spooled(self, step: int) -> dict[int, int]:
        """The sums of a step, to be restored. Raises Violation."""
        if step not in self._spool:
            raise Violation(
                "contract", f"{self._peer.label} should restore the sums of step {step}, which it does not have"
            )
        self._peer.world.watch.caught_up += 1
        return self._spool.pop(step)

    # ------------------------------------------------------------ downloading a version

    def lends(self, order: peer_io.LoadState) -> bool:
        """Return True if this peer was told to keep a copy of that state."""
        there = self._peer.stage == order.stage and order.version in self.copies
        return there and not self._peer.keeps_its_state

    def are_lent(self, order: peer_io.LoadState) -> bool:
        """Return True if a donor was told to keep a copy, so that the download takes its time."""
        by_actor = self._peer.world.by_actor
        return any(isinstance(d, Lender) and d.loans.lends(order) for d in map(by_actor.get, _actors(order)))

    def download(self, action: peer_io.LoadState) -> None:
        """Download a state, often slower than a step; then call `loaded`."""
        self._pull((self._epoch, _Download(action)))

    def _pull(self, job: tuple[int, _Download]) -> None:
        """Receive one more piece, or fail if no donor is there to send it."""
        epoch, download = job
        if epoch != self._epoch or not self._peer.alive:
            return
        order, peer = download.order, self._peer
        here = [d for d in self._shuffled(_actors(order)) if d.loans.lends(order)]
        if not here:
            self._loaded(order, None)
            return
        copies = {donor.actor: donor.loans.copies[order.version] for donor in here}
        download.state = copies[min(verdict(copies, order.donors).tellers)]
        download.left -= not peer.lies("hoarding")
        if not download.left:
            self._loaded(order, download.state)
            return
        self._come()
        if self._peer.alive:
            world = peer.world
            slow_s = GRUDGING_S if here[0].lies("grudging") else 0.0
            world.at(world.now + slow_s + world.piece_s * 2 * world.random.random(), peer, (self._pull, job))

    def _shuffled(self, donors: tuple[Actor, ...]) -> list[Lender]:
        """The reachable donors, in random order."""
        world = self._peer.world
        found = [world.by_actor[actor] for actor in donors if actor in world.by_actor]
        lenders = [p for p in found if isinstance(p, Lender)]
        there = [p for p in lenders if p.alive and not p.stalled and not world.network.cut(self._peer, p)]
        world.random.shuffle(there)
        return there


def _actors(order: peer_io.LoadState) -> tuple[Actor, ...]:
    return tuple(donor.actor for donor in order.donors)


class Lender(PeerBody):
    """A peer that lends states and sums to listeners."""

    loans: Loans
