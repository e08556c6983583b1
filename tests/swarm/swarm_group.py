"""A swarm whose run names three coordinators, each a process with a home of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swarm_processes import DEVICES, Nursery, Process, Swarm

from peers.chaos.internet import Internet, Place
from peers.chaos.scenario import HostPlan
from peers.run.home import Home
from peers.run.verdict import archived_digests
from peers.runtime.organisers import addresses_by_peer
from swarm.events import CheckpointArchived, CoordinatorStarted, LeaderFollowed, LeadershipTaken, PeerJoined
from swarm.manifest import RunManifest
from swarm.net.identity import Identity
from swarm.net.invite import parse

NAMES = ("c0", "c1", "c2")


def founded(folder: Path) -> str:
    """Homes for three coordinators in `folder`: the --set that names them as the group of a run."""
    ids = [Identity.load(Home(folder / name).identity).peer_id for name in NAMES]
    return f"coordinator.group={ids}"


class GroupSwarm(Swarm):
    """`coordinator` is the one that was the last to take the lead."""

    def __init__(self, nursery: Nursery, folder: Path, run_file: Path, manifest: RunManifest, *sets: str) -> None:
        super().__init__(nursery, folder, run_file, manifest, *sets)
        self.coordinators = {name: self._process(name) for name in NAMES}
        self.others |= self.coordinators
        self._internet: Internet | None = None
        self._places: dict[str, Place] = {}

    def on(self, internet: Internet, peers: Sequence[str]) -> None:
        """Every coordinator and peer is a host of this internet from now on."""
        self._internet = internet
        for name in (*NAMES, *peers):
            self._places[name] = internet.add(HostPlan(name))
            process = self.coordinators[name] if name in NAMES else self.peers.setdefault(name, self._process(name))
            process.namespace = self._places[name].namespace

    def host(self, process: Process) -> str:
        """The name of a coordinator's host."""
        return next(name for name, each in self.coordinators.items() if each is process)

    @property
    def coordinator(self) -> Process:  # type: ignore[override]
        taken = {name: c.at_last(LeadershipTaken) for name, c in self.coordinators.items()}
        return self.coordinators[max(taken, key=lambda name: taken[name])]

    @coordinator.setter
    def coordinator(self, process: Process) -> None:
        """What a swarm with one coordinator would have: none of these."""

    def start_member(self, name: str, *more: str) -> Process:
        """Start a coordinator, in its home of before if it had one."""
        process, invite = self.coordinators[name], self.folder / f"invite-{name}"
        where = self._listened_at(invite, process)
        invite.unlink(missing_ok=True)
        sets = [f"--set={text}" for text in self.sets]
        lead = [f"--invite={self.invite}"] if name != "c0" and not process.pid else []
        place = self._places.get(name)
        listen = place.listening if place is not None else (f"--listen={where}",)
        words = ["coordinate", str(self.run_file), f"--invite-file={invite}", "--no-dashboard", f"--devices={DEVICES}"]
        words += listen
        process.start([*words, *lead, *sets, *more])
        if self._internet is not None:
            self._internet.started(name, process.pid)
        process.wait(invite.exists, "an invite")
        return process

    def _listened_at(self, invite: Path, process: Process) -> str:
        """Where a coordinator is to listen: as before, if it was there."""
        if not invite.exists():
            return "/ip4/127.0.0.1/tcp/0"
        me = Identity.load(Home(process.home).identity).peer_id
        mine = addresses_by_peer(parse(invite.read_text()).addresses)[me]
        return next(address for address in mine if address.startswith("/ip4/127.0.0.1/")).split("/p2p/")[0]

    def join(self, name: str, *more: str, capacity: float | None = 1.0, invite: str = "") -> Process:
        place = self._places.get(name)
        where = () if place is None else place.joining
        peer = super().join(name, *more, *where, capacity=capacity, invite=invite)
        if self._internet is not None:
            self._internet.started(name, peer.pid)
        return peer

    def start_group(self, *more: str) -> Process:
        """Start all, and wait until one leads and the others follow it."""
        for name in NAMES:
            self.start_member(name, *more)
        self.coordinators["c0"].wait(
            lambda: any(c.of(LeadershipTaken) for c in self.coordinators.values()), "anybody who leads"
        )
        leader = self.coordinator
        for process in self.coordinators.values():
            if process is not leader:
                process.wait_for(LeaderFollowed, leader=leader.actor)
        return leader

    def _joined(self) -> list[str]:
        told = [(at, e.actor) for c in self.coordinators.values() for at, e in c.log if isinstance(e, PeerJoined)]
        return list(dict.fromkeys(actor for _, actor in sorted(told)))

    @property
    def invite(self) -> str:
        return (self.folder / "invite-c0").read_text().strip()

    def next_leader(self, term: int) -> tuple[Process, CoordinatorStarted]:
        """The coordinator that was the first to lead after the one with `term`, and how it began.

        A busy machine may make another one lead later on, which no test about the first is about.
        """
        starts = [(event, c) for c in self.coordinators.values() for event in c.of(CoordinatorStarted)]
        event, process = min((each for each in starts if each[0].term > term), key=lambda each: each[0].term)
        return process, event

    def followers(self) -> list[Process]:
        leader = self.coordinator
        return [process for process in self.coordinators.values() if process is not leader]

    def finish_group(self, but: Sequence[Process] = ()) -> None:
        """All coordinators that live, and all peers, leave by themselves."""
        for process in self.coordinators.values():
            if process not in but:
                assert process.wait_end() == 0, self.words()
        for peer in self.peers.values():
            peer.wait_end(30.0)

    def assert_archives_equal(self, reference: Sequence[str], but: Sequence[Process] = ()) -> None:
        """Every coordinator that lived to the end holds the last version, with the digests of `reference`."""
        for process in self.coordinators.values():
            if process in but:
                continue
            version, digests = archived_digests(process.home, self.manifest)
            assert version == self.manifest.run.steps, process.words()
            assert digests == tuple(reference), process.words()
            assert process.of(CheckpointArchived, version=version)
