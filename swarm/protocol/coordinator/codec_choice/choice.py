"""Chooses the codecs of each boundary and direction in a run with automatic choice, and updates them between steps.

The coordinator chooses only when it opens a training pass. The Open tells the choice to every peer, so it does not
depend on the actor that sends a frame. The decision records the choice, so that `reference` uses the same codecs. A
peer's false reports about its links can only cause a coarser choice from the ladder, except for the frames of a peer
that sends to nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence

from swarm.events import CodecChosen
from swarm.protocol.codec_ladder import CodecLadders
from swarm.protocol.coordinator.codec_choice.choose import choose
from swarm.protocol.coordinator.codec_choice.link_load import Measured, burdens, pace
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.ids import Actor, Direction
from swarm.protocol.messages import CodecPair, Decision, StageTable
from swarm.protocol.outbox import Outbox

DWELL = 5
"""Number of steps after which a gentler choice may replace the current one. A harder choice may replace it in every
step.
"""
LONGEST_DWELL = 80


class CodecChoice:
    """`current`: the codecs of the last opened training pass, one pair per boundary 1, 2, …. Empty if there is no
    choice.
    """

    def __init__(
        self, ladders: CodecLadders | None, stages: int, last: Decision | None, members: Members, out: Outbox
    ) -> None:
        """`last`: the newest decision on disk. The run continues with its codecs."""
        self._ladders = ladders
        self._members = members
        self._out = out
        self.current: tuple[CodecPair, ...] = () if ladders is None else (ladders.start,) * (stages - 1)
        self._origin = "the start, until the links are measured"
        if ladders is not None and last is not None and len(last.codecs) == stages - 1 and ladders.has(last.codecs):
            self.current = last.codecs
            self._origin = f"continues with the codecs of step {last.step + 1}"
        self._since: int | None = None
        """The first step of the current choice. None until the choice is reported."""
        self._dwell = DWELL
        self._relaxed = False
        """True if the last change was to gentler codecs."""

    def choose(self, tables: Sequence[StageTable], step: int, step_s: float = 0.0) -> tuple[CodecPair, ...]:
        """The codecs for the training pass of `step` with these tables.

        `step_s`: usual seconds of a step; 0: unknown. No stage can compute for longer than a step takes, whatever its
        peers report. Otherwise a peer that reports to be slow could fill the lines of all others with large frames.
        """
        ladders = self._ladders
        if ladders is None or not self.current:
            return self.current
        if self._since is None or step < self._since:
            self._since = step
            self._tell_all(step)
            return self.current
        measured = {actor: self._measured(actor) for table in tables for actor in table.roster}
        seconds = pace(tables, measured, self._person)
        if seconds is None:
            return self.current
        if step_s:
            seconds = min(seconds, step_s / len(tables[0].assignment))
        relax = step - self._since >= self._dwell
        carried = burdens(tables, measured, self._person)
        self.current, changes = choose(ladders, carried, seconds, self.current, relax=relax)
        if changes:
            harder = changes[0].harder  # all changes are harder, or none
            if harder and self._relaxed and not relax:  # the gentler choice failed at once, so do not try it again soon
                self._dwell = min(2 * self._dwell, LONGEST_DWELL)
            self._relaxed = not harder
            self._since = step
        for change in changes:
            boundary, direction = change.slot
            self._out.emit(CodecChosen(step, boundary, direction.value, change.after, change.before, change.reason))
        return self.current

    def _tell_all(self, step: int) -> None:
        for boundary, pair in enumerate(self.current, 1):
            for direction in Direction:
                self._out.emit(CodecChosen(step, boundary, direction.value, pair.of(direction), "", self._origin))

    def _measured(self, actor: Actor) -> Measured:
        member = self._members.get(actor)
        if member is None or member.status is None:
            return Measured()
        return Measured(member.seconds_per_microbatch, member.uplink, member.links)

    def _person(self, actor: Actor) -> str:
        return self._members.people.of(actor.peer)
