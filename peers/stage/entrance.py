"""The way in: a peer's libp2p host, entered by the organiser's addresses.

Who comes for the first time is told at once when nobody answers there: the address may be wrong. Who has been here
before waits, as long as it would wait for a coordinator that goes away while it runs: after a power cut a volunteer's
machine is often up again before the organiser's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from peers.home import OpenHome
from peers.stage.patience import CoordinatorGone, Patience
from swarm.events import Event
from swarm.net.host import Host, NobodyAnswers

_PAUSE_S = 1.0


async def enter(
    home: OpenHome,
    listen: Sequence[str],
    entries: Sequence[str],
    announce: Sequence[str],
    patience_s: float,
    tell: Callable[[Event], object],
) -> Host:
    """Start the host. Raises what `Host.create` raises, and CoordinatorGone when the patience is over."""
    patience = Patience(patience_s)
    loop = asyncio.get_running_loop()
    while True:
        try:
            host = await Host.create(home.identity, listen, entries, announce=announce or None)
        except NobodyAnswers as error:
            if not home.returns:
                raise
            away = patience.look(str(error), loop.time())
            if away is not None:
                tell(away)
            if patience.exhausted:
                raise CoordinatorGone(patience.last_words()) from None
            await asyncio.sleep(_PAUSE_S)
        else:
            back = patience.look(None, loop.time())
            if back is not None:
                tell(back)
            return host
