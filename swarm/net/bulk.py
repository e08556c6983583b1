"""Bulk transfers: a request of a few bytes, an answer of any announced size, on a stream of their own.

State, checkpoints and the signed manifest travel this way. The answer announces its size first; an error, also one that
strikes half-way, is told in-band. Guests get the manifest and their certificate: a joiner has nothing but a pass.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from swarm.buffer import Buffer
from swarm.manifest import MAX_MANIFEST_BYTES, SignedManifest
from swarm.net.daemon import NotReady
from swarm.net.detour import Detour
from swarm.net.handshake import Introduction, Role, introduce
from swarm.net.host import DialError, Host
from swarm.net.lane import Lane
from swarm.net.passes import MAX_BYTES, Pass
from swarm.net.proto import link_pb2
from swarm.net.stream import Stream, StreamClosed
from swarm.net.wire_bounds import MAX_TEXT, WireError
from swarm.protocol.ids import Actor

PROTOCOL = "/swarm-peer/stream"
MAX_REQUEST = 64 << 10
MAX_CHUNK = 4 << 20
FRAME_BYTES = 32 << 10
"""An answer is sent in frames of this size at most: on a line of 35 kB a second one still comes every second."""
DEFAULT_MAX_TRANSFER = 64 << 30
IDLE_TIMEOUT_S = 60.0
LEAST_RATE = 50.0
"""Bytes a second, after the first IDLE_TIMEOUT_S: the share of one answer of several, on the least uplink there is."""
STARTING_S = 20.0
"""How long somebody may take to start: its daemon answers before it does itself."""
MAX_ANSWERS = 16
"""Transfers answered at once; each may pin a copy of a state, or an open file."""
MAX_ANSWERS_PER_PEER = 4
"""Two runs of pieces of a state, and two of the sums that are decided while it comes."""
MAX_SHOWN = 8
"""Answers to observers at once. They are counted apart: members never wait for a place because of them."""
MAX_SHOWN_PER_PEER = 2
MAX_DETOURS = 32
"""Requests passed on at once; each pins a piece of the answer."""
MAX_DETOURS_PER_PEER = 8
MAX_ADDRESS_ANSWERS = 64
"""Questions for addresses that are answered at once: small, and nobody can train without the answer."""
LEAST_TAKEN = 4096.0
"""Bytes a second that an asker must take, after the first IDLE_TIMEOUT_S in which it took nothing."""
FAIR_RATE = 64 * 1024.0
PATIENCE_S = 600.0
"""Who has had so long, and has got less than FAIR_RATE, makes room when somebody else asks."""
_MAX_HEAD = 4096
_LOOK_AGAIN_S = 0.2
CERTIFICATE = b"certificate"
"""The request of a guest that has shown an enrolment."""
MANIFEST = b"manifest"
ADDRESSES = b"addresses\n"
"""How a member's question for others' addresses begins."""


class BulkError(ConnectionError):
    """A transfer that was refused, is out of bounds, or broke; the text says why."""


class Busy(BulkError):
    """Refused, because enough transfers are under way: it may be had later."""


class TooSlow(BulkError):
    """A transfer that goes on, but takes too long."""


@dataclass(frozen=True)
class Transfer:
    """An answer: `total` bytes in `chunks` of at most MAX_CHUNK bytes, in order."""

    total: int
    chunks: AsyncGenerator[Buffer, None]
    urgent: bool = False
    """Somebody cannot go on without it."""
    abandon: Callable[[], None] = lambda: None
    """Lets go of what `chunks` holds, if none of it has been asked for: closing a generator that never ran does not."""

    @classmethod
    def of(cls, data: Buffer, urgent: bool = False) -> Transfer:
        """An answer that lies in memory already."""
        return cls(len(data), _pieces(memoryview(data).cast("B")), urgent)

    async def read(self) -> bytearray:
        """All of it. Raises BulkError."""
        whole = bytearray(self.total)
        offset = 0
        async for chunk in self.chunks:
            whole[offset : offset + len(chunk)] = chunk
            offset += len(chunk)
        return whole


BulkHandler = Callable[[Actor, bytes], Awaitable[Transfer]]
"""Answers a request; raises BulkError to refuse it by name."""


Registrar = Callable[[str, Pass, str], Awaitable[bytes]]
"""Makes the certificate of a device, by its peer id, its pass and the address block that it comes from.

