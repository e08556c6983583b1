"""An open run: whoever has the printed line gets in, each with a pass of its own, and bans hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop
from conftest import MakeSwarm

from peers.coordinator.invites import listed
from peers.coordinator.pass_book import OPEN
from peers.coordinator.turnstile import OF_A_BLOCK_AT_ONCE
from peers.run.home import Home
from peers.runtime.control_client import send
from peers.stage.admission import be_admitted
from swarm.events import StepDecided
from swarm.net.bulk import BulkError
from swarm.net.host import Host
from swarm.net.identity import Identity
from swarm.net.invite import Invite, parse

pytestmark = pytest.mark.swarm
PACE = "--pace=0.04,0.08"
LONG = ("run.steps=400", "batch.microbatches=4", "checkpoint.every=100", "evaluation.every=0", "swarm.replicas=1")


async def visit(invite: Invite, path: Path) -> None:
    """A device with a key of its own is let in, and leaves."""
    home = Home(path)
    host = await Host.create(home.identity, ["/ip4/127.0.0.1/tcp/0"], invite.addresses)
    try:
        await be_admitted(host, home, invite)
    finally:
        await host.close()


def test_everybody_gets_in_one_device_each_and_bans_hold(make_swarm: MakeSwarm, tmp_path: Path) -> None:
    swarm = make_swarm("none", *LONG)
    swarm.coordinate("--open")
    line, home = swarm.invite, swarm.coordinator.home
    names = ("p0", "p1", "p2")
    swarm.join_stages(
        names, dict.fromkeys(names, (PACE,))
    )  # the last one is a second replica: the run needs the others
    ours = [swarm.peers[name] for name in names]
    swarm.coordinator.wait_for(StepDecided, step=1)
    row = next(row for row in listed(home) if row.given.name == OPEN)
    assert row.joined == 3 and row.state(0.0) == "open to everybody"
    gone = Identity.load(Home(ours[2].home).identity).peer_id
    send(home, "expel", gone, by="the test", why="to see")
    assert ours[2].wait_end() == 4
    for number in range(OF_A_BLOCK_AT_ONCE - 3):
        (tmp_path / str(number)).mkdir()
        uvloop.run(visit(parse(line), tmp_path / str(number)))
    (tmp_path / "late").mkdir()
    with pytest.raises(BulkError, match=r"limits how many new devices join at a time: try again in [1-5] minutes"):
        uvloop.run(visit(parse(line), tmp_path / "late"))

    swarm.coordinator.kill()
    swarm.coordinator.wait_end()
    swarm.coordinate("--open")
    assert parse(swarm.invite).ticket == parse(line).ticket, "the line stays good"
    swarm.assert_refused("p2", line, 4, "expelled from the run by the test", PACE)
    swarm.coordinator.wait_for(StepDecided, step=swarm.coordinator.of(StepDecided)[-1].step + 2)

    swarm.coordinator.kill()
    swarm.coordinator.wait_end()
    swarm.coordinate()
    swarm.assert_refused("p9", line, 2, "this run is not open to everybody any more", PACE)
    swarm.coordinator.wait_for(StepDecided, step=swarm.coordinator.of(StepDecided)[-1].step + 2)
    assert ours[0].code is None and ours[1].code is None, "who is in stays in"
