"""Messages that an insider sends in addition to those of its core: in the name of others, or accusing them.

The drivers refuse some of them. The cores must withstand all of them, except a relayed message that names another
origin: only the drivers check its signature, so no such message is sent here.
"""

from __future__ import annotations

from dataclasses import replace

from swarm.protocol import messages as msg
from swarm.protocol.bucket_owners import owners
from swarm.protocol.ids import Actor, Attempt, Direction, FrameKey, Microbatch, PartKey, StageIndex, SumKey, Term
from swarm.protocol.messages import Message, Status
from swarm.protocol.peer.pass_run import PassRun
from swarm.simulation.toy.peer_body import PeerBody
from swarm.simulation.toy.toy_model import buckets_of

_LATER = 10**9
"""Added to a sequence number, so that the forged report is newer than all true ones."""
_WHY = "an insider says so"

Sent = list[tuple[Actor, Message]]


def meddled(peer: PeerBody, status: Status) -> Sent:
    """The additional messages with their receivers. Called whenever the insider sends its status."""
    others = [p for p in peer.world.alive() if isinstance(p, PeerBody) and p.lie is None]
    if not others:
        return []
    if peer.lies("impostor"):
        return _Impostor(peer, status, peer.world.random.choice(others)).sent()
    if peer.lies("accusing"):
        return _accusations(peer, others)
    return []


def _accusations(peer: PeerBody, others: list[PeerBody]) -> Sent:
    """Nobody answers it, and what others send makes it fail."""
    pass_run, rng = peer.core.pass_run, peer.world.random
    if pass_run is None:
        return []
    to, pass_id = peer.core.coordinator, pass_run.pass_id
    said: Sent = [(to, msg.Unreachable(pass_id, other.actor)) for other in others]
    mine = sorted(pass_run.microbatches.work)
    if mine and rng.random() < 0.2:
        said.append((to, msg.Failed(pass_id, rng.choice(mine), _WHY, rng.random() < 0.5)))
    return said


class _Impostor:
    """An insider that acts as if it were `victim`, or the coordinator."""

    def __init__(self, peer: PeerBody, status: Status, victim: PeerBody) -> None:
        self._peer = peer
        self._status = status
        self._victim = victim
        self._coordinator: Actor = peer.core.coordinator
        self._rng = peer.world.random

    def sent(self) -> Sent:
        said = self._rng.choice((self._reports, self._orders, self._data_of_others, self._work_of_others))
        return said()

    # ------------------------------------------------------------ to the coordinator

    def _reports(self) -> Sent:
        """Reports of the victim about itself."""
        victim, rng = self._victim.actor, self._rng
        newer = self._status.sequence + _LATER
        forged = replace(self._status, actor=victim, sequence=newer)
        what: Message = rng.choice(
            (
                replace(forged, fenced=True),
                replace(forged, leaving=True),
                replace(forged, spoilt=True),
                replace(forged, stage=None, version=None),
                replace(forged, paused=_WHY),
                msg.Join(victim, sequence=newer),
                msg.Leave(victim, _WHY),
                msg.Proof(rng.randrange(1 << 60), rng.randrange(1 << 60)),
            )
        )
        return [(self._coordinator, what)]

    def _work_of_others(self) -> Sent:
        """Results, failures and releases of microbatches that the victim computes."""
        pass_run, stage = self._pass_run, self._victim.stage
        if pass_run is None or stage is None:
            return []
        pass_id, mine = pass_run.pass_id, self._microbatches(pass_run, stage)
        said: list[Message] = [msg.Result(pass_id, m, 0.0, 0) for m in mine]
        said += [msg.Failed(pass_id, m, _WHY, self._rng.random() < 0.5) for m in mine[:1]]
        number = pass_run.microbatches.tables[stage].number
        said.append(msg.Released(pass_id, number, mine))
        if stage != self._peer.stage:
            said.append(msg.Prepared(Attempt(pass_id, StageIndex(stage), number), _WHY, 1.0, 1.0))
        return [(self._coordinator, self._rng.choice(said))]

    # ------------------------------------------------------------ to other peers

    def _orders(self) -> Sent:
        """Orders that only the coordinator may give."""
        pass_run, rng = self._pass_run, self._rng
        term = Term(rng.choice((self._status.term, self._status.term + 1, self._status.term + _LATER)))
        said: list[Message] = [
            msg.Halt(_WHY, term),
            msg.Dismiss(term, _WHY),
            msg.Excuse(term, _WHY),
            msg.Assign(term, StageIndex(0), 0),
            msg.Disproved(term, rng.randrange(1 << 60)),
        ]
        if pass_run is not None:
            pass_id, stage = pass_run.pass_id, pass_run.microbatches.stage
            table = pass_run.microbatches.tables[stage]
            newer = replace(table, number=table.number + 1, roster=(self._peer.actor,), assignment=(0,) * 32)
            said += [
                msg.Fenced(pass_id, _WHY),
                msg.Amend(pass_id, StageIndex(stage), newer, _WHY),
                msg.Release(pass_id, table.number, tuple(Microbatch(m) for m in range(32))),
            ]
        return self._to_all(rng.choice(said))

    def _data_of_others(self) -> Sent:
        """Frames, parts and sums that the victim should make."""
        pass_run, stage = self._pass_run, self._victim.stage
        if pass_run is None or stage is None:
            return []
        victim, rng = self._victim.actor, self._rng
        false = rng.randrange(1 << 60)
        table = pass_run.microbatches.tables[stage]
        attempt, bucket = (
            Attempt(pass_run.pass_id, StageIndex(stage), table.number),
            rng.randrange(buckets_of(stage, 0)),
        )
        said: list[Message] = [msg.ReducePart(PartKey(attempt, bucket, victim), table.set_of(victim), false)]
        if table.roster[owners(table.lines, len(table.roster), buckets_of(stage, 0))[bucket]] != self._peer.actor:
            said.append(msg.ReducedPart(SumKey(attempt, bucket), false))
        frames = self._frames(pass_run, stage)
        said += [msg.Frame(key, false) for key in frames]
        said.append(msg.Pending(frames))
        what = rng.choice(said)
        if isinstance(what, msg.WithPayload) and rng.random() < 0.3:
            return [(to, msg.Relay(self._peer.actor, to, what)) for to, _ in self._to_all(what)]
        return self._to_all(what)

    def _frames(self, pass_run: PassRun, stage: int) -> tuple[FrameKey, ...]:
        """Frames that the victim makes. Not those of a microbatch that may have been the insider's own: false frames of
        its own are another kind of lie.
        """
        if stage == self._peer.stage and pass_run.microbatches.tables[stage].number > 1:
            return ()
        ways = ((stage, Direction.BACKWARD), (stage + 1, Direction.FORWARD))
        mine = self._microbatches(pass_run, stage)
        return tuple(FrameKey(pass_run.pass_id, boundary, way, m) for m in mine for boundary, way in ways)

    def _to_all(self, what: Message) -> Sent:
        everybody = [p.actor for p in self._peer.world.alive() if isinstance(p, PeerBody) and p is not self._peer]
        return [(to, what) for to in everybody]

    # ------------------------------------------------------------ what it knows

    @property
    def _pass_run(self) -> PassRun | None:
        pass_run: PassRun | None = self._peer.core.pass_run
        return pass_run

    def _microbatches(self, pass_run: PassRun, stage: int) -> tuple[Microbatch, ...]:
        """The victim's microbatches, in order."""
        return tuple(sorted(pass_run.microbatches.tables[stage].assigned_to(self._victim.actor)))
