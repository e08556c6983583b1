"""Passes in real swarms: a leaked one, a revoked one, none at all; over restarts, and when another one leads."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import uvloop
from conftest import MakeGroup, MakeSwarm
from swarm_processes import Process

from peers.coordinator.invites import book_of, invite_of, listed
from peers.run.home import Home
from peers.runtime.control_client import send
from peers.runtime.organisers import addresses_by_peer
from swarm.events import LeadershipTaken, PeerRefused, ProcessStopped, StepDecided
from swarm.manifest import PROTOCOL_VERSION
from swarm.net.bulk import PROTOCOL, fetch_manifest
from swarm.net.door import STRANGER
from swarm.net.handshake import Channel, Introduction, Refused, Role
from swarm.net.host import DialError, Host
from swarm.net.identity import Identity
from swarm.net.invite import parse
from swarm.net.proto import link_pb2, messages_pb2
from swarm.protocol.ids import Actor

pytestmark = pytest.mark.swarm
PACE = "--pace=0.04,0.08"
LONG = ("run.steps=400", "batch.microbatches=4", "checkpoint.every=100", "evaluation.every=0")
HOUR_S = 3600


def passed(home: Path, name: str, devices: int) -> str:
    """A new invite."""
    return invite_of(home, name, devices, int(time.time()) + HOUR_S)[0]


def peer_id(process: Process) -> str:
    return Identity.load(Home(process.home).identity).peer_id


def test_a_leaked_pass_lets_as_many_devices_in_as_it_is_for(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm("none", *LONG, "swarm.replicas=1")
    swarm.coordinate()
    home = swarm.coordinator.home
    alice = passed(home, "alice", 2)
    for name in ("a0", "a1"):
        swarm.join(name, PACE, invite=alice)
    swarm.coordinator.wait_for(StepDecided, step=1)
    says = "this pass is for 2 devices, and as many have joined"
    for name in ("a2", "a3"):
        swarm.assert_refused(name, alice, 2, says, PACE)
    row = next(row for row in listed(home) if row.given.name == "alice")
    assert (row.joined, row.state(time.time())) == (2, "used up")
    swarm.coordinator.kill()
    swarm.coordinator.wait_end()
    swarm.peers["a1"].kill()
    swarm.peers["a1"].wait_end()
    (swarm.peers["a1"].home / "certificate").unlink()
    swarm.coordinate()
    swarm.assert_refused("a4", alice, 2, says, PACE)
    swarm.join("a1", PACE, invite=alice)
    swarm.coordinator.wait_for(StepDecided, step=swarm.coordinator.of(StepDecided)[-1].step + 2)
    assert next(row for row in listed(home) if row.given.name == "alice").joined == 2, "who comes again counts once"
    assert swarm.peers["a0"].code is None and swarm.peers["a1"].code is None


def test_a_revoked_pass_is_gone_in_seconds_and_stays_out_after_a_restart_of_everything(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm("none", *LONG, "swarm.replicas=2")
    swarm.coordinate()
    home = swarm.coordinator.home
    alice = passed(home, "alice", 2)
    others = [swarm.join(name, PACE) for name in ("p0", "p1")]
    mallory = swarm.join("a0", PACE, invite=alice)
    swarm.join("p2", PACE)
    swarm.coordinator.wait_for(StepDecided, step=1)
    serial = book_of(home).find("alice").given.serial.hex()
    send(home, "revoke", serial, by="the test", why="it leaked")
    assert mallory.wait_end() == 4
    gone = peer_id(mallory)

    def everywhere() -> bool:
        files = [each.home / "bans.json" for each in others]
        return all(file.exists() and gone in json.loads(file.read_text())["peers"] for file in files)

    swarm.coordinator.wait(everywhere, "the news at every peer")
    assert "its pass was revoked by the test: it leaked" in mallory.of(ProcessStopped)[-1].reason
    decided = swarm.coordinator.of(StepDecided)[-1].step
    swarm.coordinator.wait_for(StepDecided, step=decided + 2)
    for process in (swarm.coordinator, *others, swarm.peers["p2"]):
        process.kill()
        process.wait_end()
    swarm.coordinate()
    for name in ("p0", "p1", "p2"):
        swarm.join(name, PACE)
    swarm.assert_refused("a0", alice, 4, "its pass was revoked by the test", PACE)
    swarm.assert_refused("a5", alice, 4, "its pass was revoked by the test", PACE)
    swarm.coordinator.wait_for(StepDecided, step=swarm.coordinator.of(StepDecided)[-1].step + 2)


def test_the_count_and_the_revocation_outlive_the_coordinator_that_led(make_group: MakeGroup) -> None:
    group = make_group(*LONG, "swarm.replicas=2")
    first = group.start_group()
    home = group.coordinators["c0"].home
    token = Home(home).join_token
    first.wait(lambda: len(addresses_by_peer(parse(token.read_text()).addresses)) == 3, "an invite with all addresses")
    alice = passed(home, "alice", 1)
    for name in ("p0", "p1"):
        group.join(name, PACE)
    mallory = group.join("a0", PACE, invite=alice)
    group.join("p2", PACE)
    first.wait_for(StepDecided, step=1)
    serial = book_of(home).find("alice").given.serial.hex()
    first.kill()
    first.wait_end()
    follower = group.followers()[0] if group.coordinator is first else group.coordinator
    follower.wait(lambda: group.coordinator is not first, "another that leads", alive=False)
    second = group.coordinator
    assert second.of(LeadershipTaken)
    group.assert_refused("a1", alice, 2, "this pass is for 1 device, and as many have joined", PACE)
    send(second.home, "revoke", serial, by="the test", why="it leaked")
    assert mallory.wait_end() == 4
    group.assert_refused("a0", alice, 4, "its pass was revoked by the test", PACE)


def test_a_stranger_gets_one_refusal_and_learns_nothing(make_swarm: MakeSwarm, tmp_path: Path) -> None:
    swarm = make_swarm("none", *LONG, "swarm.replicas=1")
    swarm.coordinate()
    for name in ("p0", "p1"):
        swarm.join(name, PACE)
    swarm.coordinator.wait_for(StepDecided, step=0)
    invite, run_hash = parse(swarm.invite), swarm.manifest.hash
    notebook, member = Home(swarm.coordinator.home).notebook, peer_id(swarm.peers["p0"])
    swarm.coordinator.wait(lambda: notebook.exists() and member in json.loads(notebook.read_text()), "its address")
    where = json.loads(notebook.read_text())[member][1]  # nobody has told the stranger: it has guessed well
    mine, theirs = bytes.fromhex(run_hash), bytes(32)

    async def ask(host: Host, target: str, **fields: object) -> link_pb2.HelloReply:
        stream = await host.open_stream(target, PROTOCOL)
        me = messages_pb2.Actor(peer=host.peer_id, incarnation=1)
        hello = link_pb2.Hello(**{"protocol_version": PROTOCOL_VERSION, "sender": me, **fields})
        await stream.write_frame(hello.SerializeToString())
        raw, _ = await stream.read_frame(4096, 0)
        stream.abort()
        return link_pb2.HelloReply.FromString(raw)

    async def visit() -> None:
        host = await Host.create(tmp_path / "stranger", ["/ip4/127.0.0.1/tcp/0"], invite.addresses)
        coordinator = invite.coordinator
        await host.connect(coordinator, addresses_by_peer(invite.addresses)[coordinator])
        with pytest.raises(DialError, match="no addresses"):
            await host.open_stream(member, PROTOCOL)
        await host.connect(member, where)
        said = []
        for target in (coordinator, member):
            for run in (mine, theirs, b""):
                for role in (link_pb2.ROLE_PEER, link_pb2.ROLE_COORDINATOR, link_pb2.ROLE_GUEST, 77):
                    for channel in (link_pb2.CHANNEL_CONTROL, link_pb2.CHANNEL_BULK):
                        for credential in ({}, {"certificate": b"junk"}, {"enrolment": b"junk"}):
                            reply = await ask(host, target, run_hash=run, role=role, channel=channel, **credential)
                            said.append(reply.SerializeToString())
        whole = link_pb2.HelloReply(refusal=link_pb2.NO_PASS, reason=STRANGER, protocol_version=PROTOCOL_VERSION)
        assert set(said) == {whole.SerializeToString()}, "whatever it says it is told the same"
        guest = Introduction(run_hash, Actor(host.peer_id, 0), Role.GUEST, None, Channel.BULK)
        with pytest.raises(Refused, match="no pass"):
            await fetch_manifest(host, coordinator, [], guest)
        await host.close()

    uvloop.run(visit())
    assert swarm.coordinator.of(PeerRefused)
