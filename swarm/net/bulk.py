"""Bulk transfers: a small request and an answer of any size, on a separate stream for each.

They carry states, sums, checkpoints and the signed manifest. The answer announces its size first. Errors, even those in
the middle of a transfer, are reported on the same stream. A guest, which has only a pass, may ask for the manifest and
for its certificate.
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
"""Largest frame of an answer, bytes: at 35 kB/s, the receiver still gets a frame about every second."""
LEAST_FRAME, FREE_FRAMES = 256, 64
"""Smallest accepted mean size of an answer's frames, bytes, after so many frames: each costs as much CPU time as 10 kB.
On the slowest supported uplink, frames have 1 KiB, and a forwarded answer may split each of them once.
"""
DEFAULT_MAX_TRANSFER = 64 << 30
IDLE_TIMEOUT_S = 60.0
LEAST_RATE = 50.0
"""Lowest accepted average rate of an answer after the first IDLE_TIMEOUT_S, bytes/s.

An answer gets this rate on the slowest supported uplink if it shares the uplink with other answers.
"""
STARTING_S = 20.0
"""Seconds for which a requester waits for a starting process: its daemon answers before the process itself does."""
MAX_ANSWERS = 16
"""Largest number of simultaneous answers; each may hold a copy of a state, or an open file."""
MAX_ANSWERS_PER_PEER = 4
"""Largest number of simultaneous answers to one peer: two downloads of state pieces, and two of the sums that are
decided during the download of the state.
"""
MAX_SHOWN = 8
"""Largest number of simultaneous answers to observers. They have their own limit, so they never delay members."""
MAX_SHOWN_PER_PEER = 2
MAX_DETOURS = 32
"""Largest number of simultaneously forwarded requests. For each, a piece of the answer is in memory."""
MAX_DETOURS_PER_PEER = 8
MAX_ADDRESS_ANSWERS = 64
"""Largest number of simultaneous answers to address requests. These are small, and training needs them to start."""
LEAST_TAKEN = 4096.0
"""Lowest average rate at which a requester must read, bytes/s. In addition, it may read nothing for IDLE_TIMEOUT_S."""
FAIR_RATE = 64 * 1024.0
PATIENCE_S = 600.0
"""Seconds after which an answer slower than FAIR_RATE (bytes/s) may be ended to make room for another request."""
_MAX_HEAD = 4096
_LOOK_AGAIN_S = 0.2
CERTIFICATE = b"certificate"
"""The request of a guest that has shown an enrolment."""
MANIFEST = b"manifest"
ADDRESSES = b"addresses\n"
"""First bytes of a member's request for the addresses of other members."""


class BulkError(ConnectionError):
    """A transfer was refused, is too large, or broke off; the message gives the reason."""


class Busy(BulkError):
    """The request was refused because too many transfers are in progress; a later request may succeed."""


class TooSlow(BulkError):
    """Data still arrives, but more slowly than the required rate."""


@dataclass(frozen=True)
class Transfer:
    """An answer: `total` bytes in `chunks` of at most MAX_CHUNK bytes, in order."""

    total: int
    chunks: AsyncGenerator[Buffer, None]
    urgent: bool = False
    """Whether the requester cannot continue its work without this answer."""
    abandon: Callable[[], None] = lambda: None
    """Releases the resources of `chunks` if no chunk was requested: closing an unstarted generator does not do this."""

    @classmethod
    def of(cls, data: Buffer, urgent: bool = False) -> Transfer:
        """An answer that is already in memory."""
        return cls(len(data), _pieces(memoryview(data).cast("B")), urgent)

    async def read(self) -> bytearray:
        """The whole answer. Raises BulkError."""
        whole = bytearray(self.total)
        offset = 0
        async for chunk in self.chunks:
            whole[offset : offset + len(chunk)] = chunk
            offset += len(chunk)
        return whole


BulkHandler = Callable[[Actor, bytes], Awaitable[Transfer]]
"""Answers a request; raises BulkError, with the reason, to refuse it."""


