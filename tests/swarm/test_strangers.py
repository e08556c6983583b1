"""Strangers at a living swarm: refused by name, counted against their sender, and the run ends with equal digests."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch
import uvloop
from conftest import MakeSwarm
from frames import reseal
from rogue import Rogue, rogue
from swarm_processes import Process, Swarm

from swarm.compute.body import HEADER_BYTES, BodyFormat
from swarm.events import FrameRefused, MicrobatchAccumulated, PeerRefused
from swarm.net import handshake
from swarm.net.handshake import Channel, Refused
from swarm.net.invite import parse
from swarm.net.records import PeerRecord
from swarm.net.stream import Stream
from swarm.net.wire import Encoder
from swarm.protocol.ids import Actor, Direction, FrameKey, Microbatch, PassId, PassKind, StepNumber, Term
from swarm.protocol.messages import Frame, Message

PEERS = ("p0", "p1", "p2", "p3")
PATIENT = "timing.step_budget_s=600"
HELD = PassId(Term(1), StepNumber(1))
"""The pass that stands open while strangers call: a peer of stage 1 is stopped in it."""


@dataclasses.dataclass(frozen=True)
class Junk:
    """A message or raw bytes that no peer may take, and what is said of it."""

    name: str
    channel: Channel
    reason: str
    make: Callable[[BodyFormat], Message | bytes]


def tokens(form: BodyFormat) -> bytes:
    return form.pack_tokens(PassKind.TRAIN, torch.zeros(2, 33, dtype=torch.int64).numpy())


def gradient(form: BodyFormat) -> bytes:
    return form.pack_backward(1, torch.zeros(2, 32, 32))


def forward(payload: bytes) -> Frame:
    return Frame(FrameKey(HELD, 0, Direction.FORWARD, Microbatch(7)), payload)


def backward(payload: bytes) -> Frame:
    return Frame(FrameKey(HELD, 1, Direction.BACKWARD, Microbatch(7)), payload)


def patched(body: bytes, patch: bytes) -> bytes:
    return body[:HEADER_BYTES] + patch + body[HEADER_BYTES + len(patch) :]


def with_nan(body: bytes) -> bytes:
    """The last value is no number, and the codec's checksum says so too."""
    return body[:HEADER_BYTES] + reseal(body[HEADER_BYTES:-4] + struct.pack("<f", float("nan")))


JUNK = [
    Junk("no such token", Channel.ACTIVATION, "token id 65535", lambda f: forward(patched(tokens(f), b"\xff\xff"))),
    Junk("truncated", Channel.ACTIVATION, "token ids end at", lambda f: forward(tokens(f)[:-5])),
    Junk(
        "wrong shape",
        Channel.GRADIENT,
        "expected",
        lambda f: backward(f.pack_backward(1, torch.zeros(2, 32, 16))),
    ),
    Junk(
        "not a number",
        Channel.GRADIENT,
        "finite",
        lambda f: backward(with_nan(gradient(f))),
    ),
    Junk("random body", Channel.ACTIVATION, "of unknown kind", lambda f: forward(b"\xff" + os.urandom(499))),
    Junk("random frame", Channel.CONTROL, "", lambda f: struct.pack("<II", 300, 0) + os.urandom(300)),
    Junk("oversized", Channel.GRADIENT, "the payload of the frame has", lambda f: struct.pack("<II", 10, 1 << 30)),
    Junk("random bytes", Channel.REDUCE, "", lambda f: os.urandom(4096)),
    Junk("wrong channel", Channel.ACTIVATION, "is not allowed on", lambda f: backward(gradient(f))),
    Junk("empty", Channel.CONTROL, "unknown kind", lambda f: struct.pack("<II", 0, 0)),
]


def calling_on_p0(swarm: Swarm, call: Callable[[Rogue, PeerRecord], Awaitable[None]], folder: Path) -> None:
    """Start the swarm, hold it in the middle of step 1, call on p0, let it finish."""
    swarm.coordinate()
    swarm.join_stages(PEERS, {"p1": ("--fault=stop@MicrobatchAccumulated,pass_id=1:1",)})
    p0, p1 = swarm.peers["p0"], swarm.peers["p1"]
    p1.wait_for(MicrobatchAccumulated, pass_id=str(HELD))

    async def visit() -> None:
        async with rogue(folder, parse(swarm.invite), swarm.manifest) as stranger:
            await call(stranger, await stranger.find(p0.home))

    uvloop.run(visit())
    p1.resume()
    swarm.finish()


