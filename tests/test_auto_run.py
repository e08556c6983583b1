"""Runs that leave their codecs to be chosen, real cores and real compute in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from core_swarm import Swarm, manifest, runs

from swarm.events import CodecChosen
from swarm.protocol import actions as act
from swarm.protocol.ids import Actor, PassKind
from swarm.protocol.messages import CodecPair

FAST, SLOW = 1e9, 50_000.0
"""Bytes a second. A microbatch takes 20 ms to compute, and 3 kB in int8 both ways."""
START = CodecPair("int8", "int8")


@pytest.fixture
def run() -> Iterator[Callable[..., Swarm]]:
    yield from runs()


def uplinks(rate: Callable[[int], float]) -> Callable[[Swarm, Actor, object], None]:
    """A hook: every peer says, when a step opens, that it sends `rate(step)` bytes a second."""

    def hook(swarm: Swarm, actor: Actor, action: object) -> None:
        if isinstance(action, act.Begin) and action.kind is PassKind.TRAIN:
            swarm.tell(actor, act.LinksMeasured(rate(action.pass_id.step)))

    return hook


def codecs(swarm: Swarm) -> list[tuple[CodecPair, ...]]:
    return [swarm.decisions[step].codecs for step in sorted(swarm.decisions)]


def test_slow_links_get_harder_codecs_and_the_answer_is_the_references(run) -> None:
    swarm = run(manifest("auto", 3, backward="auto"), hook=uplinks(lambda step: SLOW))
    chosen = codecs(swarm)
    assert chosen[0] == (START, START), "nothing is measured yet"
    assert chosen[-1] == (CodecPair("int4", "log4"),) * 2
    assert swarm.digests() == swarm.reference()
    assert swarm.digests() != swarm.plain(), "which knows nothing of what was chosen"
    told = [event for event in swarm.events if isinstance(event, CodecChosen)]
    assert [(e.step, e.boundary, e.direction, e.codec, e.before) for e in told[:2]] == [
        (0, 1, "forward", "int8", ""),
        (0, 1, "backward", "int8", ""),
    ]
    assert any("carries 0.05 MB/s" in event.reason for event in told)
