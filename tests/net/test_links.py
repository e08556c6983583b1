"""A link whose dials a test answers by hand: when it dials again, and what becomes of what is queued."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from swarm.buffer import Buffer
from swarm.net import channel
from swarm.net.daemon import DialError
from swarm.net.handshake import Channel
from swarm.net.lane import Lane
from swarm.net.links import Link, LinkEvents
from swarm.net.stream import Stream
from swarm.net.wire import Decoder
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor, Direction, FrameKey, Microbatch, PassId, StepNumber, Term

DEADLINE_S = 60.0
ME, OTHER = Actor("a", 1), Actor("b", 1)


def ignore(*_: object) -> None:
    pass


async def test_who_reaches_us_while_our_own_dial_fails_is_dialled_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "FIRST_DELAY_S", 3600.0)
    dials: asyncio.Queue[asyncio.Future[Stream]] = asyncio.Queue()

    async def open_stream(_channel: Channel) -> Stream:
        answer: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        dials.put_nowait(answer)
        return await answer

    link = Link(ME, OTHER, open_stream, LinkEvents(*[ignore] * 7), grace_s=0.2)
    link.probe()
    async with asyncio.timeout(DEADLINE_S):
        first = await dials.get()
        link.nudge()
        first.set_exception(DialError("the two dials crossed"))
        await dials.get()
    link.close()
    await link.closed()


class Told:
    """What a link tells, in order."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[tuple[str, object]] = asyncio.Queue()
        self.undelivered: list[m.Message] = []
        self.events = LinkEvents(
            up=lambda actor: self.queue.put_nowait(("up", actor)),
            lost=lambda actor, reason: self.queue.put_nowait(("lost", reason)),
            broke=lambda actor, channel, reason: self.queue.put_nowait(("broke", channel)),
            unsendable=ignore,
            sent=ignore,
            dropped=lambda actor, count, reason: self.queue.put_nowait(("dropped", count)),
            undelivered=lambda actor, messages: self.undelivered.extend(messages),
        )

    async def next(self) -> tuple[str, object]:
        async with asyncio.timeout(DEADLINE_S):
            return await self.queue.get()


class Sink(Stream):
    """A stream that takes everything while `taking`, and never ends."""

    def __init__(self) -> None:
        super().__init__()
        self.taking = asyncio.Event()
        self.taking.set()
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()

    async def write_frame(self, header: bytes, payload: Buffer = b"", lane: Lane | None = None) -> None:
        await self.taking.wait()
        self.frames.put_nowait(header)


def frame(microbatch: int = 0) -> m.Frame:
    key = FrameKey(PassId(Term(1), StepNumber(0)), 1, Direction.FORWARD, Microbatch(microbatch))
    return m.Frame(key, b"x")


async def test_a_data_channel_that_cannot_be_opened_is_its_own_trouble_while_control_is_open() -> None:
    """It alone drops its queue and refuses more, and is dialled until it opens. The actor is not lost."""
    dials: asyncio.Queue[asyncio.Future[Stream]] = asyncio.Queue()
    told, control = Told(), Sink()

    async def open_stream(channel: Channel) -> Stream:
        if channel is Channel.CONTROL:
            return control
        answer: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        dials.put_nowait(answer)
        return await answer

    link = Link(ME, OTHER, open_stream, told.events, grace_s=0.0)
    link.probe()
    assert await told.next() == ("up", OTHER)
    async with asyncio.timeout(DEADLINE_S):
        control.taking.clear()
        for message in (frame(), *[m.Released(PassId(Term(1), StepNumber(0)), k, ()) for k in range(3)]):
            link.send(message)
        for _ in range(2):
            (await dials.get()).set_exception(DialError("no"))
        assert await told.next() == ("dropped", 1)
        assert await told.next() == ("broke", Channel.ACTIVATION)
        control.taking.set()
        for _ in range(3):
            await control.frames.get()
        link.send(frame())
        (await dials.get()).set_result(Sink())
        assert await told.next() == ("dropped", 1)
        assert await told.next() == ("up", OTHER)
    assert link.lost is None and told.queue.empty()
    link.close()
    await link.closed()


@pytest.mark.parametrize("met", [False, True])
async def test_what_was_for_somebody_never_met_is_handed_back(met: bool) -> None:
    """Somebody who was there before is as a rule dead."""
    dials: asyncio.Queue[asyncio.Future[Stream]] = asyncio.Queue()
    told = Told()

    async def open_stream(_channel: Channel) -> Stream:
        answer: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        dials.put_nowait(answer)
        return await answer

    class Ends(Sink):
        async def wait_ended(self) -> str:
            return "over"

    link = Link(ME, OTHER, open_stream, told.events, grace_s=0.0)
    link.probe()
    async with asyncio.timeout(DEADLINE_S):
        if met:
            (await dials.get()).set_result(Ends())
            assert await told.next() == ("up", OTHER) and await told.next() == ("broke", Channel.CONTROL)
        (await dials.get()).set_exception(DialError("no"))
        assert await told.next() == ("lost", "no")
        link.send(frame())
        (await dials.get()).set_exception(DialError("no"))
        assert await told.next() == ("dropped", 1)
    assert told.undelivered == ([] if met else [frame()])
    link.close()
    await link.closed()