Raises BulkError to refuse it by name."""


@dataclass(eq=False)
class _Answer:
    peer_id: str
    serial: bytes
    """Of the pass that it came with."""
    stream: Stream
    began: float
    sent_before: int

    def rate(self, now: float) -> float:
        return (self.stream.sent - self.sent_before) / max(now - self.began, 1e-9)


class Answers:
    """Those under way. Who comes when there are enough is told so at once: another replica may be free.

    Two kinds of answers make room, so that nobody shuts the others out: slow ones that have lasted for long, and those
    to the devices of one pass that has more answers than its share.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        at_most: int = MAX_ANSWERS,
        per_peer: int = MAX_ANSWERS_PER_PEER,
    ) -> None:
        self._clock = clock
        self._at_most = at_most
        self._per_peer = per_peer
        self._under_way: list[_Answer] = []
        self.favoured: frozenset[str] = frozenset()
        """Peer ids that are answered however many others are, and however often: they ask for others too."""

    @contextmanager
    def one_for(self, peer_id: str, stream: Stream, serial: bytes = b"") -> Iterator[None]:
        """Raises Busy when there are enough. `serial`: of the pass that the peer came with, as far as it is known."""
        if peer_id not in self.favoured:
            if sum(each.peer_id == peer_id for each in self._under_way) >= self._per_peer:
                raise Busy(f"{self._per_peer} transfers to you are under way already")
            if len(self._under_way) >= self._at_most:
                self._make_room(serial)
        mine = _Answer(peer_id, serial, stream, self._clock(), stream.sent)
        self._under_way.append(mine)
        try:
            yield
        finally:
            if mine in self._under_way:
                self._under_way.remove(mine)

    def _make_room(self, serial: bytes) -> None:
        now = self._clock()
        overdue = [each for each in self._under_way if is_overdue(now - each.began, each.rate(now))]
        if overdue:
            gone = min(overdue, key=lambda each: each.rate(now))
        elif (newest := self._beyond_its_share(serial)) is not None:
            gone = newest
        else:
            raise Busy(f"busy with {self._at_most} transfers: ask another replica, or again later")
        self._under_way.remove(gone)
        gone.stream.abort()

    def _beyond_its_share(self, serial: bytes) -> _Answer | None:
        """The newest answer to the pass that has most, if that has two more than the pass `serial`, or more.

        Where all came with one pass, there is none: each device has its own limit.
        """
        those = [each for each in self._under_way if each.peer_id not in self.favoured]
        answers = Counter(each.serial for each in those)
        greedy = max(answers, key=answers.__getitem__, default=serial)
        if answers[greedy] < answers[serial] + 2:
            return None
        return next(each for each in reversed(those) if each.serial == greedy)


def is_overdue(seconds: float, rate: float) -> bool:
    """Whether an answer that has lasted so long, at so many bytes a second, is to make room for somebody else."""
    return seconds > PATIENCE_S and rate < FAIR_RATE


@dataclass(frozen=True)
class Shown:
    """What observers may see: `handler` answers their requests, `answers` counts those under way."""

    handler: BulkHandler
    answers: Answers


async def request(
    stream: Stream,
    what: bytes,
    max_bytes: int = DEFAULT_MAX_TRANSFER,
    idle_timeout: float = IDLE_TIMEOUT_S,
    least_rate: float = LEAST_RATE,
) -> Transfer:
    """Ask on a stream that was accepted for bulk. The stream is closed with the last chunk, or on an error.

    `max_bytes`: a larger announcement is refused. `idle_timeout`: longest wait, in seconds, for the answer and between
    chunks. `least_rate`: bytes a second that must come, on average since the answer but for one `idle_timeout`; time
    in which nobody asks for the next chunk does not count. Raises BulkError (Busy, TooSlow), also from the chunks.
    """
    try:
        async with asyncio.timeout(idle_timeout):
            await stream.write_frame(what)
            head = _head((await stream.read_frame(_MAX_HEAD, 0))[0])
    except (StreamClosed, WireError, TimeoutError) as error:
        stream.abort()
        raise BulkError(f"no answer: {error or f'silent for {idle_timeout:g} s'}") from None
    except BaseException:
        stream.abort()
        raise
    if head.total > max_bytes:
        stream.abort()
        raise BulkError(f"{head.total} bytes are announced; at most {max_bytes} are taken")
    return Transfer(head.total, _download(stream, head.total, idle_timeout, least_rate), abandon=stream.abort)


