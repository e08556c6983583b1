"""The simulated network does what a transport does: order, loss, hold, and what it tells of broken connections."""

from typing import Any

from swarm.protocol.ids import Actor
from swarm.protocol.io import LinkLost, LinkUp, Received
from swarm.protocol.messages import Leave
from swarm.simulation.kernel.network import Burst
from swarm.simulation.kernel.timeline import Process
from swarm.simulation.runs.plan import small_settings
from swarm.simulation.runs.world import World


class Ear:
    """A core that only listens."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, Any]] = []

    def handle(self, item: Any, now: float) -> list[Any]:
        self.heard.append((now, item))
        return []

    def next_wakeup(self) -> float | None:
        return None

    def words(self) -> list[str]:
        return [item.message.reason for _, item in self.heard if isinstance(item, Received)]


def world_of(names: str) -> tuple[World, list[Process]]:
    world = World(small_settings(stages=1, microbatches=1, steps=1, replicas=1), seed=1)
    for name in names:
        world.add(Process(world, Actor(name, 1), Ear()))
    return world, world.processes


def say(world: World, source: Process, target: Process, word: str) -> None:
    world.network.send(source, target.actor, Leave(source.actor, word))


def run(world: World, until: float) -> None:
    world.run(until, 10_000, lambda: False)
    world.now = until


def test_a_healthy_link_keeps_order_and_tells_both_ends_that_it_is_up() -> None:
    world, (a, b) = world_of("ab")
    for word in "12345678":
        say(world, a, b, word)
    run(world, 1.0)
    assert b.core.words() == list("12345678")
    for process, other in ((a, b), (b, a)):
        assert [item for _, item in process.core.heard if isinstance(item, LinkUp)] == [LinkUp(other.actor)]


def test_a_killed_process_is_noticed_by_those_connected_to_it() -> None:
    world, (a, b, c) = world_of("abc")
    say(world, a, b, "hello")
    run(world, 1.0)
    world.crash(b)
    run(world, 2.0)
    assert [item for _, item in a.core.heard if isinstance(item, LinkLost)] == [LinkLost(b.actor)]
    assert not c.core.heard
    say(world, c, b, "anybody?")
    run(world, 3.0)
    assert c.core.heard[-1][1] == LinkLost(b.actor)


def test_a_stalled_process_is_not_noticed_and_finds_its_backlog_in_order() -> None:
    world, (a, b) = world_of("ab")
    say(world, a, b, "before")
    run(world, 1.0)
    b.stall()
    for word in "123":
        say(world, a, b, word)
    run(world, 5.0)
    assert b.core.words() == ["before"]
    assert not [item for _, item in a.core.heard if isinstance(item, LinkLost)]
    b.resume()
    assert b.core.words() == ["before", "1", "2", "3"]


def test_an_unnoticed_partition_delays_and_a_noticed_one_loses() -> None:
    for noticed, words in ((None, ["held"]), (0.1, [])):
        world, (a, b) = world_of("ab")
        world.network.partition(a, b, 2.0, one_way=False, noticed_after=noticed)
        assert world.network.cut(a, b)
        say(world, a, b, "held")
        run(world, 1.9)
        assert b.core.words() == []
        run(world, 4.0)
        assert b.core.words() == words
        lost = [item for _, item in b.core.heard if isinstance(item, LinkLost)]
        assert lost == ([] if noticed is None else [LinkLost(a.actor)])
        assert (noticed is None) or b.core.heard[-1][1] == LinkUp(a.actor)


def test_a_one_way_partition_leaves_the_other_way_open() -> None:
    world, (a, b) = world_of("ab")
    world.network.partition(a, b, 2.0, one_way=True, noticed_after=None)
    say(world, a, b, "blocked")
    say(world, b, a, "open")
    run(world, 1.0)
    assert a.core.words() == ["open"] and b.core.words() == []


def test_bursts_drop_repeat_and_reorder() -> None:
    def words(**weather: float) -> list[str]:
        world, (a, b) = world_of("ab")
        world.network.burst(Burst(a.pid, until=1.0, **weather))
        for word in "abcdefghij":
            say(world, a, b, word)
        run(world, 5.0)
        return b.core.words()

    assert 0 < len(words(drop=0.5)) < 10
    assert set(words(duplicate=1.0)) == set("abcdefghij") and len(words(duplicate=1.0)) == 20
    overtaken = words(reorder=0.5)
    assert sorted(overtaken) == list("abcdefghij") != overtaken
