"""The watch: checks every invariant of the protocol at the very event that could break it.

Parameters change only in `Apply` and `LoadState`, decisions only in `WriteRecord`, tables only in `Open` and `Amend`.
So a check at each of these equals a check after every event.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from swarm.events import ControlGiven, PeerFenced, PeerMoved, RolledBack, StepDecided
from swarm.protocol.controls import Controls, check
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.divergence import DIVERGED
from swarm.protocol.coordinator.io import WriteTerm
from swarm.protocol.ids import Actor, Attempt, PassId, PassKind
from swarm.protocol.io import Stop
from swarm.protocol.messages import (
    UNTOLD,
    Amend,
    ArchivedEntry,
    Assign,
    CodecPair,
    Command,
    CommandEntry,
    Contribution,
    Decide,
    Decision,
    DecisionEntry,
    Dismiss,
    Entry,
    Excuse,
    Fenced,
    Halt,
    LeaveSeat,
    Message,
    Open,
    Release,
    StageTable,
    TakeSeats,
    TermEntry,
)
from swarm.protocol.peer.io import Begin
from swarm.protocol.peer.leader import term_of
from swarm.protocol.soundness import Soundness
from swarm.simulation.checks.watched import PeerView, WorldView
from swarm.simulation.faults.unlike import UnlikeRun
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.toy.toy_model import (
    Ideal,
    bucket_share,
    digest_of,
    explain_sum,
    ideal_run,
    loss_of,
    shared_buckets,
    token_of,
    tokens_payload,
)

INVARIANTS = (
    "exactly once",
    "atomic",
    "replicas agree",
    "same answer",
    "progress",
    "no zombies",
    "bounded loss",
    "one record",
    "orderly leave",
    "commands",
    "honest stay",
    "contract",
)
"""`commands`: the organiser's commands are recorded once each, and later openings and decisions obey them. `orderly
leave`: in an otherwise calm run, a peer that is asked to leave costs no work and no state. `honest stay`: audits expel
nobody who does not lie. `contract`: a core orders what no driver could carry out (backward without forward, apply
without a buffer).
"""


GOODBYE = "goodbye"
"""Why a process is asked to leave before the end of the run."""
ENOUGH_TO_LEAVE_S = 2.0
"""Virtual seconds in which a step is over and a state handed on."""


class Watch:
    """The decisions, fences and openings so far in one world, and the checks against them."""

    def __init__(self, world: WorldView) -> None:
        self._world = world
        self._skipped: frozenset[int] = frozenset()
        self._key_frames: dict[int, tuple[int, ...]] = {}
        self._contributions: dict[int, tuple[tuple[Contribution, ...], ...]] = {}
        self._rosters: dict[int, tuple[Decision, tuple[tuple[Actor, ...], ...]]] = {}
        """By step, the rosters that decided it."""
        self._absent: dict[int, set[str]] = defaultdict(set)
        """By step, the peers that had died when it was decided."""
        self._codecs: dict[int, tuple[CodecPair, ...]] = {}
        self.controls = Controls()
        """After the recorded commands."""
        self._requests: set[str] = set()
        self._rates: dict[int, float] = {}
        """By step, as it was decided."""
        self._rate_of: dict[PassId, float] = {}
        """The commanded rate when the pass opened."""
        self._crosses: dict[PassId, tuple[CodecPair, ...]] = {}
        """The codecs of each pass."""
        self._unlike = UnlikeRun(world.settings) if world.unlike else None
        self.ideal = self._ideal()
        self.spoilt: dict[tuple[int, int], int | None] = {}
        """{(stage, step): term}: gradients that are not finite, in one term or (None) always."""
        self.overflowing: set[tuple[int, int]] = set()
        """(stage, step): results for a neighbour are not finite."""
        self._reproduced: set[int] = set()
        """Steps with non-finite results in two terms."""
        self._seen_spoilt: dict[int, int] = {}
        self.decisions: dict[int, Decision] = {}
        """The decisions that stand, by step; a rollback voids those after its version."""
        self._ever_decided: set[Decision] = set()
        self.archived = 0
        self.stored: set[int] = set()
        """Checkpoints that the coordinator knows to be in its archive."""
        self._soundness = Soundness()
        self._goes_back = ""
        """The coordinator's reason to go back, as just reported."""
        self.rollbacks = 0
        self.caught_up = 0
        """Number of steps that were applied from fetched sums."""
        self.moves = 0
        """Number of peers that were told to leave their stage for another one."""
        self._passes: dict[int, PassId] = {}
        self._attempts: dict[int, Attempt] = {}
        self._tables: dict[tuple[PassId, int], StageTable] = {}
        self._fenced: dict[PassId, set[Actor]] = defaultdict(set)
        self.standing: list[Entry] = []
        """The committed entries in the record of a group of coordinators."""
        self._leaders: dict[int, Actor] = {}
        """By ballot."""
        self._votes: dict[tuple[Actor, int], Actor] = {}
        self._terms: dict[int, Actor] = {}
        """The coordinator of each term, in a group."""
        self.diverged = False
        """Whether the run has ended as diverged: not all steps are decided."""
        self.disturbed = False
        """Whether something beyond requests to leave has happened: work and states may be lost."""
        self._accumulated: Counter[tuple[PassId, int, int]] = Counter()
        """(pass, stage, microbatch) → number of peers."""
        self._dismissed: set[Actor] = set()

    def reduced(self, stage: int, digest: str, sums: tuple[int, ...]) -> None:
        """A peer of `stage` holds these reduced buckets."""
        if self._unlike is not None:
            self._unlike.reduced(stage, digest, sums)

    def _ideal(self) -> Ideal:
        if self._unlike is not None:
            return self._unlike.ideal
        s, visits = self._world.settings, self._world.visits
        steps = max(s.steps, self.steps)
        run = (s.stages, s.microbatches, steps, s.tokens_per_step, s.optimizer.clip_norm, self._skipped)
        shares = tuple(self._contributions.get(step) for step in range(steps)) if s.averages_compressed else ()
        rates = tuple(self._rates.get(step, 1.0) for step in range(steps)) if self._rates else ()
        if self._world.choosing:
            chosen = tuple(self._codecs.get(step, ()) for step in range(steps))
            return ideal_run(*run, codecs=chosen, ends_share=s.ends_share, rates=rates)
        if visits is None:
            return ideal_run(*run, contributions=shares, ends_share=s.ends_share, rates=rates)
        visited = (visits.previous(step) for step in range(steps))
        known = tuple(self._key_frames.get(step) for step in range(steps))
        before = tuple(-1 if step is None else step for step in visited)
        return ideal_run(*run, before, known, shares, ends_share=s.ends_share, rates=rates)

    @property
    def steps(self) -> int:
        """Number of steps after which the run is to end, as commanded by now."""
        return self.controls.end(self._world.settings)

    def commanded(self, command: Command) -> None:
        """`command` is durable."""
        if command.number != self.controls.count + 1:
            raise Violation("commands", f"number {command.number} comes after {self.controls.count}")
        if command.request in self._requests:
            raise Violation("commands", f"{command.request} is recorded twice")
        self._requests.add(command.request)
        check(command)
        self.controls = self.controls.after(command)
        if command.name in ("steps", "stop_after"):
            if self.steps < len(self.decisions):
                raise Violation("commands", f"the run is to end after {self.steps} of {len(self.decisions)} steps")
            self.ideal = self._ideal()

    def is_expelled(self, actor: Actor) -> bool:
        return any(command.value == actor.peer for command in self.controls.expelled)

    def is_finite(self, stage: int, pass_id: PassId) -> bool:
        """Whether the peers of `stage` find their reduced gradient finite in this pass."""
        term = self.spoilt.get((stage, pass_id.step), -1)
        if term is not None and term != pass_id.term and not self.is_unusable(pass_id.version):
            return True
        self.found_nonfinite(pass_id)
        return False

    def is_unusable(self, version: int) -> bool:
        """Whether the parameters of this version give non-finite results."""
        diverging = self._world.diverging
        return diverging is not None and diverging.is_so(version, self.controls.rate)

    def is_spoilt(self, version: int) -> bool:
        """Whether parameters and moments of this version are not finite."""
        diverging = self._world.diverging
        return diverging is not None and diverging.shows and self.is_unusable(version)

    def found_nonfinite(self, pass_id: PassId) -> None:
        """A result in this pass is not finite."""
        if self._seen_spoilt.setdefault(pass_id.step, pass_id.term) != pass_id.term:
            self._reproduced.add(pass_id.step)

    # ------------------------------------------------------------ peers

    def began(self, peer: PeerView, begin: Begin) -> None:
        pass_id, kind = begin.pass_id, begin.kind
        if begin.codecs != self._crosses.get(pass_id):
            raise Violation("same answer", f"{peer.label} begins {pass_id} with {begin.codecs}, others with another")
        before = self._passes.get(peer.pid)
        if before is not None and pass_id <= before:
            raise Violation("no zombies", f"{peer.label} begins {pass_id} after {before}")
        self._passes[peer.pid] = pass_id
        if (kind is PassKind.TRAIN) != (pass_id.index == 0):
            raise Violation("contract", f"{peer.label} begins {pass_id} as {kind.value}")
        if peer.held_stage != pass_id.version:
            raise Violation("atomic", f"{peer.label} begins {pass_id} holding version {peer.held_stage}")

    def is_in_pass_of(self, peer: PeerView, other: PeerView) -> bool:
        """Whether both have begun the same pass last."""
        return self._passes.get(peer.pid) == self._passes.get(other.pid)

    def works_on(self, peer: PeerView, pass_id: PassId, what: str) -> None:
        if self._passes.get(peer.pid) != pass_id:
            raise Violation("no zombies", f"{peer.label} orders {what} of {pass_id} in {self._passes.get(peer.pid)}")

    def reduces(self, peer: PeerView, attempt: Attempt) -> None:
        self.works_on(peer, attempt.pass_id, "a reduce")
        before = self._attempts.get(peer.pid)
        if before is not None and attempt < before:
            raise Violation("no zombies", f"{peer.label} works on {attempt} after {before}")
        if attempt.stage != peer.stage:
            raise Violation("contract", f"{peer.label} holds stage {peer.stage} and works on {attempt}")
        self._attempts[peer.pid] = attempt

    def applied(self, peer: PeerView, decision: Decision, sums: dict[int, int]) -> None:
        """`peer` has just applied `decision` with the reduced buckets `sums`."""
        assert peer.stage is not None
        step, stage = decision.step, peer.stage
        if decision not in self._ever_decided:
            raise Violation("atomic", f"{peer.label} applies step {step} (term {decision.term}), never decided")
        if peer.version != step + 1:
            raise Violation("atomic", f"{peer.label} applies step {step} at version {peer.version}")
        if self._world.diverging is not None and self.decisions.get(step) != decision:
            return  # of a rolled-back history, with another rate: it has yet to hear of that
        ideal, states = self.ideal.steps[step], self.ideal.states[step + 1]
        if self._unlike is not None:
            ideal, states = self._unlike.of(decision)
        for bucket, expected in enumerate(ideal.sums[stage]):
            if sums[bucket] != expected:
                share = bucket_share(1, bucket)
                settings = self._world.settings
                times = 2 if bucket < shared_buckets(settings, stage) else 1
                detail = explain_sum(sums[bucket] // share, settings.microbatches, times)
                raise Violation("exactly once", f"{peer.label} applies step {step} with bucket {bucket}: {detail}")
        self._holds(peer, states)

    def holds(self, peer: PeerView) -> None:
        """`peer` has a state: equal at equal versions means equal to the ideal one."""
        assert peer.version is not None
        self._holds(peer, self.ideal.states[peer.version])

    def _holds(self, peer: PeerView, states: tuple[int, ...]) -> None:
        assert peer.stage is not None
        if peer.state != states[peer.stage] and not peer.deceived:
            raise Violation("replicas agree", f"{peer.label} holds a wrong state of version {peer.version}")

    # ------------------------------------------------------------ leaving

    @property
    def _orderly(self) -> bool:
        """Whether leaving must cost nothing: there is time for it, and nothing else happens."""
        world = self._world
        return not self.disturbed and world.network.weather is None and world.settings.leave_s >= ENOUGH_TO_LEAVE_S

    def accumulates(self, peer: PeerView, pass_id: PassId, microbatch: int) -> None:
        assert peer.stage is not None
        self._accumulated[pass_id, peer.stage, microbatch] += 1

    def leaves(self, peer: PeerView) -> None:
        """`peer`, which was asked to leave, is gone."""
        if self._orderly and peer.actor not in self._dismissed and peer.version is not None:
            raise Violation("orderly leave", f"{peer.label} was not let go in {self._world.settings.leave_s:g} s")

    def _dismisses(self, actor: Actor) -> None:
        """Nothing may depend on `actor`: others hold its stage, it can be made anew, or no peer could take it up."""
        self._dismissed.add(actor)
        world, needed = self._world, len(self.decisions)
        leaver = world.by_actor.get(actor)
        staying = [p for p in world.alive() if p.role not in ("coordinator", "process") and not p.leaving]
        stage = leaver.stage if leaver is not None else None
        if not self._orderly or stage is None or needed in (0, self.archived):
            return
        held = {p.stage for p in staying if p.version in (needed, needed - 1)}
        if stage in held:
            return
        counts = Counter(p.stage for p in staying)
        spare = sum(count if where is None else count - 1 for where, count in counts.items())
        bereft = set(range(world.settings.stages)) - held - {stage}
        if counts[stage] or spare > len(bereft):  # another stage without holders may need the spare peers
            raise Violation("orderly leave", f"{actor} is let go with the only copy of stage {stage}")

    def _check_leaves(self, decision: Decision) -> None:
        """Nothing of a decided step was accumulated twice."""
        if not self._orderly or self._world.settings.averages_compressed:
            return
        for (pass_id, stage, m), times in self._accumulated.items():
            if pass_id == PassId(decision.term, decision.step) and times > 1:
                raise Violation("orderly leave", f"{pass_id} s{stage}: microbatch {m} was accumulated {times} times")

    # ------------------------------------------------------------ coordinator

    def coordinator_stops(self, stop: Stop) -> None:
        """The coordinator ends the run: only because it is done."""
        if stop.reason.startswith(GOODBYE):
            return  # it was asked to, and comes back
        if stop.failed:
            self.gives_up("the coordinator", stop.reason)
        elif len(self.decisions) != self.steps:
            raise Violation("progress", f"the coordinator stops after {len(self.decisions)} steps: {stop.reason}")

    def gives_up(self, who: str, reason: str) -> None:
        """A process ends as failed: the only valid reason is that the run has diverged."""
        if not (reason.startswith(DIVERGED) and self._may_end_diverged()):
            raise Violation("progress", f"{who} gives up after {len(self.decisions)} steps: {reason}")
        self.diverged = True

    def _may_end_diverged(self) -> bool:
        """Whether the run diverges, goes back no more, and the remaining decisions led to a finite checkpoint."""
        section, retreats = self._world.settings.divergence, self.controls.retreats
        tried = section.action == "stop" or retreats == section.times
        return self._world.diverging is not None and tried and not self.is_unusable(len(self.decisions))

    def writes(self, decision: Decision) -> None:
        """The coordinator is about to make `decision` durable."""
        step = decision.step
        if step in self.decisions:
            raise Violation("atomic", f"step {step} is decided again without a rollback (term {decision.term})")
        if step > 0 and step - 1 not in self.decisions:
            raise Violation("atomic", f"step {step} is decided before step {step - 1}")
        if step >= self.steps:
            raise Violation("commands", f"step {step} is decided, and the run ends after {self.steps}")
        if decision.rate != self._rate_of.get(PassId(decision.term, step)):
            opened = self._rate_of.get(PassId(decision.term, step))
            raise Violation("commands", f"step {step} is decided with rate {decision.rate}, and opened under {opened}")
        if decision.rate != self._rates.get(step, 1.0):
            self._rates[step] = decision.rate
            self.ideal = self._ideal()
        boundaries = self._world.settings.stages - 1 if self._world.visits is not None else 0
        if len(decision.key_frames) != boundaries:
            raise Violation("same answer", f"step {step} is decided with key frames of {len(decision.key_frames)} cuts")
        if boundaries:
            self._key_frames[step] = decision.key_frames
        if self._world.settings.averages_compressed:
            self._check_contributions(decision)
            self._contributions[step] = tuple(outcome.contributions for outcome in decision.outcomes)
        if boundaries or self._contributions:
            self.ideal = self._ideal()
        if decision.codecs != self._crosses.get(PassId(decision.term, step)):
            raise Violation("same answer", f"step {step} is decided with {decision.codecs}, and crossed with others")
        if self._world.choosing:
            self._codecs[step] = decision.codecs
            self.ideal = self._ideal()
        if self._unlike is not None:
            if wrong := self._unlike.decide(decision):
                raise Violation("exactly once", wrong)
            self.ideal = self._unlike.ideal
        ideal = self.ideal.steps[step]
        for stage, outcome in enumerate(decision.outcomes):
            if outcome.digest != ideal.digests[stage]:
                raise Violation("exactly once", f"step {step} is decided with wrong bytes of stage {stage}")
        if len(decision.outcomes) != len(ideal.digests):
            raise Violation("atomic", f"step {step} is decided with {len(decision.outcomes)} stages")
        if decision.skip and step not in self._reproduced:
            raise Violation("same answer", f"step {step} is skipped, but its gradient is finite when computed again")
        if not decision.skip and decision.scale != ideal.scale:
            raise Violation("same answer", f"step {step} has scale {decision.scale!r}, ideal {ideal.scale!r}")
        if decision.loss_sum != ideal.loss_sum or decision.tokens != self._world.settings.tokens_per_step:
            raise Violation("same answer", f"step {step} has loss sum {decision.loss_sum!r}, ideal {ideal.loss_sum!r}")

    def _check_contributions(self, decision: Decision) -> None:
        """The record must name the contributor of every microbatch, and the residuals that counted."""
        pass_id = PassId(decision.term, decision.step)
        tables = [self._tables[pass_id, stage] for stage in range(len(decision.outcomes))]
        before, rosters = self._rosters.get(decision.step - 1, (None, ()))
        goes_on = before is not None and before.term == decision.term and not before.skip
        for stage, (outcome, table) in enumerate(zip(decision.outcomes, tables, strict=True)):
            expected = []
            for place, actor in enumerate(table.roster):
                bits = sum(1 << m for m, who in enumerate(table.assignment) if who == place)
                carried = rosters[stage].index(actor) if goes_on and actor in rosters[stage] else -1
                expected.append(Contribution(bits, -1 if str(actor) in self._absent[decision.step - 1] else carried))
            if outcome.contributions != tuple(expected):
                raise Violation(
                    "same answer", f"step {decision.step} s{stage}: {outcome.contributions}, expected {expected}"
                )
        self._rosters[decision.step] = decision, tuple(table.roster for table in tables)
        self._absent[decision.step].clear()

    def decided(self, decision: Decision) -> None:
        """`decision` is durable."""
        self._check_leaves(decision)
        self.decisions[decision.step] = decision
        self._ever_decided.add(decision)
        if self._soundness.skipped >= self._world.settings.divergence.skips:
            raise Violation("progress", f"step {decision.step} comes after {self._soundness.skipped} that were skipped")
        self._soundness = self._soundness.after(decision)
        if decision.skip != (decision.step in self._skipped):
            self._skipped ^= {decision.step}
            self.ideal = self._ideal()

    # ------------------------------------------------------------ a group of coordinators

    def leads(self, member: Actor, ballot: int) -> None:
        if self._leaders.setdefault(ballot, member) != member:
            raise Violation("one record", f"{member} and {self._leaders[ballot]} lead under ballot {ballot}")

    def votes(self, member: Actor, ballot: int, candidate: Actor) -> None:
        if self._votes.setdefault((member, ballot), candidate) != candidate:
            raise Violation("one record", f"{member} votes for {candidate} too under ballot {ballot}")

    def stands(self, index: int, entry: Entry) -> None:
        """A member has entry `index` (counted from 0) on its disk as committed."""
        if index < len(self.standing):
            if self.standing[index] != entry:
                raise Violation("one record", f"{entry} stands where {self.standing[index]} stood")
            return
        if index > len(self.standing):
            raise Violation("one record", f"entry {index} stands, and {len(self.standing)} before it")
        self.standing.append(entry)
        match entry:
            case TermEntry(ballot=ballot, term=term, rollback_to=rollback_to):
                if term <= max(self._terms, default=0):
                    raise Violation("no zombies", f"term {term} is taken after {max(self._terms)}")
                self._terms[term] = self._leaders[ballot]
                if rollback_to is not None:
                    self.archived = min(self.archived, rollback_to)
                    self.rolled_back(rollback_to)
            case DecisionEntry(ballot=ballot, decision=decision):
                if self._terms.get(decision.term) != self._leaders[ballot]:
                    raise Violation("one record", f"step {decision.step} is decided under {decision.term}, not its own")
                self.writes(decision)
                self.decided(decision)
            case ArchivedEntry(version=version):
                stages, archives = range(self._world.settings.stages), self._world.archives
                held = sum(all((stage, version) in archive for stage in stages) for archive in archives)
                if 2 * held <= len(archives):
                    raise Violation("bounded loss", f"checkpoint {version} counts, and {held} coordinators hold it")
            case CommandEntry(command=command):
                self.commanded(command)

    def coordinator_sends(self, sender: Actor, to: Actor, message: Message) -> None:
        orders = Assign | Open | Amend | Release | Fenced | Decide | Dismiss | TakeSeats | LeaveSeat | Excuse | Halt
        if self._terms and isinstance(message, orders):
            term = term_of(message)
            if self._terms.get(term) != sender:
                raise Violation("one record", f"{sender} speaks under term {term}, which is not its own")
        if isinstance(message, Dismiss):
            self._dismisses(to)
        elif isinstance(message, Open):
            pass_id = message.pass_id
            replaced = self._terms and pass_id.term < max(self._terms)  # it does not know this yet
            if message.kind is PassKind.TRAIN and pass_id.step in self.decisions and not replaced:
                raise Violation("atomic", f"step {pass_id.step} is opened again after its decision")
            if pass_id not in self._rate_of:
                self._rate_of[pass_id] = self.controls.rate
                if not replaced:
                    self._obeys(message)
            for stage, table in enumerate(message.tables):
                if table != UNTOLD:
                    self._table(pass_id, stage, table)
            self._opens(message)
        elif isinstance(message, Amend):
            self._table(message.pass_id, message.stage, message.table)

    def _obeys(self, message: Open) -> None:
        """The commands must allow a pass that opens."""
        pass_id = message.pass_id
        if self.controls.paused is not None:
            raise Violation("commands", f"{pass_id} opens while the run is paused")
        if message.kind is PassKind.TRAIN and pass_id.step >= self.steps:
            raise Violation("commands", f"{pass_id} opens, and the run ends after {self.steps} steps")
        void = [a for table in message.tables for a in table.roster if self.is_expelled(a)]
        if void:
            raise Violation("commands", f"{void[0]} is expelled, and has a part in {pass_id}")

    def _opens(self, message: Open) -> None:
        """All openings of a pass, to any actor, must name the same codecs."""
        if len(message.codecs) != (self._world.settings.stages - 1 if self._world.choosing else 0):
            raise Violation("same answer", f"{message.pass_id} opens with codecs of {len(message.codecs)} boundaries")
        if self._crosses.setdefault(message.pass_id, message.codecs) != message.codecs:
            raise Violation("same answer", f"{message.pass_id} opens with two different choices of codecs")

    def emitted(self, event: Any) -> None:
        """An event of the coordinator's log."""
        if isinstance(event, RolledBack):
            self._goes_back = event.reason
        if isinstance(event, ControlGiven) and event.number > self.controls.count:
            raise Violation("commands", f"number {event.number} is in force, and not in the record")
        if isinstance(event, StepDecided):
            self._absent[event.step].update(event.without)
        if isinstance(event, PeerFenced):
            for (pass_id, _), table in self._tables.items():
                if str(pass_id) == event.pass_id:
                    self._fenced[pass_id].update(actor for actor in table.roster if str(actor) == event.actor)

    def moves_peer(self, event: PeerMoved, core: CoordinatorCore) -> None:
        """A peer is told to move: between passes, one at a time, and never one that its stage cannot do without."""
        self.moves += 1
        served = (
            core.open_pass.pass_state.actors if core.open_pass is not None else []
        )  # that pass may just have opened
        if any(str(actor) == event.actor for actor in served):
            raise Violation("no zombies", f"{event.actor} is to move, and has a part in the open pass")
        version, decision = core.history.version, core.history.decision
        crew = [m for m in core.members.of_stage(event.source) if str(m.actor) != event.actor and m.lost_at is None]
        everybody = [m for m in core.members if m.lost_at is None]
        mine = next(m for m in everybody if str(m.actor) == event.actor)
        if not any(m.version == version or m.can_apply(decision) for m in crew) and self._held_last(event):
            raise Violation("bounded loss", f"{event.actor} leaves stage {event.source} with no copy of {version}")
        if not crew:
            raise Violation("progress", f"{event.actor} leaves stage {event.source} without a peer")
        if event.gain == 0.0:
            return  # recruited for a stage without a peer
        for member in everybody:
            under_way = member.move_number > 0 and not member.has_worked and not member.given_up
            if member is not mine and under_way and self._world.now - member.placed_at < 4.0:
                raise Violation("progress", f"{event.actor} is to move while {member.actor} is under way")

    def _held_last(self, event: PeerMoved) -> bool:
        """Whether the moving peer has the current version of the stage it leaves, or can apply the decision."""
        needed = len(self.decisions)
        return any(
            str(process.actor) == event.actor and process.version in (needed, needed - 1)
            for process in self._world.alive()
            if process is not self._world.coordinator
        )

    def closed(self, pass_id: PassId, kind: PassKind, loss_sum: float, token: int) -> None:
        """A forward-only pass is complete: its result is a function of the version, and of its codecs."""
        count = self._world.settings.evaluate_microbatches if kind is PassKind.EVALUATE else 1
        inputs = [tokens_payload(pass_id.index, pass_id.step, m) for m in range(count)]
        chosen = self._crosses.get(pass_id, ())
        outputs = [self.ideal.output(pass_id.version, payload, chosen) for payload in inputs]
        if kind is PassKind.EVALUATE and loss_sum != sum(map(loss_of, outputs)):
            raise Violation("same answer", f"evaluation {pass_id} gives {loss_sum}, ideal {sum(map(loss_of, outputs))}")
        if kind is PassKind.GENERATE and token != token_of(outputs[0]):
            raise Violation("same answer", f"generation {pass_id} gives token {token}, ideal {token_of(outputs[0])}")

    def at_the_end(self, peers: Sequence[PeerView]) -> None:
        """The run is done: every decided step is applied everywhere, and the answer is the ideal one."""
        steps = self.steps
        if self.archived < self.controls.checkpoint:
            raise Violation("commands", f"checkpoint {self.controls.checkpoint} is wanted, archived {self.archived}")
        for step in range(steps):
            if step not in self.decisions:
                raise Violation("progress", f"the run ended without a decision of step {step}")
        for stage in range(self._world.settings.stages):
            held = any(peer.stage == stage and peer.version == steps for peer in peers)
            ideal = self.ideal.states[steps][stage]
            archives = [archive.get((stage, steps)) for archive in self._world.archives]
            archived = 2 * archives.count(ideal) > len(archives)
            if not held and not archived:  # the last holder may have died since
                raise Violation("atomic", f"the run ended, but version {steps} of stage {stage} is lost")
        if self._world.network.weather is None:
            settled = self._world.now - self._world.settings.step_budget_s
            for peer in peers:
                if peer.stage is not None and peer.disturbed_at < settled and peer.version != steps:
                    raise Violation("atomic", f"the run ended, but {peer.label}, always well, lacks the last decision")

    def _table(self, pass_id: PassId, stage: int, table: StageTable) -> None:
        key = (pass_id, stage)
        known = self._tables.get(key)
        if known is table:
            return
        if known is not None and table.number < known.number:
            raise Violation("no zombies", f"{pass_id} s{stage}: table {table.number} is sent after {known.number}")
        if known is not None and table.number == known.number and table != known:
            raise Violation("no zombies", f"{pass_id} s{stage}: two different tables of number {table.number}")
        if not table.roster or len(set(table.roster)) != len(table.roster):
            raise Violation("contract", f"{pass_id} s{stage}: roster {table.roster}")
        if any(not 0 <= who < len(table.roster) for who in table.assignment):
            raise Violation("exactly once", f"{pass_id} s{stage}: a microbatch is assigned to no peer")
        void = self._fenced[pass_id].intersection(table.roster)
        if void:
            raise Violation("no zombies", f"{pass_id} s{stage}: fenced {min(void)} is in table {table.number}")
        self._tables[key] = table

    def takes_term(self, before: int, write: WriteTerm) -> None:
        """The coordinator is about to make a term durable, perhaps with a rollback."""
        if write.term <= before:
            raise Violation("no zombies", f"term {write.term} is taken after term {before}")
        version = write.rollback_to
        if version is None:
            return
        if self._goes_back.startswith(DIVERGED):
            self._check_retreat(version)
            return
        if version < self.archived:
            raise Violation("bounded loss", f"rolls back to {version}, but checkpoint {self.archived} is complete")
        if version > self.archived:
            raise Violation("bounded loss", f"rolls back to {version}, newest complete checkpoint is {self.archived}")
        world = self._world
        settled = world.now - world.settings.recruit_after_s - world.settings.step_budget_s
        needed = len(self.decisions)
        for stage in range(world.settings.stages):
            if not any(
                process.stage == stage and process.disturbed_at < settled and process.can_hold(needed)
                for process in world.alive()
                if process.role != "coordinator"
            ):
                return
        raise Violation("bounded loss", f"rolls back to {version} though every stage has a healthy replica")

    def _check_retreat(self, version: int) -> None:
        """The run has diverged and goes back: to the newest sound checkpoint, which must be in the archive."""
        if self._world.diverging is None:
            raise Violation("progress", f"goes back to {version}, and nothing has diverged: {self._goes_back}")
        stages = range(self._world.settings.stages)
        held = [archive for archive in self._world.archives if all((stage, version) in archive for stage in stages)]
        if version and 2 * len(held) <= len(self._world.archives):
            raise Violation("bounded loss", f"goes back to {version}, which is not in the archive any more")
        if version > self._soundness.proven:
            raise Violation("bounded loss", f"goes back to {version}, good is {self._soundness.proven}")
        best = max((stored for stored in self.stored if stored <= self._soundness.proven), default=0)
        if version < best:
            raise Violation("bounded loss", f"goes back to {version}, though checkpoint {best} is good")

    def rolled_back(self, version: int) -> None:
        """The rollback is durable: the decisions after its version do not stand any more."""
        self.rollbacks += 1
        self._soundness = self._soundness.rolled_back(version)
        self.stored = {stored for stored in self.stored if stored <= version}
        for step in [step for step in self.decisions if step >= version]:
            del self.decisions[step]
        self._contributions = {step: found for step, found in self._contributions.items() if step < version}


def reduced_digest(stage: int, sums: dict[int, int]) -> str:
    return digest_of(stage, tuple(sums[bucket] for bucket in sorted(sums)))