async def said(process: Process, kind: type[FrameRefused] | type[PeerRefused], reason: str, count: int = 1) -> None:
    """Wait for the `count`-th refusal that says so."""

    def there() -> bool:
        return sum(reason in event.reason for event in process.of(kind)) >= count

    await asyncio.to_thread(process.wait, there, f"refusal {reason!r}")


async def send(stream: Stream, sender: Actor, target: Actor, what: Message | bytes) -> None:
    if isinstance(what, bytes):
        await stream.write(what)
    else:
        await stream.write_frame(*Encoder(sender, target).encode(what))


def test_junk_is_refused_and_counted(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]], tmp_path: Path
) -> None:
    swarm = make_swarm("none", PATIENT)
    form = BodyFormat(swarm.manifest)
    me: list[Actor] = []

    async def call(stranger: Rogue, target: PeerRecord) -> None:
        me.append(Actor(stranger.host.peer_id, 1))
        for number, junk in enumerate(JUNK, 1):
            stream = await stranger.open(target, junk.channel)
            await send(stream, me[0], target.actor, junk.make(form))
            await said(swarm.peers["p0"], FrameRefused, "", number)
            assert junk.reason in swarm.peers["p0"].of(FrameRefused)[-1].reason, junk.name
            stream.abort()

    calling_on_p0(swarm, call, tmp_path)
    refusals = swarm.peers["p0"].of(FrameRefused, sender=str(me[0]))
    assert [event.count for event in refusals] == list(range(1, len(JUNK) + 1))
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))


def test_a_sound_frame_of_an_outsider_changes_nothing(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]], tmp_path: Path
) -> None:
    """Right run, right shape, right key: but not from who is to compute it."""
    swarm = make_swarm("none", PATIENT)
    form = BodyFormat(swarm.manifest)

    async def call(stranger: Rogue, target: PeerRecord) -> None:
        me = Actor(stranger.host.peer_id, 1)
        later = PassId(Term(1), StepNumber(2))
        for pass_id in (HELD, later):
            for channel, boundary, direction, body in (
                (Channel.GRADIENT, 1, Direction.BACKWARD, gradient(form)),
                (Channel.ACTIVATION, 0, Direction.FORWARD, tokens(form)),
            ):
                stream = await stranger.open(target, channel)
                for m in range(swarm.manifest.batch.microbatches):
                    key = FrameKey(pass_id, boundary, direction, Microbatch(m))
                    await send(stream, me, target.actor, Frame(key, body))
                await send(stream, me, target.actor, os.urandom(64))  # so that the end of it can be seen
                await said(swarm.peers["p0"], FrameRefused, "")
        await said(swarm.peers["p0"], FrameRefused, "", 4)

    calling_on_p0(swarm, call, tmp_path)
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))


def test_peers_of_another_run_release_or_life_are_refused_by_name(
    make_swarm: MakeSwarm,
    reference: Callable[[Swarm], tuple[str, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swarm = make_swarm("int8", PATIENT)

    async def call(stranger: Rogue, target: PeerRecord) -> None:
        p0 = swarm.peers["p0"]
        with pytest.raises(Refused, match="other run: your run is abababababababab"):
            await stranger.open(target, Channel.CONTROL, run_hash="ab" * 32)
        await said(p0, PeerRefused, "other run")
        (await stranger.open(target, Channel.CONTROL, incarnation=5)).abort()
        with pytest.raises(Refused, match="stale incarnation: you are incarnation 3; 5 has connected"):
            await stranger.open(target, Channel.CONTROL, incarnation=3)
        await said(p0, PeerRefused, "stale incarnation")
        monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 99)
        with pytest.raises(Refused, match="other protocol version"):
            await stranger.open(target, Channel.CONTROL, incarnation=5)
        await said(p0, PeerRefused, "other protocol version")

    calling_on_p0(swarm, call, tmp_path)
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))
