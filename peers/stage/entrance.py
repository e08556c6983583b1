"""Starts a peer's libp2p host and connects it to the run through the organiser's addresses.

If a new peer reaches nobody, it fails at once, because the address may be wrong. If it reaches a host that does not
answer, that host is busy, for example because many peers join at once: the peer tries again for a minute. A peer that
was in the run before waits in both cases, as long as it would wait for a coordinator that disappears during the run:
after a power cut, a volunteer's machine often starts before the organiser's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from peers.run.home import OpenHome
from peers.stage.patience import CoordinatorGone, HeardFinished, Patience
from swarm.events import Event
from swarm.net.host import Host, NobodyAnswers, Unresponsive
from swarm.net.run_key import RunKey

_PAUSE_S = 1.0
_BUSY_S = 60.0
"""Seconds for which a new peer tries an address again whose host is reached but does not answer."""


async def enter(
    home: OpenHome,
    listen: Sequence[str],
    entries: Sequence[str],
    announce: Sequence[str],
    key: RunKey | None,
    patience_s: float,
    tell: Callable[[Event], object],
    finished: Callable[[], bool] = lambda: False,
) -> Host:
    """Start the host, with the run's key. Raises what `Host.create` raises, CoordinatorGone when the patience is over,
    and HeardFinished if nobody answers and `finished` says that the run is finished.
    """
    patience = Patience(patience_s if home.returns else min(patience_s, _BUSY_S), finished)
    waits = home.returns
    loop = asyncio.get_running_loop()
    while True:
        try:
            host = await Host.create(home.identity, listen, entries, announce=announce or None, key=key)
        except NobodyAnswers as error:
            waits = waits or isinstance(error, Unresponsive)  # reached once: too busy later
            if not waits:
                raise
            away = patience.look(str(error), loop.time())
            if patience.over:
                raise HeardFinished from None
            if away is not None:
                tell(away)
            if patience.exhausted:
                if not home.returns:
                    raise  # this peer was never in the run: report the address and what is wrong with it
                raise CoordinatorGone(patience.last_words()) from None
            await asyncio.sleep(_PAUSE_S)
        else:
            back = patience.look(None, loop.time())
            if back is not None:
                tell(back)
            return host
