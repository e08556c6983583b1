"""Faults are read as they are written in the docs, and strike once, at the moment they name."""

import asyncio
from dataclasses import replace

import pytest

from peers.runtime.fault import Fault, FaultError
from swarm.events import MicrobatchForwarded, StagePrepared, StepApplied
from swarm.protocol.ids import Actor, Microbatch, PassId, PassKind, StepNumber, Term
from swarm.protocol.io import Send
from swarm.protocol.messages import Fenced
from swarm.protocol.peer.io import Forward


def test_strikes_once_at_the_event_it_names() -> None:
    fault = Fault.parse("daemon@MicrobatchForwarded:2,pass_id=1:0")
    struck: list[int] = []
    fault.daemon_pid = lambda: struck.append(1) or 2**22 + 1  # no such process
    for pass_id in ("0:0", "1:0"):
        fault(MicrobatchForwarded(pass_id, 0), 0.0)
    fault(StepApplied(0, "ab"), 0.0)
    assert not struck
    with pytest.raises(ProcessLookupError):
        fault(MicrobatchForwarded("1:0", 1), 0.0)
    fault(MicrobatchForwarded("1:0", 2), 0.0)
    assert struck == [1]


@pytest.mark.parametrize(("pattern", "hits"), [("1:2/s0n1", 1), ("1:2/s0*", 2), ("1:2/*", 3), ("*", 4)])
def test_a_condition_may_leave_the_end_open(pattern: str, hits: int) -> None:
    attempts = ["1:2/s0n0", "1:2/s0n1", "1:2/s1n0", "1:21/s0n0"]
    fault = Fault.parse(f"daemon@StagePrepared:9,attempt={pattern}")
    for attempt in attempts:
        fault(StagePrepared(attempt, "ab"), 0.0)
    assert fault.seen == hits


async def test_after_the_last_message_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = asyncio.Event()
    monkeypatch.setattr("os.kill", lambda pid, number: killed.set())
    done: list[object] = []
    carry_out = Fault.parse("kill@Fenced:2").watch(done.append)
    send = Send(Actor("peer", 1), Fenced(PassId(Term(1), StepNumber(0)), "why"))
    for _ in range(4):
        carry_out(send)
    assert done == [send, send]
    async with asyncio.timeout(60):
        await killed.wait()


def test_who_swallows_computes_nothing_from_then_on_and_still_speaks() -> None:
    done: list[object] = []
    fault = Fault.parse("swallow@MicrobatchForwarded,pass_id=1:0")
    carry_out = fault.watch(done.append)
    pass_id = PassId(Term(1), StepNumber(0))
    forward = Forward(pass_id, PassKind.TRAIN, Microbatch(0), b"", None, None)
    send = Send(Actor("peer", 1), Fenced(pass_id, "why"))
    for action in (forward, send):
        carry_out(action)
    fault(MicrobatchForwarded("1:0", 0), 0.0)
    for action in (forward, send):
        carry_out(action)
    assert done == [forward, send, send]
    with pytest.raises(FaultError, match="a coordinator computes nothing"):
        Fault.parse("swallow@StepDecided", computes=False)


def test_who_is_mute_trains_and_evaluates_nothing_and_who_fails_computes_with_what_nobody_can() -> None:
    pass_id = PassId(Term(1), StepNumber(0))
    train = Forward(pass_id, PassKind.TRAIN, Microbatch(0), b"tokens", None, None)
    evaluate = Forward(PassId(Term(1), StepNumber(0), 1), PassKind.EVALUATE, Microbatch(0), b"tokens", None, None)
    for kind, expected in (("mute", [train]), ("fail", [replace(train, payload=b""), replace(evaluate, payload=b"")])):
        done: list[object] = []
        fault = Fault.parse(f"{kind}@StepApplied")
        carry_out = fault.watch(done.append)
        fault(StepApplied(0, "ab"), 0.0)
        carry_out(train)
        carry_out(evaluate)
        assert done == expected


@pytest.mark.parametrize(
    "text",
    ["", "kill", "kill@Nothing", "burn@StepApplied", "kill@StepApplied:x", "kill@StepApplied,stop=1", "kill@Event"],
)
def test_what_cannot_be_understood_is_shown_with_the_form(text: str) -> None:
    with pytest.raises(FaultError, match=r"write kill\|stop\|daemon\|.*\|overflow\|spoilt\|nan@EVENT"):
        Fault.parse(text)
