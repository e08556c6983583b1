"""What waits for others is counted right, whatever happens to it."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from swarm.net.send_queue import RelayedBytes, SendQueue, payload_bytes
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor, Attempt, PassId, StageIndex, StepNumber, SumKey, Term

ME, OTHERS = Actor("me", 1), (Actor("one", 1), Actor("two", 1))
ATTEMPT = Attempt(PassId(Term(1), StepNumber(0)), StageIndex(0), 0)


def is_of(message: m.Message, origin: Actor) -> bool:
    return isinstance(message, m.Relay) and message.origin == origin


@pytest.mark.parametrize("seed", range(5))
def test_the_count_is_that_of_what_is_queued(seed: int) -> None:
    rng = random.Random(seed)
    relayed = RelayedBytes(ME)
    queues = [SendQueue(relayed) for _ in range(4)]
    held: list[list[m.Message]] = [[] for _ in queues]
    for number in range(400):
        place, origin = rng.randrange(len(queues)), rng.choice((ME, *OTHERS))
        queue, mine = queues[place], held[place]
        match rng.randrange(20):
            case 0:
                queue.remove(lambda message, origin=origin: is_of(message, origin))  # type: ignore[misc]
                mine[:] = [each for each in mine if not is_of(each, origin)]
            case 1:
                assert queue.remove() == tuple(mine)
                mine.clear()
            case 2:
                queue.close()
                queues[place], held[place] = SendQueue(relayed), []
            case 3 | 4 | 5 | 6 if mine:
                assert queue.first == mine[0] and queue.take() == mine.pop(0)
            case _:
                part = m.ReducedPart(SumKey(ATTEMPT, number), bytes(rng.randrange(3)))
                message: m.Message = rng.choice((part, m.Relay(origin, Actor("away", 1), part), m.Ping(1)))
                queue.append(message)
                mine.append(message)
        count = Counter[Actor]()
        for each in [each for mine in held for each in mine]:
            if isinstance(each, m.Relay) and each.origin != ME:
                count[each.origin] += payload_bytes(each)
        assert [relayed.of(origin) for origin in OTHERS] == [count[origin] for origin in OTHERS]
        assert relayed.total == count.total() and [len(queue) for queue in queues] == [len(mine) for mine in held]
