"""Stops this coordinator's process on request. The run continues when a coordinator starts again."""

from __future__ import annotations

from swarm.events import RunPaused
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.io import Stop
from swarm.protocol.messages import Decide
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings


class Stopping:
    """`request` asks the process to stop; `attend` stops it as soon as no pass is open."""

    def __init__(self, settings: Settings, history: History, members: Members, out: Outbox) -> None:
        self._settings = settings
        self._history = history
        self._members = members
        self._out = out
        self._asked: tuple[str, float] | None = None
        """(reason, deadline) while this process is stopping: it opens no further pass."""
        self.is_done = False
        """True once the process was ordered to stop."""
        self._reason = ""

    @property
    def begun(self) -> bool:
        """True once a request waits for the end of the open pass."""
        return self._asked is not None

    def deadlines(self) -> list[float]:
        return [] if self._asked is None else [self._asked[1]]

    def request(self, reason: str, phase: Phase, now: float) -> None:
        """Stop when the open pass is over. After a second request, or after `leave_s`, stop at once: the pass will be
        run again.
        """
        if self._asked is None and phase.has_pass:
            leave_s = self._settings.leave_s
            self._asked = (reason, now + leave_s)
            self._out.emit(RunPaused(f"{reason}: stops when the open pass is over, after at most {leave_s:g} s"))
        else:
            self._stop(reason, phase)

    def attend(self, phase: Phase, now: float) -> None:
        """Stop if a request waits and no pass is open any more, or the deadline has passed."""
        if self._asked is None:
            return
        reason, until = self._asked
        if now >= until or not phase.has_pass:
            self._stop(reason, phase)

    def in_words(self) -> tuple[str, str] | None:
        """The state and the reason for it, as in StateChanged. None: the process does not stop."""
        if self._asked is not None:
            return "stopping", self._asked[0]
        return ("stopping", self._reason) if self.is_done else None

    def _stop(self, reason: str, phase: Phase) -> None:
        """Stop. Recorded decisions stand and everything else is repeated, so nothing needs to be cleaned up."""
        history = self._history
        if phase is Phase.BETWEEN and history.decision is not None:
            for member in self._members:
                self._out.send(member.actor, Decide(history.decision, history.term))
        if phase is not Phase.FINISHED:
            lost = "; the open pass will be run again" if phase.has_pass else ""
            end = history.end(self._settings)
            reason += f": {history.version} of {end} steps are decided{lost}. Peers keep their state"
        self.is_done = True
        self._reason = reason
        self._out.add(Stop(reason))
