"""A peer that misbehaves from a step on: `insider_peer.py KIND STEP join ...`, then as `swarm-peer`.

For benchmarks/insiders.py only. What `--fault` can do is not among its kinds.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from torch import Tensor

from peers.cli import main
from peers.stage.driver import StageDriver
from swarm.compute.stage import Stage
from swarm.compute.sums import Accumulator
from swarm.protocol.io import Send
from swarm.protocol.messages import ReducedPart, ReducePart
from swarm.protocol.peer.io import Backward, EncodePart, Forward, PeerAction, SumBucket

FACTORS = {"negated": -1.0, "a quarter more": 1.25, "exaggerated": -300.0, "enormous": 1e20, "nan": float("nan")}
"""What it multiplies its gradients by before it adds them."""
KINDS = (*FACTORS, "unreduced", "withholding", "slow")
SLOW_S = 0.3
"""How much longer each of its computations takes."""


def misbehave(kind: str, since: int) -> None:
    """Change this process. `since`: the first step in which it misbehaves."""
    if kind in FACTORS:
        _multiply(FACTORS[kind], since)
    elif kind == "slow":
        _delay(since)
    else:
        _keep_back(kind, since)


def _multiply(factor: float, since: int) -> None:
    add_one = Accumulator.add_one

    def multiplied(self: Accumulator, index: int, gradient: Tensor, *, step: int | None = None) -> None:
        lies = step is not None and step >= since
        add_one(self, index, gradient * factor if lies else gradient, step=step)

    setattr(Accumulator, "add_one", multiplied)  # noqa: B010 - mypy would have it be a method


def _delay(since: int) -> None:
    for name in ("forward", "backward"):
        compute: Any = getattr(Stage, name)

        def delayed(self: Stage, action: Forward | Backward, compute: Any = compute) -> Any:
            if action.pass_id.step >= since:
                time.sleep(SLOW_S)
            return compute(self, action)

        setattr(Stage, name, delayed)


def _keep_back(kind: str, since: int) -> None:
    """`unreduced`: it has no part in a reduce. `withholding`: one sibling gets neither its parts nor its sums."""
    carry_out = StageDriver._carry_out
    victim: list[str] = []

    def keeps(action: PeerAction) -> bool:
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


if __name__ == "__main__":
    misbehave(sys.argv[1], int(sys.argv[2]))
    del sys.argv[1:3]
    main()