Registrar = Callable[[str, Pass, str], Awaitable[bytes]]
"""Makes the certificate of a device, given its peer id, its pass and the address block of its connection.

Raises BulkError, with the reason, to refuse it."""


@dataclass(eq=False)
class _Answer:
    peer_id: str
    serial: bytes
    """Serial number of the requester's pass."""
    stream: Stream
    began: float
    sent_before: int

    def rate(self, now: float) -> float:
        return (self.stream.sent - self.sent_before) / max(now - self.began, 1e-9)


class Answers:
    """The answers in progress, and the limits on their number.

    A request above a limit is refused at once, because another replica may be free. When all places are taken, an
    answer may be ended to make room for a new request, so that no requester can block the others: an old and slow
    answer, or an answer to a pass whose devices have more answers than their share.
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
        """Peer ids to which the limits do not apply, because they also forward requests of others."""

    @contextmanager
    def one_for(self, peer_id: str, stream: Stream, serial: bytes = b"") -> Iterator[None]:
        """Hold a place for one answer. Raises Busy if there is none. `serial`: of the peer's pass; empty if unknown."""
        if peer_id not in self.favoured:
            if sum(each.peer_id == peer_id for each in self._under_way) >= self._per_peer:
                raise Busy(f"{self._per_peer} transfers to you are already in progress")
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
            raise Busy(f"busy with {self._at_most} transfers: ask another replica, or try again later")
        self._under_way.remove(gone)
        gone.stream.abort()

    def _beyond_its_share(self, serial: bytes) -> _Answer | None:
        """The newest answer to the pass with the most answers, if this pass has at least two more than the pass
        `serial`.

        Otherwise None. So if all requesters have the same pass, only the limit of each device applies.
        """
        those = [each for each in self._under_way if each.peer_id not in self.favoured]
        answers = Counter(each.serial for each in those)
        greedy = max(answers, key=answers.__getitem__, default=serial)
        if answers[greedy] < answers[serial] + 2:
            return None
        return next(each for each in reversed(those) if each.serial == greedy)


def is_overdue(seconds: float, rate: float) -> bool:
    """Whether an answer may be ended to make room for another request. `seconds`: its age; `rate`: its average rate,
    bytes/s.
    """
    return seconds > PATIENCE_S and rate < FAIR_RATE


@dataclass(frozen=True)
class Shown:
    """Access for observers: `handler` answers their requests, `answers` limits how many are answered at once."""

    handler: BulkHandler
    answers: Answers


async def request(
    stream: Stream,
    what: bytes,
    max_bytes: int = DEFAULT_MAX_TRANSFER,
    idle_timeout: float = IDLE_TIMEOUT_S,
    least_rate: float = LEAST_RATE,
) -> Transfer:
    """Send a request on a stream that was accepted for bulk. The stream is closed after the last chunk or an error.

    `max_bytes`: a larger announced answer is refused. `idle_timeout`: longest wait for the head of the answer and for
    each chunk, seconds. `least_rate`: lowest average rate of the answer, bytes/s, besides one `idle_timeout` of delay;
    time in which the caller does not request a chunk does not count. Raises BulkError (Busy, TooSlow); so do the
    chunks.
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
        raise BulkError(f"the answer has {head.total} bytes; at most {max_bytes} are accepted")
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
    """Answer the single request on a stream that was accepted for bulk; returns the number of bytes sent.

    `registrar`: makes certificates for guests; None: refuse such requests. `shown`: answers observers; None: refuse
    them. `detours`: limits the requests that are forwarded; None: `answers` limits them. `addresses`: the same for
    address requests. `handler` answers both kinds too. `lane`: the lane of the uplink for the chunks; `urgent`: the
    lane for urgent answers. Chunks are sent in small frames: even with a small share of the uplink, a frame takes
    seconds at most, so the requester does not time out.

    Raises StreamClosed if the requester leaves, reads nothing for IDLE_TIMEOUT_S or reads more slowly than LEAST_TAKEN;
    WireError if the request is malformed; TimeoutError if no request comes within IDLE_TIMEOUT_S.
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
                    raise BulkError("this process does not answer observers; ask a coordinator")
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
    except Exception as error:  # reported to the requester: one failed transfer must not end this process
        reason = str(error) if isinstance(error, BulkError) else f"{type(error).__name__}: {error}"
        head = link_pb2.BulkHead(error=reason[:MAX_TEXT] or "failed", busy=isinstance(error, Busy))
        await _write(stream, head.SerializeToString())
    return stream.sent - before


