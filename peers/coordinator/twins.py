"""Two machines with one key, as a coordinator notices them: an older process connects after a newer one did."""

from __future__ import annotations

from collections.abc import Callable

from swarm.protocol.ids import Actor

_MOST = 1024
"""Maximum number of remembered older processes, because a stranger can make keys at no cost."""


class Twins:
    """Reports each older process once, at its first refusal, because that process then leaves.

    The newer process may not have joined yet: it has said hello, and its Join is on the way.
    """

    def __init__(self, tell: Callable[[Actor, Actor], None]) -> None:
        """`tell(older, newest)` is called for each older process."""
        self._tell = tell
        self._told: dict[Actor, None] = {}

    def refused(self, older: Actor, newest: Actor) -> None:
        """Handle a refused connection. Set as `Admission.on_stale`."""
        if older in self._told:
            return
        if len(self._told) >= _MOST:
            del self._told[next(iter(self._told))]
        self._told[older] = None
        self._tell(older, newest)