async def test_what_is_open_carries_on_while_control_cannot_be_opened() -> None:
    data, dials = Sink(), asyncio.Queue[asyncio.Future[Stream]]()
    told = Told()

    async def open_stream(channel: Channel) -> Stream:
        if channel is Channel.ACTIVATION:
            return data
        answer: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        dials.put_nowait(answer)
        return await answer

    link = Link(ME, OTHER, open_stream, told.events, grace_s=0.0)
    async with asyncio.timeout(DEADLINE_S):
        link.send(frame())
        await data.frames.get()
        for _ in range(2):
            (await dials.get()).set_exception(DialError("no"))
        assert await told.next() == ("lost", "no")
        await dials.get()
        link.send(frame())
        await data.frames.get()
    assert link.lost == "no" and told.queue.empty()
    link.close()
    await link.closed()


async def test_a_channel_whose_task_fails_is_told_and_begun_anew_by_the_next_message() -> None:
    """Such as a callback that cannot write its log: a dead entry would swallow everything that is sent later."""
    faults: list[Exception] = [RuntimeError("a fault of ours")]
    told, control = Told(), Sink()
    unhandled: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))

    async def open_stream(_channel: Channel) -> Stream:
        if faults:
            raise faults.pop()
        return control

    link = Link(ME, OTHER, open_stream, told.events, grace_s=0.0)
    done = m.Released(PassId(Term(1), StepNumber(0)), 3, ())
    link.send(done)
    assert await told.next() == ("dropped", 1)
    assert (await told.next())[0] == "lost"
    assert await told.next() == ("broke", Channel.CONTROL)
    assert "a fault of ours" in str(link.lost) and "control to b" in str(unhandled[0]["message"])
    link.send(done)
    assert await told.next() == ("up", OTHER)
    async with asyncio.timeout(DEADLINE_S):
        await control.frames.get()
    assert link.lost is None
    link.close()
    await link.closed()


async def test_what_is_on_its_way_out_is_not_queued_twice() -> None:
    """A slow link makes its receivers ask again; to send everything once more would make it slower still."""
    sinks: dict[Channel, Sink] = {channel: Sink() for channel in Channel}
    sinks[Channel.ACTIVATION].taking.clear()

    async def open_stream(channel: Channel) -> Stream:
        return sinks[channel]

    told = Told()
    link = Link(ME, OTHER, open_stream, told.events, grace_s=0.0)
    other, third = m.Relay(ME, Actor("c", 1), frame(1)), m.Relay(ME, Actor("d", 1), frame(1))
    for message in (frame(0), frame(1), frame(0), other, frame(1), third, other):
        link.send(message)
    await asyncio.sleep(0)  # the first is being written
    link.send(frame(0))
    sinks[Channel.ACTIVATION].taking.set()
    decoder = Decoder(ME, OTHER)
    sent = sinks[Channel.ACTIVATION].frames

    async def next_message() -> m.Message:
        async with asyncio.timeout(DEADLINE_S):
            return decoder.decode(await sent.get(), b"x")

    assert [await next_message() for _ in range(4)] == [frame(0), frame(1), other, third]
    link.send(frame(0))  # it has left: whoever asks now has lost it
    assert await next_message() == frame(0)
    assert sent.empty()
    link.close()
    await link.closed()


async def test_who_closes_each_stream_at_once_is_dialled_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be dialled, and reported as lost, hundreds of times a second."""
    delays: list[float] = []
    dialled = asyncio.Event()

    def timeout(delay_s: float) -> asyncio.Timeout:
        delays.append(delay_s)
        if len(delays) == 8:
            dialled.set()
        return asyncio.timeout(0.0)

    async def open_stream(_channel: Channel) -> Stream:
        return ClosedStream()  # type: ignore[return-value]

    told = Told()
    link = Link(ME, OTHER, open_stream, told.events, grace_s=10.0)
    monkeypatch.setattr(channel, "asyncio", SimpleNamespace(**vars(asyncio) | {"timeout": timeout}))
    link.probe()
    async with asyncio.timeout(DEADLINE_S):
        await dialled.wait()
    link.close()
    await link.closed()
    assert delays[:8] == [min(channel.FIRST_DELAY_S * 2**n, channel.LONGEST_DELAY_S) for n in range(8)]


class ClosedStream:
    """A stream that the other side has closed."""

    held_up = False

    async def wait_ended(self) -> str:
        return "the other side closed the stream"

    def abort(self) -> None:
        pass