async def fetch_manifest(
    host: Host, peer_id: str, maddrs: Sequence[str], guest: Introduction, fingerprint: str | None = None
) -> SignedManifest:
    """Download the signed manifest of the run `guest.run_hash` from a coordinator; check hash, signature and organiser.

    Raises ManifestError if one of these does not match, and DialError, Refused, BulkError.
    """
    raw = await _fetch_as_guest(host, peer_id, maddrs, guest, MANIFEST, 2 * MAX_MANIFEST_BYTES)
    try:
        proto = link_pb2.SignedManifest.FromString(raw)
    except DecodeError as error:
        raise BulkError(f"{peer_id} has sent a manifest that cannot be decoded: {error}") from None
    signed = SignedManifest(manifest=proto.manifest, public_key=proto.public_key, signature=proto.signature)
    signed.verify(guest.run_hash, fingerprint)
    return signed


async def fetch_certificate(host: Host, peer_id: str, maddrs: Sequence[str], guest: Introduction) -> bytes:
    """Request this device's signed certificate from a coordinator. `guest` contains the enrolment.

    Raises DialError, Refused, BulkError; Busy if a later request may succeed.
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
        raise BulkError(f"{peer_id} has not sent the {what.decode()}: {error or 'no answer'}") from None
    finally:
        stream.abort()


async def _stream_to(host: Host, peer_id: str) -> Stream:
    """A stream to the peer; if the peer's process is starting, wait for it. Raises DialError."""
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
            raise BulkError("a guest may request only the manifest and its own certificate")
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
                    raise BulkError(f"the answer is longer than the announced {transfer.total} bytes")
                await _write(stream, b"", piece, lane)
                sent += len(piece)
                if stream.blocked_s > IDLE_TIMEOUT_S + sent / LEAST_TAKEN:
                    stream.abort()
                    raise StreamClosed(f"the requester reads too slowly: {sent} bytes in {stream.blocked_s:.0f} s")
    if sent != transfer.total:
        raise BulkError(f"the answer ended after {sent} of {transfer.total} bytes")


async def _write(stream: Stream, header: bytes, payload: Buffer = b"", lane: Lane | None = None) -> None:
    try:
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            await stream.write_frame(header, payload, lane)
    except TimeoutError:
        stream.abort()  # close() would also wait for the requester to read
        raise StreamClosed(f"the requester has read nothing for {IDLE_TIMEOUT_S:g} s") from None


async def _download(stream: Stream, total: int, idle_timeout: float, least_rate: float) -> AsyncGenerator[Buffer, None]:
    received = frames = 0
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
                    came = f"received {received} of {total} bytes in {waited + left:.0f} s"
                    raise TooSlow(f"{came}; the lowest accepted rate is {least_rate:.0f} bytes/s") from None
                raise
            waited += loop.time() - began
            if head:
                _head(head)
            if not chunk:
                raise BulkError("the other side has sent an empty chunk")
            received += len(chunk)
            frames += 1
            if frames > FREE_FRAMES + received / LEAST_FRAME:
                raise BulkError(f"the other side has sent {received} bytes in {frames} frames, which are too small")
            yield chunk
    except (StreamClosed, WireError, TimeoutError) as error:
        reason = str(error) or f"silent for {idle_timeout:g} s"
        raise BulkError(f"the transfer broke off after {received} of {total} bytes: {reason}") from None
    finally:
        stream.abort()


def _head(raw: bytes) -> link_pb2.BulkHead:
    try:
        head = link_pb2.BulkHead.FromString(raw)
    except DecodeError as error:
        raise WireError(f"the head of the answer is not a BulkHead: {error}") from None
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
