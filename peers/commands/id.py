"""`swarm-peer id`: who this machine is, as a run's manifest names it."""

from __future__ import annotations

import json

from peers.options import Home, Json
from peers.run.home import COORDINATOR_HOME


def command(home: Home = COORDINATOR_HOME, as_json: Json = False) -> None:
    """Print the peer id of a home, made at first use: what coordinator.group of RUN.toml names."""
    from peers.run.home import Home as HomeFolder
    from swarm.net.identity import Identity

    peer_id = Identity.load(HomeFolder(home).identity).peer_id
    print(json.dumps({"peer_id": peer_id}) if as_json else peer_id)
