"""`swarm-peer invites`: lists the passes of a run, and who has joined with them."""

from __future__ import annotations

import json
import time

from peers.options import Home, Json
from peers.run.home import COORDINATOR_HOME

_TIME = "%Y-%m-%d %H:%M"


def command(home: Home = COORDINATOR_HOME, as_json: Json = False) -> None:
    """List the passes that were made in a home: name, role, devices that have joined, expiry, revoked or not.

    The list comes from the decision record, so the coordinator need not be running.
    """
    from peers.coordinator.invites import listed, role_of
    from swarm.net.passes import NEVER

    rows = listed(home)
    now = time.time()
    if as_json:
        print(json.dumps([row.to_json(now) for row in rows]))
        return
    print(f"{'name':<32} {'role':<8} {'serial':<10} {'devices':>11}  {'expires':<16} state")
    for row in rows:
        used = str(row.joined) if row.given.open else f"{row.joined} of {row.given.devices}"
        given = row.given
        expires = "never" if given.expires_at >= NEVER else time.strftime(_TIME, time.localtime(given.expires_at))
        who = f"{row.given.name:<32} {role_of(row.given):<8} {row.given.serial.hex()[:8]:<10}"
        print(f"{who} {used:>11}  {expires:<16} {row.state(now)}")
