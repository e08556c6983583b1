"""What a user can get wrong: exit code 2, and one line that names the value and the fix."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from conftest import RUN, MakeSwarm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from swarm_processes import Nursery, Process

from swarm.manifest import RunManifest, SignedManifest, key_fingerprint
from swarm.net.door import Door
from swarm.net.handshake import Role
from swarm.net.host import Host
from swarm.net.invite import Invite
from swarm.net.network import Network
from swarm.net.observer import NetworkObserver
from swarm.net.passes import Ticket
from swarm.net.run_key import RunKey
from swarm.protocol.ids import Actor


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


def nothing(folder: Path) -> None:
    pass


@dataclasses.dataclass(frozen=True)
class Mistake:
    name: str
    says: tuple[str, ...]
    sets: tuple[str, ...] = ()
    spoil: Callable[[Path], None] = nothing
    """Done to a copy of the corpus."""


MISTAKES = [
    Mistake("unknown key", ("unknown key model.layer", "nearest known key is model.layers"), ("model.layer=4",)),
    Mistake("impossible cuts", ("model.cuts = [4]", "swarm-peer init"), ("model.cuts=[4]",)),
    Mistake("no override", ("run.steps:7", "--set run.steps=100"), ("run.steps:7",)),
    Mistake("unknown codec", ("int3",), ("codec.forward=int3",)),
    Mistake("other corpus", ("train-00000.bin",), spoil=lambda corpus: flip(corpus / "train-00000.bin")),
    Mistake("other tokenizer", ("tokenizer.json",), spoil=lambda corpus: flip(corpus / "tokenizer.json")),
    Mistake("no corpus", ("swarm-peer prepare",), spoil=lambda corpus: (corpus / "corpus.json").unlink()),
]


def complaint(process: Process) -> str:
    assert process.wait_end() == 2, process.words()
    (line,) = [line for line in process.words().splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_coordinate_refuses(mistake: Mistake, nursery: Nursery, ground: Path, tmp_path: Path) -> None:
    shutil.copytree(ground / "corpus", tmp_path / "corpus")
    mistake.spoil(tmp_path / "corpus")
    run = tmp_path / "run" / "RUN.toml"
    run.parent.mkdir()
    run.write_text(RUN)
    process = Process("coordinator", tmp_path / "home", tmp_path / "out", nursery)
    process.start(["coordinate", str(run), "--no-dashboard", *(f"--set={text}" for text in mistake.sets)])
    line = complaint(process)
    for words in mistake.says:
        assert words in line


def forged(manifest: RunManifest, key: Ed25519PrivateKey) -> SignedManifest:
    """Signed, then changed."""
    signed = SignedManifest.sign(manifest, key)
    return SignedManifest(manifest=signed.manifest, public_key=signed.public_key, signature=bytes(64))


def of_somebody_else(manifest: RunManifest, key: Ed25519PrivateKey) -> SignedManifest:
    return SignedManifest.sign(manifest, Ed25519PrivateKey.generate())


@pytest.mark.parametrize(
    ("serve", "says"),
    [
        (forged, "has no valid signature of the key"),
        (of_somebody_else, "the invite names organiser"),
    ],
    ids=["bad-signature", "other-organiser"],
)
def test_join_refuses_a_manifest(
    serve: Callable[[RunManifest, Ed25519PrivateKey], SignedManifest],
    says: str,
    make_swarm: MakeSwarm,
    nursery: Nursery,
    tmp_path: Path,
) -> None:
    manifest = make_swarm("none").manifest
    key = Ed25519PrivateKey.generate()
    peer = Process("peer", tmp_path / "home", tmp_path / "out", nursery)

    run_key = RunKey.derive(key, manifest.hash)

    async def offer() -> None:
        host = await Host.create(tmp_path / "organiser" / "identity", ["/ip4/127.0.0.1/tcp/0"], key=run_key)
        me = Actor(host.peer_id, 0)
        network = Network(
            host,
            me,
            Door(manifest.hash, (me.peer,), key.public_key().public_bytes_raw()),
            Role.COORDINATOR,
            NetworkObserver(),
            max_payload=0,
            reconnect_grace_s=0.2,
            step_s=60.0,
            manifest=serve(manifest, key),
        )
        await network.start()
        fingerprint = key_fingerprint(key.public_key().public_bytes_raw())
        ticket = Ticket.issue(key, manifest.hash, "alice", 1, int(time.time()) + 600)
        invite = Invite(tuple(await host.addresses()), host.peer_id, manifest.hash, fingerprint, ticket, run_key)
        peer.start(["join", invite.encode()])
        await asyncio.to_thread(peer.wait_end)
        await network.close()
        await host.close()

    uvloop.run(offer())
    assert says in complaint(peer)
