"""The way in: a peer's libp2p host, entered by the organiser's addresses.

Who comes for the first time is told at once when nobody is reached there: the address may be wrong. One who is reached
and does not answer is busy, as when many come at once: that is waited for a minute. Who has been here before waits in
both cases as long as it would wait for a coordinator that goes away while it runs: after a power cut a volunteer's
machine is often up again before the organiser's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from peers.run.home import OpenHome
from peers.stage.patience import CoordinatorGone, Patience
from swarm.events import Event
from swarm.net.host import Host, NobodyAnswers, Unresponsive
from swarm.net.run_key import RunKey

_PAUSE_S = 1.0
_BUSY_S = 60.0
"""Seconds for which a new peer asks again at an address that is reached but does not answer."""


async def enter(
    home: OpenHome,
    listen: Sequence[str],
    entries: Sequence[str],
    announce: Sequence[str],
    key: RunKey | None,
    patience_s: float,
    tell: Callable[[Event], object],
) -> Host:
    """Start the host, with the run's key. Raises what `Host.create` raises; CoordinatorGone when patience is over."""
    patience = Patience(patience_s if home.returns else min(patience_s, _BUSY_S))
    waits = home.returns
    loop = asyncio.get_running_loop()
    while True:
        try:
            host = await Host.create(home.identity, listen, entries, announce=announce or None, key=key)
        except NobodyAnswers as error:
            waits = waits or isinstance(error, Unresponsive)  # who was reached once is too busy for a connection later
            if not waits:
                raise
            away = patience.look(str(error), loop.time())
            if away is not None:
                tell(away)
            if patience.exhausted:
                if not home.returns:
                    raise  # it was never in the run: what is known is the address, and what is wrong with it
                raise CoordinatorGone(patience.last_words()) from None
            await asyncio.sleep(_PAUSE_S)
        else:
            back = patience.look(None, loop.time())
            if back is not None:
                tell(back)
            return host