async def answer(
    stream: Stream,
    introduction: Introduction,
    manifest: SignedManifest | None,
    handler: BulkHandler,
    answers: Answers,
    lane: Lane,
    urgent: Lane,
    detours: Answers | None = None,
    addresses: Answers | None = None,
    registrar: Registrar | None = None,
    shown: Shown | None = None,
) -> int:
    """Answer the one request on a stream that was accepted for bulk; returns the bytes sent.

    `registrar`: makes the certificates that guests ask for; None: that is not done here. `shown`: the same for what
    observers ask for.
    `detours`: counts requests that are passed on, which are the handler's business too; None: they are as all others.
    `addresses`: the same for questions for addresses.
    `lane`: where chunks wait for their turn; `urgent`: where those of urgent answers do.
    They are then small: one takes seconds at most, also of a small share, and no asker thinks that nothing comes.

    Raises StreamClosed and WireError when the asker goes, takes nothing for IDLE_TIMEOUT_S or less than LEAST_TAKEN, or
    talks nonsense.
    """
    async with asyncio.timeout(IDLE_TIMEOUT_S):
        what, _ = await stream.read_frame(MAX_REQUEST, 0)
    before = stream.sent
    try:
        if what == MANIFEST:
            await _send(stream, _signed(manifest), lane)
        else:
            counted = answers
            if introduction.role is Role.OBSERVER:
                if shown is None:
                    raise BulkError("nothing is shown to observers here")
                counted, handler = shown.answers, shown.handler
            elif addresses is not None and what.startswith(ADDRESSES):
                counted = addresses
            elif detours is not None and Detour.decode(what) is not None:
                counted = detours
            with counted.one_for(introduction.sender.peer, stream, introduction.serial):
                transfer = await _handled(what, introduction, stream.origin, handler, registrar)
                await _send(stream, transfer, urgent if transfer.urgent else lane)
    except (StreamClosed, asyncio.CancelledError):
        raise
    except Exception as error:  # told to the asker; a fault of one transfer is not a fault of the process
        reason = str(error) if isinstance(error, BulkError) else f"{type(error).__name__}: {error}"
        head = link_pb2.BulkHead(error=reason[:MAX_TEXT] or "failed", busy=isinstance(error, Busy))
        await _write(stream, head.SerializeToString())
    return stream.sent - before


async def fetch_manifest(
    host: Host, peer_id: str, maddrs: Sequence[str], guest: Introduction, fingerprint: str | None = None
) -> SignedManifest:
    """The signed manifest of `guest.run_hash` from a coordinator. Its hash, signature and organiser are checked.

    Raises ManifestError when it is not what was asked for, DialError, Refused, BulkError.
    """
    raw = await _fetch_as_guest(host, peer_id, maddrs, guest, MANIFEST, 2 * MAX_MANIFEST_BYTES)
    try:
        proto = link_pb2.SignedManifest.FromString(raw)
    except DecodeError as error:
        raise BulkError(f"{peer_id} does not send the manifest: {error}") from None
    signed = SignedManifest(manifest=proto.manifest, public_key=proto.public_key, signature=proto.signature)
    signed.verify(guest.run_hash, fingerprint)
    return signed


async def fetch_certificate(host: Host, peer_id: str, maddrs: Sequence[str], guest: Introduction) -> bytes:
    """The certificate of this device, sealed, from a coordinator. `guest` shows the enrolment.

    Raises DialError, Refused, BulkError; Busy when it may be had later.
    """
    return await _fetch_as_guest(host, peer_id, maddrs, guest, CERTIFICATE, MAX_BYTES)


async def _fetch_as_guest(
    host: Host, peer_id: str, maddrs: Sequence[str], guest: Introduction, what: bytes, max_bytes: int
) -> bytes:
    if maddrs:
        await host.connect(peer_id, maddrs)
    stream = await _stream_to(host, peer_id)
    try:
        await introduce(stream, guest, peer_id)
        transfer = await request(stream, what, max_bytes=max_bytes)
        return bytes(await transfer.read())
    except (StreamClosed, TimeoutError, WireError) as error:
        raise BulkError(f"{peer_id} does not send the {what.decode()}: {error or 'no answer'}") from None
    finally:
        stream.abort()


