"""Whether a coordinator's known process is still at work when another process with the same key wants its place.

The other process may be a copy that knows nothing of what was decided since. So the known process keeps its place while
it answers a ping. If it does not answer within ANSWER_S, for example because its machine is suspended, it loses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

ANSWER_S = 5.0


class Incumbents:
    """`last_heard(peer id)`: when the coordinator's last message came; None if its control channel is not open.
    `ping(peer id)`: makes it send a message. `clock`: seconds.
    """

    def __init__(
        self, last_heard: Callable[[str], float | None], ping: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._last_heard = last_heard
        self._ping = ping
        self._clock = clock
        self._asked_at: dict[str, float] = {}

    def at_work(self, coordinator: str) -> bool | None:
        """Whether the known process keeps its place; None: not known yet. Call it each time when another process asks
        for the place.
        """
        heard = self._last_heard(coordinator)
        if heard is None:
            self._asked_at.pop(coordinator, None)
            return False
        now = self._clock()
        asked = self._asked_at.get(coordinator, -math.inf)
        known = now - asked < 2 * ANSWER_S  # an older answer says nothing about now
        if known and heard <= asked:
            return None if now - asked < ANSWER_S else False
        self._asked_at[coordinator] = now
        self._ping(coordinator)
        return True if known else None
