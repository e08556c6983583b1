"""What coordinators of a group must agree on before they start, and the mistakes that are told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from authority import Authority
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from peers.cli import main
from peers.coordinator.charter import CharterError, check_place, signed_manifest, way_in
from peers.run.home import Home
from peers.runtime import organisers
from peers.runtime.organisers import addresses_by_peer, fetch_from_any, members_of
from swarm.manifest import DataSection, ManifestError, RunFile, RunManifest, Shard, SignedManifest, key_fingerprint
from swarm.net.bulk import BulkError
from swarm.net.handshake import Channel, Introduction, Role
from swarm.net.identity import Identity
from swarm.net.invite import Invite, InviteError
from swarm.protocol.ids import Actor

SHARD = Shard(file="a.bin", sha256="ab" * 32, tokens=100_000)
DATA = DataSection(
    name="tiny",
    tokenizer_sha256="cd" * 32,
    vocab_size=300,
    train=(SHARD,),
    heldout=(SHARD,),
    bytes_per_token=3.0,
    unigram_entropy=5.0,
)


def ids(folder: Path, count: int) -> list[str]:
    return [Identity.load(Home(folder / f"c{i}").identity).peer_id for i in range(count)]


def manifest(group: Sequence[str] = (), name: str = "tiny") -> RunManifest:
    run = RunFile.model_validate({"run": {"name": name}, "coordinator": {"group": list(group)}})
    return run.resolve(DATA)


def test_a_group_is_an_odd_number_of_peer_ids(tmp_path: Path) -> None:
    four = ids(tmp_path, 4)
    assert [actor.peer for actor in members_of(manifest(four[:3]))] == four[:3]
    assert members_of(manifest()) == ()
    mistakes = {
        "has 2 members: use an odd number up to 7": four[:2],
        "has 9 members": [f"12D3KooW{letter * 44}" for letter in "abcdefghi"],
        "names a peer id twice": [four[0], four[1], four[0]],
        "coordinator.group.0": ["nobody"],
    }
    for words, group in mistakes.items():
        with pytest.raises(ValueError, match=words):
            manifest(group)


def test_id_prints_what_the_manifest_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(["id", "--home", str(tmp_path / "c0"), "--json"])
        assert ended.value.code == 0
        said.append(json.loads(capsys.readouterr().out)["peer_id"])
    assert said == ids(tmp_path, 1) * 2, "the same whenever it is asked"


def test_a_machine_that_the_manifest_does_not_name_is_told(tmp_path: Path) -> None:
    three = ids(tmp_path, 3)
    with Home.open(tmp_path / "c2") as home:
        check_place(manifest(three), home)
        check_place(manifest(), home)
    with (
        Home.open(tmp_path / "stranger") as home,
        pytest.raises(CharterError, match=r"not in coordinator\.group"),
    ):
        check_place(manifest(three), home)


def test_a_home_that_has_lost_its_identity_is_refused_until_it_gets_one(tmp_path: Path) -> None:
    with Home.open(tmp_path / "home") as home:
        check_place(manifest(), home)
        home.decisions.touch()
        check_place(manifest(), home)
        home.identity.unlink()
        with pytest.raises(CharterError, match=r"identity\.key is missing.*swarm-peer id --home"):
            check_place(manifest(), home)
        with pytest.raises(SystemExit):
            main(["id", "--home", str(home.path)])
        check_place(manifest(), home)


class Hosts:
    """Answers for the machines of an invite: who is asked, and what each sends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: SignedManifest) -> None:
        self.asked: list[str] = []
        self.answers = answers

        async def fetch(host: Any, peer: str, addresses: Sequence[str], guest: Introduction) -> SignedManifest:
            self.asked.append(peer)
            if peer not in self.answers:
                raise BulkError(f"{peer} is away")
            return self.answers[peer]

        monkeypatch.setattr(organisers, "fetch_manifest", fetch)


def invite(three: Sequence[str], run: RunManifest, key: Ed25519PrivateKey, first: int = 0) -> Invite:
    addresses = tuple(f"/ip4/10.0.0.{i}/tcp/4001/p2p/{peer}" for i, peer in enumerate(three))
    fingerprint = key_fingerprint(key.public_key().public_bytes_raw())
    ticket, run_key = Authority().ticket(run.hash), Authority().run_key(run.hash)
    return Invite(addresses, three[first], run.hash, fingerprint, ticket, run_key)


