"""The frames that a peer wants in a pass: what it lacks, who has it, and when to ask again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swarm.events import FrameRecovered
from swarm.protocol.ids import Actor, Direction, FrameKey, Key, Microbatch, PassKind, StageIndex
from swarm.protocol.lineage import Crossings
from swarm.protocol.messages import Open, StageTable, Want
from swarm.protocol.peer.detours import Detours
from swarm.protocol.peer.in_flight import InFlight
from swarm.protocol.peer.microbatch_work import MicrobatchWork, WorkPhase
from swarm.protocol.peer.pass_context import PassContext


class FrameWants:
    """The wants of one pass. The caller keeps `work`, by microbatch, and `tables`, by stage, up to date."""

    def __init__(
        self,
        context: PassContext,
        stage: StageIndex,
        opening: Open,
        tables: Sequence[StageTable],
        work: Mapping[Microbatch, MicrobatchWork],
        crossings: Crossings,
        detours: Detours,
    ) -> None:
        self._coordinator = context.coordinator
        self._out = context.out
        self._in_flight = InFlight(context.waits, context.settings.step_budget_s)
        self._stage = stage
        self._pass_id = opening.pass_id
        self._kind = opening.kind
        self._tables = tables
        self._work = work
        self._crossings = crossings
        self._detours = detours
        self._asked: dict[FrameKey, set[Actor]] = {}
        """The actors that this peer asked for each frame."""

    def input_key(self, m: Microbatch) -> FrameKey:
        return FrameKey(self._pass_id, self._stage, Direction.FORWARD, m)

    def gradient_key(self, m: Microbatch) -> FrameKey:
        return FrameKey(self._pass_id, self._stage + 1, Direction.BACKWARD, m)

    def holder(self, key: FrameKey) -> Actor:
        """The actor that has, or will have, a frame that this peer wants."""
        if key.direction is Direction.BACKWARD:
            return self._tables[self._stage + 1].assignee(key.microbatch)
        return self._coordinator if self._stage == 0 else self._tables[self._stage - 1].assignee(key.microbatch)

    def may_come_from(self, sender: Actor, key: FrameKey) -> bool:
        """Return True if `sender` has to send this frame: it is the holder, or was it when this peer asked for the
        frame. A frame of anybody else is not used, so that no peer can do, in its own way, what is assigned to others.

        `key`: of a frame that this peer may want.
        """
        return sender == self.holder(key) or sender in self._asked.get(key, ())

    def lacking(self) -> list[FrameKey]:
        """All frames that this peer waits for."""
        keys = []
        for m, work in self._work.items():
            if work.phase is WorkPhase.WANTED:
                keys.append(self.input_key(m))
            if work.phase <= WorkPhase.FORWARDED and self.needs_gradient(work):
                keys.append(self.gradient_key(m))
        return keys

    def needs_gradient(self, work: MicrobatchWork) -> bool:
        """Return True if the gradient of a microbatch is missing and nobody sends it unasked, or it is due."""
        return (
            self._kind is PassKind.TRAIN
            and self._stage + 1 < len(self._tables)
            and work.gradient is None
            and (work.phase is WorkPhase.FORWARDED or (work.ask and work.phase < WorkPhase.FORWARDED))
        )

    def ask_again(self, now: float, *, of: Actor) -> None:
        """WANT every missing frame that `of` has, because the connection to `of` broke or was restored."""
        self.want_again([key for key in self.lacking() if self.holder(key) == of], now)

    def want(self, keys: list[FrameKey], now: float) -> None:
        """WANT frames for the first time, in one message to each holder."""
        for key in keys:
            self._in_flight.note(key, now)
        self._send(keys)

    def want_again(self, keys: list[FrameKey], now: float, *, again: bool = False) -> None:
        """WANT frames that were wanted before. `again`: True if their deadlines have passed."""
        for key in keys:
            self._in_flight.note(key, now)
            work = self._work[key.microbatch]
            work.asked_again = True
            work.late = work.late and again
        self._send(keys, again=again)

    def _send(self, keys: list[FrameKey], *, again: bool = False) -> None:
        wanted: dict[Actor, list[Key]] = {}
        for key in keys:
            holder = self.holder(key)
            wanted.setdefault(holder, []).append(key)
            self._asked.setdefault(key, set()).add(holder)
        for holder, grouped in wanted.items():
            self._out.send(holder, self._message(grouped, again=again))

    def tick(self, now: float) -> None:
        """Ask again for overdue frames; from the second time on, also through another actor."""
        direct: list[FrameKey] = []
        detours: dict[Actor, list[Key]] = {}
        lacking = self.lacking()
        due = self._in_flight.deadlines(lacking)
        for key in lacking:
            if key not in due:
                self._in_flight.note(key, now)
                continue
            if now < due[key]:
                continue
            self._in_flight.missed(key)
            direct.append(key)
            if self._in_flight.in_vain(key) > 1:
                detours.setdefault(self.holder(key), []).append(key)
        self.want_again(direct, now, again=True)
        for holder, keys in detours.items():
            via = self._detours.via(holder)
            if via is not None and holder != self._coordinator:
                self._out.send(holder, self._message(keys), via)

    def _message(self, keys: list[Key], *, again: bool = False) -> Want:
        return Want(tuple(keys), self._crossings.hints(keys), again)

    def next_deadline(self) -> float | None:
        """When the next request is due; None: no frame is missing."""
        return min(self._in_flight.deadlines(self.lacking()).values(), default=None)

    def on_pending(self, sender: Actor, keys: tuple[FrameKey, ...], now: float) -> None:
        """The holder of overdue frames answers that they are not computed yet. So the link to the holder works."""
        lacking = set(self.lacking())
        for key in keys:
            if key in lacking and self.holder(key) == sender and self._in_flight.in_vain(key):
                self._in_flight.pending(key, now)
                work = self._work[key.microbatch]
                work.asked_again = False
                work.late = key.direction is Direction.FORWARD

    def overdue(self, other: Actor) -> bool:
        """Return True if this peer has asked `other` for a frame more than once and got no direct answer."""
        return any(self._in_flight.in_vain(key) > 1 and self.holder(key) == other for key in self.lacking())

    def expect(self, key: FrameKey, now: float) -> None:
        """A frame will come without a request."""
        self._in_flight.expect(key, now)

    def await_gradient(self, m: Microbatch, now: float) -> None:
        """The next stage can compute the gradient of a microbatch from now on, and sends it without a request."""
        self._in_flight.note(self.gradient_key(m), now)

    def forget_gradient(self, m: Microbatch) -> None:
        """The gradient of a microbatch is of no use. If it is needed again later, it must be wanted."""
        self._in_flight.forget(self.gradient_key(m))

    def want_gradients(self, now: float) -> None:
        """WANT the gradients that this peer must ask for and has not asked for yet."""
        lacking = [self.gradient_key(m) for m, work in self._work.items() if self.needs_gradient(work)]
        self.want_again([key for key in lacking if key not in self._in_flight], now)

    def arrived(self, key: FrameKey, sender: Actor, now: float) -> None:
        """A frame that this peer waits for has arrived."""
        work = self._work[key.microbatch]
        self._in_flight.arrived(key, now)
        if work.moved or work.asked_again:
            work.asked_again = False
            self._out.emit(FrameRecovered(str(key), str(sender)))
