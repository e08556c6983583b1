"""`swarm-peer id`: prints the id of this machine for a run's manifest."""

from __future__ import annotations

import json

from peers.options import Home, Json
from peers.run.home import COORDINATOR_HOME


def command(home: Home = COORDINATOR_HOME, as_json: Json = False) -> None:
    """Print the peer id of a home, made at first use, for coordinator.group of RUN.toml."""
    from peers.run.home import Home as HomeFolder
    from peers.run.home import made_home
    from swarm.net.identity import Identity

    peer_id = Identity.load(HomeFolder(made_home(home)).identity).peer_id
    print(json.dumps({"peer_id": peer_id}) if as_json else peer_id)