async def test_the_manifest_comes_from_whichever_machine_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three, key = ids(tmp_path, 3), Ed25519PrivateKey.generate()
    run = manifest(three)
    signed = SignedManifest.sign(run, key)
    host: Any = SimpleNamespace()
    guest = Introduction(run.hash, Actor("me", 0), Role.GUEST, None, Channel.BULK)
    hosts = Hosts(monkeypatch, **{three[2]: signed})
    assert await fetch_from_any(host, invite(three, run, key, first=1), guest) == signed
    assert hosts.asked == [three[1], three[0], three[2]], "the one that the invite names first"
    assert addresses_by_peer(invite(three, run, key).addresses)[three[2]] == (f"/ip4/10.0.0.2/tcp/4001/p2p/{three[2]}",)
    Hosts(monkeypatch)
    with pytest.raises(BulkError, match="is away"):
        await fetch_from_any(host, invite(three, run, key), guest)


async def test_the_first_signs_and_the_others_take_what_it_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three, key, mine = ids(tmp_path, 3), Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    run, host = manifest(three), SimpleNamespace(peer_id=three[1])
    hosts = Hosts(monkeypatch, **{three[0]: SignedManifest.sign(run, key)})
    with Home.open(tmp_path / "c0") as home:
        assert way_in(home, None) is None
        assert await signed_manifest(run, home, host, None, key) == SignedManifest.sign(run, key)  # type: ignore[arg-type]
    with Home.open(tmp_path / "c1") as home:
        given = invite(three, run, key)
        signed = await signed_manifest(run, home, host, way_in(home, given), mine)  # type: ignore[arg-type]
        assert signed == SignedManifest.sign(run, key) != SignedManifest.sign(run, mine)
        hosts.answers.clear()
        assert way_in(home, None) == given, "it is remembered"
        assert await signed_manifest(run, home, host, way_in(home, None), mine) == signed, "and nobody need be there"  # type: ignore[arg-type]
        other = manifest(three, name="other")
        with pytest.raises(CharterError, match=r"coordinators of a group need the same RUN\.toml"):
            await signed_manifest(other, home, host, way_in(home, None), mine)  # type: ignore[arg-type]
        with pytest.raises(CharterError, match=r'\(run\.name is "tiny" there, "other" here\): all coordinators'):
            await signed_manifest(other, home, host, way_in(home, None), mine)  # type: ignore[arg-type]
        for text in (b"{}", b"\xff\xfe", b"[" * 100_000):
            (home.path / "manifest.signed").write_bytes(text)
            with pytest.raises(ManifestError, match="delete it and give --invite again"):
                await signed_manifest(run, home, host, given, mine)  # type: ignore[arg-type]
        for damaged in (b"swarm3-cut", b"\xff\xfe", b""):
            (home.path / "invite").write_bytes(damaged)
            with pytest.raises(CharterError, match=r"c1/invite is damaged .*: delete it and give --invite again"):
                way_in(home, None)
        with pytest.raises(InviteError, match="an address is not an invite"):
            way_in(home, Invite(given.addresses, three[0]))


async def test_a_manifest_of_another_organiser_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    three, key, mine = ids(tmp_path, 3), Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    run, host = manifest(three), SimpleNamespace(peer_id=three[1])
    Hosts(monkeypatch, **{three[0]: SignedManifest.sign(run, Ed25519PrivateKey.generate())})
    with Home.open(tmp_path / "c1") as home:
        with pytest.raises(ManifestError, match="the invite names organiser"):
            await signed_manifest(run, home, host, invite(three, run, key), mine)  # type: ignore[arg-type]
        assert not (home.path / "manifest.signed").exists(), "nothing is kept of it"


async def test_a_new_coordinator_with_another_run_file_is_told_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three, key, mine = ids(tmp_path, 3), Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    run, other, host = manifest(three), manifest(three, name="other"), SimpleNamespace(peer_id=three[1])
    Hosts(monkeypatch, **{three[0]: SignedManifest.sign(run, key)})
    with Home.open(tmp_path / "c1") as home:
        with pytest.raises(CharterError, match=r'…, but .*… \(run\.name is "tiny" there, "other" here\): all'):
            await signed_manifest(other, home, host, invite(three, run, key), mine)  # type: ignore[arg-type]
        Hosts(monkeypatch, **{three[0]: SignedManifest.sign(run, mine)})  # not of the organiser that the invite names
        with pytest.raises(CharterError, match=rf"but the invite is for run {run.hash[:16]}…: all coordinators"):
            await signed_manifest(other, home, host, invite(three, run, key), mine)  # type: ignore[arg-type]
        Hosts(monkeypatch)  # nobody answers
        with pytest.raises(CharterError, match=rf"but the invite is for run {run.hash[:16]}…: all coordinators"):
            await signed_manifest(other, home, host, invite(three, run, key), mine)  # type: ignore[arg-type]
        assert not (home.path / "manifest.signed").exists() and not (home.path / "invite").exists()
