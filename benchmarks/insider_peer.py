"""A peer that misbehaves from a step on: `insider_peer.py KIND STEP join ...`, then as `swarm-peer`.

For benchmarks/insiders.py only. What `--fault` can do is not among its kinds.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from torch import Tensor

from peers.cli import main
from peers.stage.driver import StageDriver
from swarm.compute.held import HeldState
from swarm.compute.live_state import LiveState
from swarm.compute.stage import Stage
from swarm.compute.sums import Accumulator
from swarm.protocol.io import Send
from swarm.protocol.messages import ReducedPart, ReducePart, Relay, Status
from swarm.protocol.peer.io import (
    Apply,
    Backward,
    ComputeFailed,
    EncodePart,
    Forward,
    LoadState,
    PeerAction,
    SumBucket,
    Weights,
)

FACTORS = {"negated": -1.0, "a quarter more": 1.25, "exaggerated": -300.0, "enormous": 1e20, "nan": float("nan")}
"""By kind: the factor by which the peer multiplies its gradients before it adds them."""
KINDS = (
    *(*FACTORS, "unreduced", "withholding", "slow", "gift", "status", "hoarding", "flapping"),
    *("late parts", "late work", "forward only"),
)
"""`gift`: it gives newcomers a false state. `forward only`: it computes no gradients."""
SLOW_S = 0.3
"""Seconds by which each computation of the peer takes longer."""
LATE_PARTS_S = 5.0
"""Seconds by which each of its parts and sums is late. All deadlines of the default step budget are longer."""
LATE_WORK_S = 1.0
"""Seconds by which each of its computations takes longer, although it reports its usual speed and nothing to do."""


def misbehave(kind: str, since: int) -> None:
    """Change this process. `since`: the first step in which it misbehaves."""
    if kind in FACTORS:
        _multiply(FACTORS[kind], since)
    elif kind == "slow":
        _delay(since, SLOW_S)
    elif kind == "gift":
        _give_false_states(since)
    elif kind == "status":
        _report_falsely(since)
    elif kind == "late parts":
        _send_late(since)
    elif kind == "late work":
        _delay(since, LATE_WORK_S)
        _report_falsely(since, ({"seconds_per_microbatch": 0.06, "queued": 0},))
    elif kind == "hoarding":
        _hoard(since)
    elif kind in ("unreduced", "withholding", "forward only"):
        _keep_back(kind, since)
    else:
        raise ValueError(f"no kind is named {kind!r}; choose from {', '.join(KINDS)}")


def _multiply(factor: float, since: int) -> None:
    add_one = Accumulator.add_one

    def multiplied(self: Accumulator, index: int, gradient: Tensor, *, step: int | None = None, **more: Any) -> None:
        lies = step is not None and step >= since
        add_one(self, index, gradient * factor if lies else gradient, step=step, **more)

    setattr(Accumulator, "add_one", multiplied)  # noqa: B010 - mypy would have it be a method


def _delay(since: int, seconds: float) -> None:
    for name in ("forward", "backward"):
        compute: Any = getattr(Stage, name)

        def delayed(self: Stage, action: Forward | Backward, compute: Any = compute) -> Any:
            if action.pass_id.step >= since:
                time.sleep(seconds)
            return compute(self, action)

        setattr(Stage, name, delayed)


def _keep_back(kind: str, since: int) -> None:
    """`forward only`: no backward. `unreduced`: it has no part in a reduce. `withholding`: one sibling gets neither its
    parts nor its sums.
    """
    carry_out = StageDriver._carry_out
    victim: list[str] = []

    def keeps(action: PeerAction) -> bool:
        if kind == "forward only":
            return isinstance(action, Backward | Weights) and action.pass_id.step >= since
        if kind == "unreduced":
            return isinstance(action, EncodePart | SumBucket) and action.attempt.pass_id.step >= since
        if not isinstance(action, Send) or not isinstance(action.message, ReducePart | ReducedPart):
            return False
        if action.message.key.attempt.pass_id.step < since:
            return False
        victim.append(action.to.peer)
        return action.to.peer == victim[0]

    def guarded(self: StageDriver, action: PeerAction) -> None:
        if not keeps(action):
            carry_out(self, action)

    setattr(StageDriver, "_carry_out", guarded)  # noqa: B010 - mypy would have it be a method


def _give_false_states(since: int) -> None:
    """Give false numbers to peers that fetch a copy of this peer's state."""
    copied = LiveState.copied

    def falsified(self: LiveState, copy: Callable[[HeldState], Any]) -> Future[Any]:
        def of_other_numbers(held: HeldState) -> Any:
            if held.version >= since:
                held._tensors = {name: tensor.detach() * 1.5 for name, tensor in held._tensors.items()}
            return copy(held)

        return copied(self, of_other_numbers)

    setattr(LiveState, "copied", falsified)  # noqa: B010 - mypy would have it be a method


