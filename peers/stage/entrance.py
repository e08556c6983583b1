"""Starts a peer's libp2p host and connects it to the run through the organiser's addresses.

If a new peer reaches nobody, it fails at once, because the address may be wrong. If it reaches a host that does not
answer, that host is busy, for example because many peers join at once: the peer tries again for a minute. A peer that
was in the run before waits in both cases, as long as it would wait for a coordinator that disappears during the run:
after a power cut, a volunteer's machine often starts before the organiser's. It also tries the members that it knew:
through their DHT, it finds a coordinator that has moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from peers.run.home import OpenHome
from peers.runtime.notebook import addresses_in
from peers.stage.patience import CoordinatorGone, Patience
from swarm.events import Event, StillDialling
from swarm.net.host import Host, NobodyAnswers, Unresponsive
from swarm.net.run_key import RunKey

_BUSY_S = 60.0
"""Seconds for which a new peer tries an address again whose host is reached but does not answer."""
QUIET_S = 4.0
"""Seconds for which a peer dials without a word. A firewall that drops packets makes the attempt last half a minute."""


async def enter(
    home: OpenHome,
    listen: Sequence[str],
    entries: Sequence[str],
    announce: Sequence[str],
    key: RunKey | None,
    patience: Patience,
    tell: Callable[[Event], object],
) -> Host:
    """Start the host, with the run's key, and enter the DHT at one of `entries`, or else at a member that this home
    knew. Raises what `Host.create` raises, CoordinatorGone when the patience is over, and HeardFinished if nobody
    answers and the run is finished.
    """
    waits = home.returns
    members = addresses_in(home.neighbours) if home.returns else ()
    also: Sequence[str] = ()
    while True:
        try:
            starting = Host.create(home.identity, listen, (*entries, *also), announce=announce or None, key=key)
            host = await _started(starting, entries, tell)
        except NobodyAnswers as error:
            waits = waits or isinstance(error, Unresponsive)  # reached once: too busy later
            if not waits:
                raise
            try:
                await patience.wait(str(error), tell)
            except CoordinatorGone:
                if not home.returns:
                    raise error from None  # it was never in the run: report the address and what is wrong with it
                raise
            also = members
        else:
            back = patience.look(None, asyncio.get_running_loop().time())
            if back is not None:
                tell(back)
            return host


async def _started(
    starting: Coroutine[Any, Any, Host], entries: Sequence[str], tell: Callable[[Event], object]
) -> Host:
    """The host, once it has started. If this takes long, say so."""
    attempt = asyncio.ensure_future(starting)
    try:
        done, _ = await asyncio.wait([attempt], timeout=QUIET_S)
        if not done:
            tell(StillDialling(list(entries)))
        return await attempt
    except BaseException:
        attempt.cancel()
        await asyncio.gather(attempt, return_exceptions=True)  # also if it failed just then: nobody else asks for it
        raise


def patience_of(home: OpenHome, patience_s: float, finished: Callable[[], bool] = lambda: False) -> Patience:
    """How long the peer of this home waits when it starts. `finished`: whether the run is known to be finished."""
    return Patience(patience_s if home.returns else min(patience_s, _BUSY_S), finished)
