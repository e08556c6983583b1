"""A stranger: an admitted actor that takes no part in the run and sends arbitrary messages to everyone for a while.

The handshake admits it, as it admits anyone who has the manifest. Its messages name existing things (the open pass, its
actors, its tables) as often as invented ones, so that only the sender shows that they are false. It never claims to
hold the state that it would need to get work: an actor that does is a replica, not a stranger.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

from swarm.protocol import messages as msg
from swarm.protocol.ids import (
    Actor,
    Attempt,
    Direction,
    FrameKey,
    Key,
    Microbatch,
    PartKey,
    PassId,
    StageIndex,
    StepNumber,
    SumKey,
    Term,
)
from swarm.simulation.kernel.timeline import Process
from swarm.simulation.runs.world import World

_MESSAGES = 40
_NOWHERE = 10**6
"""Greater than every stage, version, microbatch and token of a run."""


class Stranger(Process):
    """Sends messages for `seconds` after its start, then exits. It has no core, and ignores all messages."""

    role = "stranger"
    world: World

    def __init__(self, world: World, seconds: float) -> None:
        super().__init__(world, Actor(f"stranger{len(world.processes)}", 1), None)
        self._gap = max(0.002, seconds / _MESSAGES)
        self._random = Random(world.random.random())
        self._sequence = 0

    def start(self) -> None:
        self.world.at(self.world.now, self, (self._say, _MESSAGES))

    def feed(self, item: Any) -> None:
        """Ignore the input."""

    def _say(self, left: int) -> None:
        world = self.world
        if not left:
            world.crash(self)
            return
        ears = [process for process in world.alive() if process.role != self.role]
        if ears:
            world.network.send(self, self._random.choice(ears).actor, self._nonsense())
        world.at(world.now + self._gap, self, (self._say, left - 1))

    def _nonsense(self) -> msg.Message:
        rng, pass_id = self._random, self._pass_id()
        match rng.randrange(18):
            case 0 | 1 | 2:
                token = rng.choice((-1, 5, _NOWHERE))
                return msg.Result(pass_id, self._microbatch(), rng.choice((0.0, math.nan, 1e9)), token)
            case 3 | 4:
                return msg.Failed(pass_id, rng.choice((None, self._microbatch())), "nonsense")
            case 5 | 6 | 7:
                return self._status(pass_id)
            case 8:
                self._sequence += 1
                capacity = rng.choice((1.0, 0.0, -5.0, math.nan, math.inf))
                return msg.Join(self.actor, self._stage(), capacity, self._sequence)
            case 9:
                keys = tuple(self._key(pass_id) for _ in range(rng.randrange(1, 5)))
                frames = tuple(key for key in keys if isinstance(key, FrameKey))
                return rng.choice((msg.Want(keys), msg.Want(keys, again=True), msg.Pending(frames)))
            case 10 | 11:
                key, payload = self._frame_key(pass_id), rng.randrange(1 << 40)
                return msg.Frame(key, payload, msg.Lineage(payload & 1, payload & 2, bool(payload & 4)))
            case 12:
                return msg.ReducePart(self._part_key(pass_id), rng.randrange(1 << 6), rng.randrange(1 << 40))
            case 13:
                sums = SumKey(self._attempt(pass_id), rng.randrange(-1, 4))
                return msg.ReducedPart(sums, rng.randrange(1 << 40))
            case 14:
                return msg.Released(pass_id, rng.randrange(-1, 3), (self._microbatch(), self._microbatch()))
            case 15:
                return msg.Unreachable(pass_id, self._actor())
            case 16:
                return self._prepared(pass_id)
            case _:
                orders: tuple[msg.Message, ...] = (
                    msg.Halt("nonsense", Term(_NOWHERE)),
                    msg.Fenced(pass_id, "nonsense"),
                    msg.TakeSeats(Term(_NOWHERE), 9, "nonsense"),
                    msg.LeaveSeat(Term(_NOWHERE), "nonsense"),
                    msg.Assign(Term(_NOWHERE), StageIndex(0), 0),
                    msg.Relay(self._actor(), self._actor(), msg.Want((self._key(pass_id),))),
                )
                return rng.choice(orders)

    def _status(self, pass_id: PassId) -> msg.Status:
        rng, settings = self._random, self.world.settings
        self._sequence += 1
        return msg.Status(
            actor=self.actor,
            stage=self._stage(),
            version=rng.choice((None, -1, _NOWHERE)),
            pass_id=pass_id,
            numbers=(0,) * settings.stages,
            done=rng.randrange(1 << 6),
            prepared=self._prepared(pass_id),
            seconds_per_microbatch=rng.choice((None, 0.02, -1.0, math.nan, math.inf, 1e-320)),
            queued=rng.randrange(-1, 3),
            fenced=rng.random() < 0.3,
            checkpoint_version=rng.randrange(-1, settings.steps + 2),
            checkpoint_digest="nonsense",
            sequence=self._sequence,
            state_term=rng.choice((0, 1, _NOWHERE)),
            term=rng.choice((0, 1, _NOWHERE)),
            heard=rng.choice((None, pass_id)),
            loading=rng.choice((None, -1, 0, 1, _NOWHERE)),
            lacks=rng.choice((None, -1, 0, 1, _NOWHERE)),
            fetched=rng.choice((0, self._sequence)),
        )

    def _prepared(self, pass_id: PassId) -> msg.Prepared:
        norm = self._random.choice((1.0, -1.0, math.nan))
        return msg.Prepared(self._attempt(pass_id), "nonsense", norm, 1.0, self._random.random() < 0.7)

    # ------------------------------------------------------------ names, true and invented

    def _pass_id(self) -> PassId:
        """The id of the open pass, of a possible later pass, or of no pass."""
        coordinator, rng = self.world.coordinator, self._random
        core = coordinator.core if coordinator is not None else None
        known = PassId(Term(1), StepNumber(0))
        if core is not None and core.open_pass is not None:
            known = core.open_pass.pass_state.pass_id
        if rng.random() < 0.7:
            return known
        later = StepNumber(known.step + rng.randrange(-1, 3))
        return PassId(Term(known.term + rng.choice((-1, 0, 1, _NOWHERE))), later, rng.randrange(3))

    def _microbatch(self) -> Microbatch:
        return Microbatch(self._random.choice((-1, _NOWHERE, *range(self.world.settings.microbatches))))

    def _stage(self) -> StageIndex:
        return StageIndex(self._random.choice((-1, _NOWHERE, *range(self.world.settings.stages))))

    def _actor(self) -> Actor:
        return self._random.choice((Actor("nobody", 1), *self.world.by_actor))

    def _attempt(self, pass_id: PassId) -> Attempt:
        return Attempt(pass_id, self._stage(), self._random.randrange(-1, 3))

    def _frame_key(self, pass_id: PassId) -> FrameKey:
        boundary = self._random.randrange(-1, self.world.settings.stages + 2)
        return FrameKey(pass_id, boundary, self._random.choice(tuple(Direction)), self._microbatch())

    def _part_key(self, pass_id: PassId) -> PartKey:
        contributor = self._random.choice((self.actor, self._actor()))
        return PartKey(self._attempt(pass_id), self._random.randrange(-1, 4), contributor)

    def _key(self, pass_id: PassId) -> Key:
        sums = SumKey(self._attempt(pass_id), self._random.randrange(-1, 4))
        return self._random.choice((self._frame_key(pass_id), self._part_key(pass_id), sums))
