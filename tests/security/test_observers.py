"""Observers of real swarms: what they see, what they cannot do, how they are revoked, and when another one leads."""

from __future__ import annotations

import http.client
import json
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvloop
from conftest import MakeGroup, MakeSwarm
from served_dashboard import dashboard
from swarm_processes import Process, Swarm

from peers.coordinator.invites import book_of, invite_of, listed
from peers.observer.visit import visiting
from peers.run.home import Home
from peers.runtime.checkpoint_request import CheckpointRequest
from peers.runtime.control_client import send
from peers.runtime.organisers import addresses_by_peer
from swarm.events import CheckpointArchived, PeerJoined, StepDecided
from swarm.net.bulk import PROTOCOL, BulkError
from swarm.net.detour import Detour
from swarm.net.handshake import Channel, Introduction, Refusal, Refused, Role, introduce
from swarm.net.identity import Identity
from swarm.net.invite import parse
from swarm.protocol.ids import Actor

pytestmark = pytest.mark.swarm
PACE = "--pace=0.08,0.16"
LONG = ("run.steps=400", "batch.microbatches=4", "checkpoint.every=2", "evaluation.every=0", "swarm.replicas=1")
HOUR_S = 3600


def observers(home: Path, name: str = "ann", devices: int = 1) -> str:
    """A new invite for observing."""
    return invite_of(home, name, devices, int(time.time()) + HOUR_S, observes=True)[0]


def observe(swarm: Swarm, name: str, invite: str) -> Process:
    """`swarm-peer dashboard INVITE`; returns when it serves."""
    process = swarm.others.setdefault(name, swarm._process(name))
    process.start(["dashboard", invite, "--address=127.0.0.1:0", "--json"])
    process.wait(lambda: process.output.exists() and '"address": "http' in process.output.read_text(), "a dashboard")
    return process


def ask(process: Process, path: str, method: str = "GET", body: dict[str, Any] | None = None) -> tuple[int, Any]:
    """The dashboard's answer."""
    line = next(line for line in reversed(process.output.read_text().splitlines()) if '"address"' in line)
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(json.loads(line)["address"]).port, timeout=30)
    headers = {"X-Swarm-Peer": "1", "Authorization": "Bearer " + 40 * "x"} if method == "POST" else {}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def shows(process: Process, step: int, alive: Process) -> None:
    """Wait until the dashboard shows a step."""
    alive.wait(lambda: (ask(process, "/api/v1/run")[1].get("step") or 0) >= step, f"step {step} at the observer")


def start(swarm: Swarm, *first: str) -> Path:
    """Returns the coordinator's home. `first`: further options of the first peer."""
    swarm.coordinate()
    swarm.join("p0", PACE, *first)
    swarm.join("p1", PACE)
    swarm.coordinator.wait_for(StepDecided, step=1)
    return swarm.coordinator.home


def test_an_observer_sees_what_the_organiser_sees_and_is_revoked_as_others(
    make_swarm: MakeSwarm, tmp_path: Path
) -> None:
    swarm = make_swarm("none", *LONG)
    home = start(swarm)
    invite = observers(home)
    ann = observe(swarm, "ann", invite)
    swarm.coordinator.wait_for(CheckpointArchived)
    shows(ann, 3, swarm.coordinator)
    with dashboard(home) as organisers:
        theirs = organisers.wait("/api/v1/log?limit=200", lambda log: len(log["lines"]) > 5)["lines"]
        first = [line for line in theirs if line["at"] <= theirs[5]["at"]]
        ann.wait(
            lambda: ask(ann, f"/api/v1/log?limit=200&before={first[0]['at'] + 1e-6}")[1]["lines"] == first, "lines"
        )
        facts = ("run", "run_hash", "leader", "first_at")
        mine, whole = ask(ann, "/api/v1/run")[1], organisers.get("/api/v1/run")
        assert [mine.get(fact) for fact in facts] == [whole.get(fact) for fact in facts]
        people = [
            {(peer["actor"], peer["stage"]) for peer in told["peers"]}
            for told in (ask(ann, "/api/v1/peers")[1], organisers.get("/api/v1/peers"))
        ]
        assert people[0] == people[1] and {stage for _, stage in people[0]} == {0, 1}
    assert mine["live"] and not mine["control"] and not mine["warnings"]
    assert ask(ann, "/api/v1/session")[1] | {"token_needed": 0} == {
        "access": "read",
        "public": False,
        "observed": True,
        "token_needed": 0,
    }
    assert not (ann.home / "dashboard.token").exists()
    assert ask(ann, "/api/v1/control", "POST", {"command": "pause"})[0] == 401
    assert ask(ann, "/api/v1/join")[0] == 403

    told = swarm.run_command("status", invite, f"--home={ann.home}", "--json")
    assert told.code == 0, told.words()
    state = json.loads(told.output.read_text())["state"]
    assert state["leads"] and state["steps"] == 400 and state["peers"] == 2
    told = swarm.run_command("generate", "a ", f"--invite={invite}", f"--home={ann.home}", "--tokens=4", "--json")
    assert told.code == 0, told.words()
    version = json.loads(told.output.read_text())["version"]
    model = str(tmp_path / "model")
    told = swarm.run_command("export", model, f"--invite={invite}", f"--home={ann.home}", f"--version={version}")
    assert told.code == 0 or "holds no complete version" in told.words(), told.words()

    bob = swarm.run_command("status", invite, f"--home={tmp_path / 'bob'}")
    assert bob.code == 2 and "this pass is for 1 device" in bob.words(), "a second device of the pass"
    row = next(row for row in listed(home) if row.given.name == "ann")
    assert (row.to_json(0.0)["role"], row.joined) == ("observe", 1)
    send(home, "revoke", book_of(home).find("ann").given.serial.hex(), by="the test", why="it is over")
    assert ann.wait_end() == 4
    assert "its pass was revoked by the test: it is over" in ann.output.read_text()
    ann.start(["dashboard", invite, "--json"])
    assert ann.wait_end() == 4, "and again"
    assert swarm.peers["p0"].code is None and swarm.peers["p1"].code is None