async def _stream_to(host: Host, peer_id: str) -> Stream:
    """A stream. Waits for a process that is just starting. Raises DialError."""
    loop = asyncio.get_running_loop()
    until = loop.time() + STARTING_S
    while True:
        try:
            return await host.open_stream(peer_id, PROTOCOL)
        except NotReady:
            if loop.time() >= until:
                raise
        await asyncio.sleep(_LOOK_AGAIN_S)


def _signed(manifest: SignedManifest | None) -> Transfer:
    if manifest is None:
        raise BulkError("this peer has no manifest yet")
    proto = link_pb2.SignedManifest(
        manifest=manifest.manifest, public_key=manifest.public_key, signature=manifest.signature
    )
    return Transfer.of(proto.SerializeToString())


async def _handled(
    what: bytes, introduction: Introduction, origin: str, handler: BulkHandler, registrar: Registrar | None
) -> Transfer:
    if introduction.role is Role.GUEST:
        if what != CERTIFICATE or introduction.enrols is None or registrar is None:
            raise BulkError("a guest may ask for the manifest and its own certificate only")
        return Transfer.of(await registrar(introduction.sender.peer, introduction.enrols, origin))
    return await handler(introduction.sender, what)


async def _send(stream: Stream, transfer: Transfer, lane: Lane) -> None:
    sent, size = 0, min(lane.piece, FRAME_BYTES)
    async with aclosing(transfer.chunks):
        try:
            await _write(stream, link_pb2.BulkHead(total=transfer.total).SerializeToString())
        except BaseException:
            transfer.abandon()
            raise
        async for chunk in transfer.chunks:
            view = memoryview(chunk).cast("B")
            for offset in range(0, len(view), size):
                piece = view[offset : offset + size]
                if sent + len(piece) > transfer.total:
                    raise BulkError(f"the answer is longer than the {transfer.total} bytes announced")
                await _write(stream, b"", piece, lane)
                sent += len(piece)
                if stream.blocked_s > IDLE_TIMEOUT_S + sent / LEAST_TAKEN:
                    stream.abort()
                    raise StreamClosed(f"the asker took {sent} bytes in {stream.blocked_s:.0f} s")
    if sent != transfer.total:
        raise BulkError(f"the answer ended after {sent} of {transfer.total} bytes")


async def _write(stream: Stream, header: bytes, payload: Buffer = b"", lane: Lane | None = None) -> None:
    try:
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            await stream.write_frame(header, payload, lane)
    except TimeoutError:
        stream.abort()  # a mere close would wait for the asker too
        raise StreamClosed(f"the asker took nothing for {IDLE_TIMEOUT_S:g} s") from None


async def _download(stream: Stream, total: int, idle_timeout: float, least_rate: float) -> AsyncGenerator[Buffer, None]:
    received = 0
    waited = 0.0
    loop = asyncio.get_running_loop()
    try:
        while received < total:
            began = loop.time()
            left = idle_timeout + received / least_rate - waited
            try:
                async with asyncio.timeout(min(idle_timeout, left)):
                    head, chunk = await stream.read_frame(_MAX_HEAD, min(MAX_CHUNK, total - received))
            except TimeoutError:
                if left < idle_timeout:
                    came = f"{received} of {total} bytes came in {waited + left:.0f} s"
                    raise TooSlow(f"{came}, at least {least_rate:.0f} a second are wanted") from None
                raise
            waited += loop.time() - began
            if head:
                _head(head)
            if not chunk:
                raise BulkError("an empty chunk")
            received += len(chunk)
            yield chunk
    except (StreamClosed, WireError, TimeoutError) as error:
        reason = str(error) or f"silent for {idle_timeout:g} s"
        raise BulkError(f"the transfer broke after {received} of {total} bytes: {reason}") from None
    finally:
        stream.abort()


def _head(raw: bytes) -> link_pb2.BulkHead:
    try:
        head = link_pb2.BulkHead.FromString(raw)
    except DecodeError as error:
        raise WireError(f"not a BulkHead: {error}") from None
    if head.error:
        raise (Busy if head.busy else BulkError)(head.error[:MAX_TEXT])
    return head


async def _pieces(view: memoryview) -> AsyncGenerator[Buffer, None]:
    for offset in range(0, len(view), MAX_CHUNK):
        yield view[offset : offset + MAX_CHUNK]


__all__ = [
    "Answers",
    "BulkError",
    "BulkHandler",
    "Busy",
    "DialError",
    "Registrar",
    "TooSlow",
    "Transfer",
    "answer",
    "fetch_certificate",
    "fetch_manifest",
    "request",
]