def _send_late(since: int) -> None:
    """Send each part and sum later, to everybody, requested or not."""
    carry_out = StageDriver._carry_out

    def sends(self: StageDriver, action: PeerAction) -> None:
        message = action.message if isinstance(action, Send) else None
        message = message.message if isinstance(message, Relay) else message
        if isinstance(message, ReducePart | ReducedPart) and message.key.attempt.pass_id.step >= since:
            asyncio.get_running_loop().call_later(LATE_PARTS_S, carry_out, self, action)
        else:
            carry_out(self, action)

    setattr(StageDriver, "_carry_out", sends)  # noqa: B010 - mypy would have it be a method


_EVERYTHING = (1 << 12) - 1
_FALSE: tuple[dict[str, Any], ...] = (
    {"capacity": 1e300},
    {"seconds_per_microbatch": 1e-6},
    {"done": _EVERYTHING, "forwarded": _EVERYTHING},
    {"queued": 10**6},
    {"reduced": 10**6},
    {"offered_uplink": 1e12, "downlink": 1e12},
    {"fenced": True},
    {"version": None},
    {"loading": 0},
    {"term": 10**6},
)


def _report_falsely(since: int, false: tuple[dict[str, Any], ...] = _FALSE) -> None:
    """Falsify some fields in each report, those of another dict of `false` each time."""
    carry_out = StageDriver._carry_out
    turns = itertools.cycle(false)

    def carries_out(self: StageDriver, action: PeerAction) -> None:
        if isinstance(action, Send) and isinstance(action.message, Status) and (action.message.version or 0) >= since:
            action = Send(action.to, replace(action.message, **next(turns)))
        carry_out(self, action)

    setattr(StageDriver, "_carry_out", carries_out)  # noqa: B010 - mypy would have it be a method


def _hoard(since: int) -> None:
    """Give up the state instead of a step, then load a state repeatedly without ever reporting it as loaded."""
    carry_out = StageDriver._carry_out

    def carries_out(self: StageDriver, action: PeerAction) -> None:
        if isinstance(action, Apply) and action.decision.step >= since:
            self.loop.post(ComputeFailed(action.attempt.pass_id, None, "it gives its state up"))
        else:
            carry_out(self, action)

    load = StageDriver._load

    async def loads(self: StageDriver, action: LoadState) -> None:
        assert self._keeper is not None
        while action.version >= since:
            await self._keeper.load(action)
        await load(self, action)

    setattr(StageDriver, "_carry_out", carries_out)  # noqa: B010 - mypy would have it be a method
    setattr(StageDriver, "_load", loads)  # noqa: B010 - mypy would have it be a method


def _flap(arguments: list[str], since: int) -> int:
    """Peers that are killed, one after the other: in step `since`, and then two steps after each comes back."""
    command, moment = [sys.executable, "-P", "-m", "peers", *arguments], f"StepApplied,step={since}"
    while True:
        code = subprocess.call([*command, f"--fault=kill@{moment}"], preexec_fn=_dies_with_its_parent)
        if code != -signal.SIGKILL:
            return code
        moment = "StepApplied:2"


def _dies_with_its_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    kind, first = sys.argv[1], int(sys.argv[2])
    del sys.argv[1:3]
    if kind == "flapping":
        sys.exit(_flap(sys.argv[1:], first))
    misbehave(kind, first)
    main()