def test_an_observer_has_no_part_in_the_run_whatever_it_says(make_swarm: MakeSwarm, tmp_path: Path) -> None:
    swarm = make_swarm("none", *LONG)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    home = start(swarm, f"--port={port}")
    swarm.coordinator.wait_for(CheckpointArchived)
    invite = observers(home)
    told = swarm.join("eve", invite=invite)
    assert told.wait_end() == 2 and "swarm-peer dashboard INVITE" in told.output.read_text()
    peer = Identity.load(Home(swarm.peers["p0"].home).identity).peer_id
    version = swarm.coordinator.of(CheckpointArchived)[-1].version

    async def attack() -> None:
        eve = Home(tmp_path / "eve")
        async with visiting(parse(invite), eve) as visit:
            host, coordinator = visit.host, visit.coordinators[0]
            shown = eve.certificate.read_bytes()
            await host.connect(peer, [f"/ip4/127.0.0.1/tcp/{port}"])  # nobody tells it: say that it has guessed
            for target in (coordinator, peer):
                for role in (Role.PEER, Role.COORDINATOR, Role.OBSERVER):
                    for channel in Channel:
                        if (target, role, channel) == (coordinator, Role.OBSERVER, Channel.BULK):
                            continue  # what it may do
                        me = Introduction(visit.manifest.hash, Actor(host.peer_id, 9), role, None, channel)
                        stream = await host.open_stream(target, PROTOCOL)
                        with pytest.raises(Refused) as refused:
                            await introduce(stream, Introduction(*_fields(me, shown)), target)
                        stream.abort()
                        assert refused.value.refusal in (Refusal.OTHER_ROLE, Refusal.NO_COORDINATOR)
            wanted = CheckpointRequest(0, version).encode()
            for request in (Detour(peer, None, wanted).encode(), b"junk", b'{"observer": {"what": "home"}}'):
                with pytest.raises(BulkError):
                    await visit.ask(request)
            for of in ("../identity.key", "../../identity", peer):
                with pytest.raises(BulkError, match="no coordinator of this run"):
                    await visit.ask(json.dumps({"observer": {"what": "log", "of": of}}).encode())

    uvloop.run(attack())
    assert len({event.actor for event in swarm.coordinator.of(PeerJoined)}) == 2, "nobody else has a stage"
    swarm.coordinator.wait_for(StepDecided, step=swarm.coordinator.of(StepDecided)[-1].step + 2)


def _fields(me: Introduction, certificate: bytes) -> tuple[Any, ...]:
    return me.run_hash, me.sender, me.role, me.stage, me.channel, me.target_incarnation, certificate


def test_an_observer_goes_on_with_the_coordinator_that_leads_next(make_group: MakeGroup) -> None:
    group = make_group(*LONG)
    first = group.start_group()
    home = group.coordinators["c0"].home
    token = Home(home).join_token
    first.wait(lambda: len(addresses_by_peer(parse(token.read_text()).addresses)) == 3, "an invite with all addresses")
    ann = observe(group, "ann", observers(home))
    for name in ("p0", "p1"):
        group.join(name, PACE)
    first.wait_for(StepDecided, step=2)
    shows(ann, 2, first)
    first.kill()
    first.wait_end()
    follower = group.followers()[0] if group.coordinator is first else group.coordinator
    follower.wait(lambda: group.coordinator is not first, "another that leads", alive=False)
    second = group.coordinator
    decided = second.wait_for(StepDecided)
    shows(ann, decided.step + 1, second)
    assert not ask(ann, "/api/v1/run")[1]["warnings"]
    for process in group.coordinators.values():
        if process.code is None:
            process.kill()
            process.wait_end()
    ann.wait(lambda: bool(ask(ann, "/api/v1/run")[1]["warnings"]), "word that nobody answers")
    assert "no coordinator has answered since" in ask(ann, "/api/v1/run")[1]["warnings"][0]
