"""The end of a run: the coordinator sends all peers home, then stops."""

from __future__ import annotations

from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.io import RUN_FINISHED, Stop
from swarm.protocol.messages import Decide, Halt
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings


class Ending:
    """`begin` ends the run; `tick` repeats the last word and stops the process when no peer is left to hear it."""

    def __init__(self, settings: Settings, members: Members, out: Outbox) -> None:
        self._settings = settings
        self._members = members
        self._out = out
        self._since = 0.0
        self._last_word: Decide | Halt | None = None
        """The message that all peers get once the run is over, until they have disconnected."""

    def begin(self, last_word: Decide | Halt | None, now: float) -> None:
        self._since = now
        self._last_word = last_word
        self._say_last_word()

    def tick(self, now: float) -> None:
        """Call it once a heartbeat after the end."""
        if not len(self._members) or now - self._since > 10 * self._settings.heartbeat_s:
            halted = self._last_word if isinstance(self._last_word, Halt) else None
            self._out.add(Stop(halted.reason, failed=True) if halted else Stop(RUN_FINISHED))
        self._say_last_word()

    def in_words(self) -> tuple[str, str]:
        """The state and the reason for it, as in StateChanged."""
        if isinstance(self._last_word, Halt):
            return "stopping", f"the run cannot continue: {self._last_word.reason}"
        return "finished", "all steps are decided, applied and archived"

    def _say_last_word(self) -> None:
        if self._last_word is not None:
            for member in self._members:
                self._out.send(member.actor, self._last_word)
