"""Identity files, addresses, and starting a host."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path

import psutil
import pytest
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr
from hypothesis import given
from hypothesis import strategies as st
from unpacked_daemon import packed_daemon, write_unpacked

from swarm.net import addresses
from swarm.net.addresses import AddressError
from swarm.net.daemon import DaemonP2P, DialError, NotReady
from swarm.net.host import Host, HostError, NobodyAnswers
from swarm.net.identity import Identity, IdentityError, peer_id_bytes, verify
from swarm.net.stream import Stream

PEER = "12D3KooWGLRVVPvcDMrJhekde9TpTBD1qiwdW8xK32UZrBTnp9fm"


def test_an_identity_is_made_once_private_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "home" / "identity"
    made = Identity.load(path)
    assert Identity.load(path).peer_id == made.peer_id
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert verify(made.peer_id, made.key.sign(b"message"), b"message")
    assert not verify(made.peer_id, made.key.sign(b"message"), b"other")
    assert not verify(PEER, made.key.sign(b"message"), b"message")
    assert not verify("QmNnooDu7bfjPFoTZYxMNLWUQJyrVwtbZg5gBMjTezGAJN", b"x" * 64, b"message")


@pytest.mark.parametrize("links", [True, False])
def test_two_processes_that_make_an_identity_at_once_get_the_same_one(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`swarm-peer id` once printed a peer id whose key the other process had just replaced."""
    path = tmp_path / "identity"
    link, calls, made = os.link, iter(range(9)), list[Identity]()

    def meanwhile(new: Path, name: Path) -> None:
        if next(calls) == 0 and links:
            made.append(Identity.load(path))
        if not links:  # such as FAT
            raise PermissionError(errno.EPERM, "Operation not permitted")
        link(new, name)

    monkeypatch.setattr(os, "link", meanwhile)
    identity = Identity.load(path)
    assert len(made) == links and all(each.peer_id == identity.peer_id for each in made)
    assert Identity.load(path).peer_id == identity.peer_id
    assert list(tmp_path.iterdir()) == [path] and stat.S_IMODE(path.stat().st_mode) == 0o600


def flipped(place: int) -> Callable[[bytes], bytes]:
    """The same bytes but the one at this place, whose bits are all the other way round."""

    def damage(raw: bytes) -> bytes:
        other = bytearray(raw)
        other[place] ^= 0xFF
        return bytes(other)

    return damage


@pytest.mark.parametrize(
    "damage",
    [lambda raw: raw[:-1], lambda raw: b"", flipped(0), flipped(-1), flipped(-33)],
    ids=["cut off", "empty", "head", "public half", "private half"],
)
def test_a_damaged_identity_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "identity"
    Identity.load(path)
    sound = path.read_bytes()
    path.write_bytes(damage(sound))
    assert path.read_bytes() != sound
    with pytest.raises(IdentityError, match="identity"):
        Identity.load(path)


def test_an_identity_that_cannot_be_written_is_named_and_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/identity'"):
        Identity.load(tmp_path / "identity")
    assert not list(tmp_path.iterdir())


async def test_a_host_is_who_its_identity_says_and_shows_where_it_listens(
    make_host: Callable[..., Awaitable[Host]], tmp_path: Path
) -> None:
    host = await make_host()
    assert Identity.load(tmp_path / "home0" / "identity").peer_id == host.peer_id == str(host.dht.peer_id)
    (address,) = await host.addresses()
    assert addresses.split_peer(address)[1] == host.peer_id
    assert not host.died.done()


async def test_a_machine_without_any_address_is_told_so(
    make_host: Callable[..., Awaitable[Host]], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = await make_host()

    async def nothing() -> tuple[object, list[object]]:
        return host.dht.peer_id, []

    monkeypatch.setattr(host._p2p._client, "identify", nothing)
    with pytest.raises(HostError, match=r"no address for /ip4/127\.0\.0\.1/tcp/.*ip link set lo up"):
        await host.addresses()


async def test_a_port_that_somebody_else_listens_on_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.net.host._FREED_S", 0.2)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as libp2p daemons do
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(HostError, match=f"port {port} of 127.0.0.1 is in use on this machine"):
            await Host.create(tmp_path / "identity", [f"/ip4/127.0.0.1/tcp/{port}"])


async def test_a_port_that_is_freed_soon_is_waited_for(make_host: Callable[..., Awaitable[Host]]) -> None:
    first = await make_host()
    (address,) = await first.addresses()
    listen = addresses.split_peer(address)[0]
    second = asyncio.create_task(make_host(listen=listen))
    await asyncio.sleep(0)
    await first.close()
    assert (await (await second).addresses())[0].startswith(listen)


async def test_an_unreachable_peer_and_a_dead_bootstrap_are_named(
    make_host: Callable[..., Awaitable[Host]], tmp_path: Path
) -> None:
    host = await make_host()
    nobody = f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}"
    with pytest.raises(DialError, match=rf"cannot dial {PEER}: connection refused \(/ip4/127\.0\.0\.1/tcp/1\)$"):
        await host.connect(PEER, [nobody])
    with pytest.raises(DialError, match="cannot reach"):
        await host.open_stream(PEER, "/nothing", timeout=2.0)
    with pytest.raises(NobodyAnswers, match=r"127\.0\.0\.1/tcp/1/p2p"):
        async with asyncio.timeout(60):
            await Host.create(tmp_path / "late", ["/ip4/127.0.0.1/tcp/0"], [nobody])
    with pytest.raises(AddressError, match="does not end in /p2p/"):
        await Host.create(tmp_path / "late", ["/ip4/127.0.0.1/tcp/0"], ["/ip4/127.0.0.1/tcp/1"])


