"""Tracks the checkpoints on the volunteers' disks, and orders a complete one to be fetched into the archive.

For each stage, only the reports of some peers count: of the roster that decided the version. If this process does not
know that roster, none of its peers is left, or nobody gets their checkpoints (`KeptBack`), the peers that hold the
version now count instead. A majority of people (`People`) must report the same digest. The coordinator waits up to a
step budget for peers that have not saved the version yet, so that the fastest peer alone cannot decide. It waits for a
peer, or for a majority in a stage, only once: not again for each version.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from swarm.events import CheckpointRefused, CheckpointsDiffer, CheckpointsMissing
from swarm.protocol.coordinator.io import CollectCheckpoint
from swarm.protocol.coordinator.membership.doubts import Doubts
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.kept_back import KeptBack
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Status
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings

KEPT = 3
"""Number of versions kept in memory, because each peer reports only the newest one that it has."""

_SOON = 2
"""Number of versions that a peer may be behind if it will soon have the newest by its own work. A peer that is further
behind usually downloads the state of a sibling, whose checkpoint it would only confirm.
"""
_PATIENCE = 2
"""Step budgets without a new archived checkpoint until this is reported."""


@dataclass(slots=True)
class _Copies:
    """The reports about one version."""

    since: float
    """The time when the first copy was reported."""
    by_stage: dict[int, dict[str, tuple[Actor, str]]] = field(default_factory=dict)
    """{stage: {peer: (its last incarnation, digest)}}"""
    refused: set[Actor] = field(default_factory=set)
    differing: set[int] = field(default_factory=set)
    """Stages for which an event has reported that the copies differ."""


@dataclass(frozen=True, slots=True)
class _Believed:
    peers: frozenset[str]
    here: frozenset[str]
    """The members of `peers` that are still present and may report."""
    lacking: int
    """Number of further peers that may join and report."""


class Checkpoints:
    """Receives every Status. Once every stage of a version is saved, orders it repeatedly until it is archived."""

    def __init__(
        self,
        settings: Settings,
        history: History,
        members: Members,
        doubts: Doubts,
        kept_back: KeptBack,
        out: Outbox,
    ) -> None:
        self._settings = settings
        self._history = history
        self._members = members
        self._doubts = doubts
        self._kept_back = kept_back
        self._out = out
        self._rosters: dict[int, list[frozenset[str]]] = {}
        """{version: for each stage, the peers that computed it}"""
        self._newest_rosters: tuple[int, list[frozenset[str]]] = (-1, [])
        """The rosters of the last decided step, because the organiser may ask for its version later."""
        self._due: tuple[int, float] = (-1, 0.0)
        """(version, time) of the last checkpoint that was due although the schedule does not contain it."""
        self._copies: dict[int, _Copies] = {}
        self._ordered: tuple[int, float] = (-1, 0.0)
        """(version, time) of the last order to fetch a checkpoint."""
        self._progress: tuple[int | None, float | None] = (-1, 0.0)
        """(the newest version in the archive, the time when it was first seen there; None: its lack is reported)"""
        self._in_vain = 0
        """Number of orders since a checkpoint was archived. The first begins with the holder that reported first: on
        a slow link, a transfer would delay the holder's own reports. Each further one begins with another holder.
        """
        self._missed: dict[str, tuple[int, float]] = {}
        """For each peer that has not saved a version which a sibling has saved: (the version, the time since which this
        is so). It is removed once the peer reports that version or a later one.
        """
        self._split_since: dict[int, float] = {}
        """For each stage whose copies differ, without a majority: the time since which this is so."""
        self._due_since: float | None = None
        """The time since which a checkpoint is due that the archive lacks; None: it lacks none."""
        self._unfetched: set[int] = set()
        """Stages whose copies could not be fetched from anybody since a checkpoint was archived."""
        self._next_search = 0.0
        """When stages that keep their checkpoints back are looked for again."""

    def decided(
        self,
        version: int,
        pass_state: PassState,
        without: frozenset[Actor],
        took_part: Collection[str] = (),
        *,
        now: float,
    ) -> None:
        """A step is decided. From now on, reports of its rosters about the checkpoint `version` count.

        `took_part`: peers that took part in other attempts at the step, because an audit may have left out all people
        but one. If a stage's roster has the devices of one person only, the other members count too that will soon have
        the version by their own work.
        """
        rosters = []
        for stage, table in enumerate(pass_state.tables):
            there = {member.actor.peer for member in self._members.of_stage(stage)}
            makers = {actor.peer for actor in table.roster if actor not in without}
            makers |= there.intersection(took_part)
            if self._members.people.count(makers) == 1:
                makers |= {member.actor.peer for member in self._members.of_stage(stage) if _will_have(member, version)}
            rosters.append(frozenset(makers))
        self._newest_rosters = version, rosters
        if self._history.saves(version, self._settings):
            self._rosters[version] = rosters
            self._forget()
            self._is_due(now)

    def ask(self, now: float) -> None:
        """Ask for a checkpoint of the current version if the organiser wants one now, or if the run ends with this
        version.

        If the holders of a checkpoint are gone before it is archived, a later version is requested; but only after a
        step budget, because the checkpoint may be on its way.
        """
        history, settings = self._history, self._settings
        version, wanted, (last, at) = history.version, history.controls.checkpoint, self._due
        ends = version == history.end(settings)
        due = ends or (0 < wanted <= version and not self._is_archived(wanted))
        if not due or version in (0, last) or self._is_archived(version):
            return
        if not ends and last >= wanted and now - at < settings.step_budget_s:
            return
        self._due = version, now
        self._is_due(now)
        if settings.saves(version):
            return  # its peers save it anyway
        history.asked = version
        if self._newest_rosters[0] == version:
            self._rosters[version] = self._newest_rosters[1]
            self._forget()

    def note(self, member: Member, status: Status, now: float) -> None:
        """Record the checkpoint that a peer reports. Called for every Status, with or without one."""
        self._look(now)
        version, stage, peer = status.checkpoint_version, status.stage, status.actor.peer
        if stage is None or stage != member.stage or not 0 <= stage < self._settings.stages:
            return
        if version > self._history.version or self._is_archived(version):
            return
        if not self._history.saves(version, self._settings):
            return
        if not status.checkpoint_digest:
            return
        if peer not in self._believed(version, stage).peers:
            return
        copies = self._copies.setdefault(version, _Copies(now))
        copies.by_stage.setdefault(stage, {})[peer] = (status.actor, status.checkpoint_digest)
        self._compare(version, stage, copies)
        self._note_missing(version, stage, peer, now)
        self._forget()
        if len(copies.by_stage) < self._settings.stages:
            return
        ordered, at = self._ordered
        if ordered < version or now - at >= 10 * self._settings.heartbeat_s:
            self._order(version, copies, now)

    def _look(self, now: float) -> None:
        """Report once if KEPT checkpoints in a row are not archived, for several step budgets. Peers leave out a
        version if their disks are slower than the steps, so a single one means nothing.
        """
        archived, since = self._progress
        patience_s = _PATIENCE * self._settings.step_budget_s
        if archived != self._history.archived:
            self._progress = self._history.archived, now
            self._forget()
            self._in_vain = 0
            self._unfetched.clear()
            self._kept_back.clear()
            self._due_since = now if self._rosters else None
            here = {member.actor.peer for member in self._members}
            self._missed = {peer: missed for peer, missed in self._missed.items() if peer in here}
        elif len(self._rosters) >= KEPT and since is not None and now - since >= patience_s:
            self._progress = archived, None
            version = sorted(self._rosters)[-2]  # its peers had the time of a whole interval to save it
            self._out.emit(CheckpointsMissing(archived or 0, self._history.version, self.lacking(version, now)))
        self._search(now)

    def arrives(self, actor: Actor, now: float) -> None:
        """Bytes of a checkpoint arrive from this actor."""
        member = self._members.get(actor)
        if member is not None and member.stage is not None:
            self._kept_back.arrives(member.stage, now)

    def unfetched(self, version: int, stage: int) -> None:
        """None of the ordered holders has given its copy of this stage."""
        if not self._is_archived(version):
            self._unfetched.add(stage)

    def rolled_back(self, version: int) -> None:
        """The run has gone back: forget later versions, which belong to a history that no longer counts."""
        self._copies = {v: copies for v, copies in self._copies.items() if v <= version}
        self._rosters = {v: rosters for v, rosters in self._rosters.items() if v <= version}
        self._newest_rosters = (-1, [])
        self._due = (-1, 0.0)
        self._ordered = (-1, 0.0)
        self._missed.clear()
        self._split_since.clear()
        self._due_since = None
        self._unfetched.clear()
        self._kept_back.clear()

    def lacking(self, version: int, now: float) -> str:
        """The reason why a version is not in the archive yet, as text."""
        copies = self._copies.get(version, _Copies(now))
        for stage in range(self._settings.stages):
            what = f"checkpoint {version} of stage {stage} is not archived"
            if not copies.by_stage.get(stage):
                return f"{what}: none of its replicas has saved it"
            if self._agreed(version, stage, copies, now) is None:
                return f"{what}: its replicas' copies differ, or some have not saved it"
        return f"checkpoint {version} is not archived: its copies could not be fetched or stored so far"

    # ------------------------------------------------------------ who keeps its checkpoints back

    def _is_due(self, now: float) -> None:
        """The archive lacks a checkpoint from now on, or already."""
        if self._due_since is None:
            self._due_since = now

    def _note_missing(self, version: int, stage: int, peer: str, now: float) -> None:
        """A peer has saved a version: from now on, the other peers of its stage should have saved it too."""
        missed = self._missed.get(peer)
        if missed is not None and version >= missed[0]:
            del self._missed[peer]
        for other in self._believed(version, stage).here:
            if other not in self._copies[version].by_stage[stage]:
                self._missed.setdefault(other, (version, now))

    def _has_time(self, peer: str, now: float) -> bool:
        """Return True if the coordinator may wait for the peer to save a version."""
        missed = self._missed.get(peer)
        return missed is None or now - missed[1] < self._settings.step_budget_s

    def _search(self, now: float) -> None:
        """Look for stages whose checkpoints nobody gets, once a heartbeat while a checkpoint is overdue."""
        since, patience_s = self._due_since, _PATIENCE * self._settings.step_budget_s
        if since is None or now - since < patience_s or now < self._next_search:
            return
        self._next_search = now + self._settings.heartbeat_s
        for stage in range(self._settings.stages):
            if not self._gives(stage, now):
                there = self._members.of_stage(stage)
                holders = [m.actor.peer for m in there if m.is_current(self._history.version, self._history.decision)]
                if holders:
                    self._kept_back.add(stage, holders)

    def _gives(self, stage: int, now: float) -> bool:
        """Return True if the stage has saved some version that the archive lacks, as far as is known."""
        if stage in self._unfetched:
            return False
        return any(
            self._agreed(version, stage, copies, now) is not None
            for version, copies in self._copies.items()
            if copies.by_stage.get(stage)
        )

    # ------------------------------------------------------------ whose reports count

    def _is_archived(self, version: int) -> bool:
        return self._history.archived is not None and version <= self._history.archived

    def _believed(self, version: int, stage: int) -> _Believed:
        """The peers whose reports about a stage count."""
        crew = [m for m in self._members.of_stage(stage) if m.actor.peer not in self._doubts.left_out]
        makers = self._rosters[version][stage] if version in self._rosters else frozenset[str]()
        here = makers & {member.actor.peer for member in crew}
        if here and (version != self._history.version or not all(self._kept_back.has(peer) for peer in here)):
            return _Believed(makers, here, 0)
        if version != self._history.version:
            return _Believed(frozenset(), frozenset(), 0)
        holders = frozenset(member.actor.peer for member in crew if member.version == version)
        return _Believed(holders, holders, max(0, self._settings.replicas - len(holders)))

    def _agreed(self, version: int, stage: int, copies: _Copies, now: float) -> str | None:
        """The digest that most people report; None if there is no majority yet. Until a step budget has passed, people
        that have not reported count as votes for no digest.
        """
        believed = self._believed(version, stage)
        said = {peer: copy for peer, copy in copies.by_stage[stage].items() if peer in believed.peers}
        if not said:
            return None
        people, waits = self._members.people, now - copies.since < self._settings.step_budget_s
        awaited = [peer for peer in believed.here if peer not in said and waits and self._has_time(peer, now)]
        lacking = believed.lacking if waits else 0
        shares = people.votes([*said, *awaited])
        votes: defaultdict[str, Fraction] = defaultdict(Fraction)
        for peer, (_, digest) in said.items():
            votes[digest] += shares[peer]
        common = max(votes, key=lambda digest: votes[digest])
        if 2 * votes[common] > sum(shares.values(), Fraction(lacking)):
            self._split_since.pop(stage, None)
            return common
        if awaited or lacking or not len(votes) == people.count(said) == 2:
            return None
        if now - self._split_since.setdefault(stage, copies.since) < self._settings.step_budget_s:
            return None
        # It is unknown which copy is right. If none with the first digest can be fetched, try the other one.
        in_turn = sorted(
            votes, key=lambda digest: min(self._members.standing(a) for a, d in said.values() if d == digest)
        )
        return in_turn[self._in_vain % 2]

    def _compare(self, version: int, stage: int, copies: _Copies) -> None:
        """Report an event as soon as the copies of a stage differ."""
        whose: dict[str, list[str]] = {}
        for actor, digest in copies.by_stage[stage].values():
            whose.setdefault(digest, []).append(str(actor))
        if len(whose) > 1 and stage not in copies.differing:
            copies.differing.add(stage)
            self._out.emit(CheckpointsDiffer(version, stage, whose))

    # ------------------------------------------------------------ ordering

    def _order(self, version: int, copies: _Copies, now: float) -> None:
        """Order to fetch the version from the peers that report the agreed digest. Refuse copies with another
        digest.
        """
        digests = [self._agreed(version, stage, copies, now) for stage in range(self._settings.stages)]
        agreed = [digest for digest in digests if digest is not None]
        if len(agreed) < len(digests):
            return
        self._ordered = (version, now)
        holders = []
        for stage, common in enumerate(agreed):
            said = copies.by_stage[stage].values()
            for actor in [actor for actor, digest in said if digest != common and actor not in copies.refused]:
                copies.refused.add(actor)
                what = f"{actor} stage {stage} version {version}"
                self._out.emit(CheckpointRefused(what, "differs from its siblings'"))
            agreeing = [actor for actor, digest in said if digest == common]
            first = self._in_vain % len(agreeing)
            holders.append((*agreeing[first:], *agreeing[:first]))
        self._in_vain += 1
        proven = self._history.last_sound  # the newest checkpoint in an archive does not count as sound yet
        self._out.add(CollectCheckpoint(version, self._history.term, tuple(holders), tuple(agreed), proven=proven))

    def _forget(self) -> None:
        """Forget versions that are archived or too old."""
        self._rosters = {v: self._rosters[v] for v in self._newest(self._rosters)}
        self._copies = {v: self._copies[v] for v in self._newest(self._copies)}

    def _newest(self, versions: Iterable[int]) -> list[int]:
        return sorted(v for v in versions if not self._is_archived(v))[-KEPT:]


def _will_have(member: Member, version: int) -> bool:
    """Return True if a member works in its stage and will soon have this version by its own work."""
    return member.takes_part and member.version is not None and version - member.version <= _SOON