@pytest.mark.parametrize("protocol", ["/libp2p/circuit/relay/0.2.0/hop", "/ipfs/kad/1.0.0"])
async def test_it_relays_for_nobody_and_tells_nobody_whom_it_knows(
    protocol: str, make_host: Callable[..., Awaitable[Host]]
) -> None:
    first = await make_host()
    second = await make_host(await first.addresses())
    with pytest.raises(NotReady, match="protocols not supported"):
        await second.open_stream(first.peer_id, protocol)


async def test_one_living_bootstrap_is_enough_and_itself_is_none(make_host: Callable[..., Awaitable[Host]]) -> None:
    first = await make_host()
    second = await make_host([f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}", *await first.addresses()])
    await second.connect(first.peer_id, [])


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/1.2.3.4/tcp/4001",
        "/ip6/::1/tcp/4001",
        "/ip4/1.2.3.4/udp/4001/quic",
        "/dns4/host.example/tcp/443",
    ],
)
def test_addresses_without_peers_encode_as_everywhere(address: str) -> None:
    assert addresses.encode(address) == Multiaddr(address).to_bytes()


def test_a_peer_is_encoded_as_its_bare_multihash() -> None:
    raw = addresses.encode(f"/ip4/1.2.3.4/tcp/4001/p2p/{PEER}/p2p-circuit")
    multihash = peer_id_bytes(PEER)
    assert raw.endswith(b"\xa5\x03" + bytes([len(multihash)]) + multihash + b"\xa2\x02")


@given(st.text(max_size=100) | st.lists(st.sampled_from(["ip4", "tcp", "p2p", "1.2.3.4", "", "0", PEER])).map("/".join))
def test_any_text_is_an_address_or_an_address_error(text: str) -> None:
    try:
        addresses.encode(text)
    except AddressError as error:
        assert str(error)


@pytest.mark.parametrize("interrupted", [False, True])
async def test_a_daemon_that_ends_at_once_may_have_been_interrupted_with_us(
    interrupted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loop = asyncio.get_running_loop()

    async def create(**_: object) -> None:
        if interrupted:
            loop.call_soon(starting.cancel)  # what Ctrl-C comes to, a moment after the daemon has ended
        raise P2PDaemonError("Daemon failed to start: None")

    monkeypatch.setattr(DaemonP2P, "create", create)
    starting = asyncio.create_task(Host.create(tmp_path / "identity"))
    with pytest.raises(asyncio.CancelledError if interrupted else HostError) as caught:
        await starting
    assert interrupted or str(caught.value).endswith("): Daemon failed to start")


async def test_who_asked_closes_first(make_host: Callable[..., Awaitable[Host]]) -> None:
    """Else the daemon may reset the stream before the last words of an answer are read: 1 in 6,000, under load."""
    server = await make_host()
    client = await make_host(await server.addresses())

    async def answer(stream: Stream, remote_peer: str) -> None:
        await stream.write_frame(b"head", b"all there is")

    await server.handle_streams("/answers", answer)
    stream = await client.open_stream(server.peer_id, "/answers")
    assert await stream.read_frame(16, 16) == (b"head", b"all there is")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await stream.read_exactly(1)
    stream.abort()


async def test_the_environment_names_another_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Path(str(resources.files("hivemind.hivemind_cli") / "p2pd"))
    other = Path(shutil.copy(usual, tmp_path / "p2pd"))
    for named, runs in ((str(other), other), ("", usual), (None, usual)):
        if named is None:
            monkeypatch.delenv("SWARM_PEER_P2PD")
        else:
            monkeypatch.setenv("SWARM_PEER_P2PD", named)
        host = await Host.create(tmp_path / "identity", ["/ip4/127.0.0.1/tcp/0"])
        try:
            assert Path(psutil.Process(host.daemon_pid).exe()) == runs.resolve()
        finally:
            await host.close()


@pytest.mark.parametrize("kind", ["missing", "folder", "text"])
async def test_a_daemon_that_is_no_program_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / "p2pd"
    if kind == "folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("not a program")
    monkeypatch.setenv("SWARM_PEER_P2PD", str(path))
    with pytest.raises(HostError, match=rf"SWARM_PEER_P2PD is '{path}', which is not a program.*unset the variable"):
        await Host.create(tmp_path / "identity", ["/ip4/127.0.0.1/tcp/0"])


def test_an_unpacked_daemon_is_the_same_program(tmp_path: Path) -> None:
    """Which is why tests may use it."""
    packed = packed_daemon()
    if packed is None:
        pytest.skip("hivemind's daemon is not packed here, or cannot be unpacked")
    try:
        plain = write_unpacked(packed, tmp_path)
    except OSError as error:
        pytest.skip(f"the daemon cannot be unpacked here: {error}")
    assert packed_daemon() == packed, "it has not been changed"
    assert plain.stat().st_size > 2 * packed.stat().st_size and b"UPX!" not in plain.read_bytes()[:512]
    words = [subprocess.run([each, "-help"], capture_output=True, timeout=60).stderr for each in (packed, plain)]
    assert b"-persistentConnMaxMsgSize" in words[0]
    assert words[0].replace(bytes(packed), b"p2pd") == words[1].replace(bytes(plain), b"p2pd")
