"""The fleet: its internet and machines have the figures they are made of, its optimum is one, its runs are exact."""

import dataclasses
import math
from typing import Any

import pytest

from benchmarks.fleet.machine import SPREAD, UPLINK_BYTES_PER_S, FleetMachine, machine
from benchmarks.fleet.optimum import optimum, visits_per_s
from benchmarks.fleet.payload import Ballast
from benchmarks.fleet.plan import WORKLOAD, FleetPlan, workload
from benchmarks.fleet.regions import FLOW_BYTES_PER_S, ROUND_TRIP_S, regions
from benchmarks.fleet.traffic import BETWEEN, FROM, TO
from benchmarks.fleet.uplink import WEIGHTS
from benchmarks.fleet.world import FleetWorld
from swarm.events import Event, StageAmended
from swarm.net import channel
from swarm.net.handshake import Channel
from swarm.protocol.ids import Actor, Direction, FrameKey, Microbatch, PassId, StepNumber, Term
from swarm.protocol.io import Received
from swarm.protocol.messages import Frame, Leave, Message

PLAN = FleetPlan(peers=12, stages=3, microbatches_per_replica=6)


def weigh(sender: Actor, receiver: Actor, message: Message) -> int:
    return 200


def world_of(plan: FleetPlan, steps: int, seconds: float = 3600.0) -> FleetWorld:
    world = plan.world(seconds, weigh)
    world.run_steps(steps, seconds)
    return world


# ---------------------------------------------------------------- what it is made of


def test_regions_lie_within_the_known_ranges_and_reach_both_ends() -> None:
    made = regions(1)
    assert made.count == 10 and made == regions(1) != regions(2)
    pairs = [(a, b) for a in range(10) for b in range(a)]
    round_trips = [2 * made.one_way_s[a][b] for a, b in pairs]
    flows = [made.flow_bytes_per_s[a][b] for a, b in pairs]
    assert (min(round_trips), max(round_trips)) == pytest.approx(ROUND_TRIP_S)
    assert (max(flows), min(flows)) == pytest.approx(FLOW_BYTES_PER_S)
    assert all(made.one_way_s[a][b] == made.one_way_s[b][a] for a, b in pairs)
    assert all(made.flow_bytes_per_s[a][a] == math.inf for a in range(10))


def test_machines_are_functions_of_their_number_and_spread_over_their_ranges() -> None:
    fleet = [machine(number, 7, 10) for number in range(2000)]
    assert fleet[:5] == [machine(number, 7, 10) for number in range(5)]
    speeds, ups = [each.speed for each in fleet], [each.up for each in fleet]
    assert SPREAD * 0.97 <= max(speeds) / min(speeds) <= SPREAD
    assert UPLINK_BYTES_PER_S[0] <= min(ups) < max(ups) <= UPLINK_BYTES_PER_S[1]
    assert {each.region for each in fleet} == set(range(10))


# ---------------------------------------------------------------- links


def two(up: float, down: float) -> tuple[FleetWorld, list[Any]]:
    """A world of one stage whose coordinator is dead, and two of its peers that have the line given."""
    world = dataclasses.replace(PLAN, peers=3, stages=1).world(10.0, weigh)
    world.run(2.0, 1 << 30, lambda: False)
    world.crash(world.coordinator)
    peers = list(world.peers())
    for peer in peers:
        peer.machine = FleetMachine(1.0, peer.machine.region, up, down)
    return world, peers


def ear(world: FleetWorld, peer: Any) -> list[tuple[float, Message]]:
    """What is sent to the peer from now on, and after how many seconds it comes; its core hears nothing."""
    heard: list[tuple[float, Message]] = []
    start = world.now
    peer.feed = lambda item: heard.append((world.now - start, item.message)) if isinstance(item, Received) else None
    return heard


def frame(number: int, nbytes: int) -> Frame:
    key = FrameKey(PassId(Term(0), StepNumber(0)), 1, Direction.FORWARD, Microbatch(number))
    return Frame(key, Ballast(nbytes))


def test_frames_wait_for_those_before_them_and_control_does_not() -> None:
    world, (a, b, _) = two(up=1e6, down=2e6)
    heard, delay = ear(world, b), world.links.one_way_s(a, b)
    for number in range(3):
        world.links.send(a, b.actor, frame(number, 1_000_000 - 60))
    world.links.send(a, b.actor, Leave(a.actor, "by the way"))
    world.run(world.now + 10, 1 << 30, lambda: False)
    assert next(at for at, message in heard if isinstance(message, Leave)) < delay + 0.01
    frames = [at for at, message in heard if isinstance(message, Frame) and message.key.boundary]  # not tokens
    assert frames == pytest.approx([delay + 1.0, delay + 2.0, delay + 3.0], abs=0.01)
    assert world.links.traffic.counts[BETWEEN, "Frame"].nbytes == 3_000_000


def test_a_gradient_does_not_wait_for_the_activations_before_it() -> None:
    world, (a, b, _) = two(up=1e6, down=2e6)
    heard = ear(world, b)
    for number in range(4):
        world.links.send(a, b.actor, frame(number, 1_000_000))
    gradient = dataclasses.replace(frame(9, 1_000_000).key, direction=Direction.BACKWARD)
    world.links.send(a, b.actor, Frame(gradient, Ballast(1_000_000)))
    world.run(world.now + 10, 1 << 30, lambda: False)
    came = [message.key.microbatch for _, message in heard if isinstance(message, Frame) and message.key.boundary]
    assert came == [0, 9, 1, 2, 3]


def test_lines_are_shared_as_a_limited_uplink_of_a_real_peer_is() -> None:
    """The simulator may not import it."""
    kinds = (Channel.GRADIENT, Channel.ACTIVATION, Channel.REDUCE, Channel.BULK)
    assert [*WEIGHTS.values()] == [channel.WEIGHTS[kind] for kind in kinds]


def test_a_narrow_line_down_keeps_those_waiting_who_send_at_once() -> None:
    world, (a, b, c) = two(up=1e8, down=1e6)
    heard = ear(world, b)
    for number, sender in enumerate((a, c)):
        world.links.send(sender, b.actor, frame(number, 1_000_000))
    world.run(world.now + 5, 1 << 30, lambda: len(heard) == 2)
    assert [at for at, _ in heard] == pytest.approx([1.0, 2.0], abs=0.3)


# ---------------------------------------------------------------- the optimum


def test_the_optimum_of_equal_machines_is_their_rate_shared_over_the_stages() -> None:
    plain = FleetMachine(speed=1.0, region=0, up=1e12, down=1e12)
    assert optimum([plain] * 12, WORKLOAD, 4) == pytest.approx(3 / WORKLOAD.seconds)
    narrow = dataclasses.replace(plain, up=WORKLOAD.frame_bytes / 10)
    assert visits_per_s(narrow, WORKLOAD, 2) == pytest.approx(1 / 20)
    assert optimum([narrow] * 12, WORKLOAD, 2) == pytest.approx(6 / 10), "at the ends one frame crosses for a visit"
    assert optimum([narrow] * 12, WORKLOAD, 1) == pytest.approx(12 / WORKLOAD.seconds), "of one stage none crosses"


def test_the_optimum_is_what_a_search_over_all_fractions_finds() -> None:
    fleet = [machine(number, 3, 10) for number in range(40)]
    rates = [(visits_per_s(each, WORKLOAD, 1), visits_per_s(each, WORKLOAD, 2)) for each in fleet]

    def possible(rate: float) -> bool:
        """Give the ends just enough, from those who lose least by leaving the middle, a thousandth at a time."""
        lacking, middle = 2 * rate, sum(m for _, m in rates)
        for end, mid in sorted(rates, key=lambda r: r[1] / r[0]):
            for _ in range(1000):
                if lacking <= 0:
                    break
                lacking -= end / 1000
                middle -= mid / 1000
        return lacking <= 0 and middle >= 3 * rate

    best = optimum(fleet, WORKLOAD, 5)
    assert possible(best * 0.999) and not possible(best * 1.001)


# ---------------------------------------------------------------- runs


def test_steps_are_decided_and_the_same_seed_gives_the_same_run() -> None:
    one, other = world_of(PLAN, 2), world_of(PLAN, 2)
    assert len(one.journal.steps) == 2
    assert one.journal.steps == other.journal.steps and one.events == other.events
    assert sum(peer.computed for peer in one.peers()) >= 2 * PLAN.microbatches * PLAN.stages
    best = PLAN.microbatches / optimum([peer.machine for peer in one.peers()], WORKLOAD, PLAN.stages)
    assert all(step.seconds > best for step in one.journal.steps), "nothing is faster than the bound"
    ways = {way for way, _ in one.links.traffic.counts}
    assert ways == {FROM, TO, BETWEEN}


def test_sums_are_as_small_as_their_averaging_makes_them() -> None:
    def nbytes(averaging: str) -> int:
        made = workload(averaging)
        return made.buckets * made.bucket_bytes

    assert nbytes("int4") == pytest.approx(nbytes("none") * 4.25 / 32, rel=0.001)
    assert nbytes("dither:1") == pytest.approx(nbytes("none") * 3.29 / 32, rel=0.001)
    assert not workload("dither:1").compressed, "exact, so nothing is carried over"
    low_rank = workload("powersgd:4")
    assert (low_rank.buckets, low_rank.first_round) == (2, 1) and nbytes("powersgd:4") < nbytes("none") / 100
    assert low_rank.compressed and not WORKLOAD.compressed
    for unknown in ("int3", "powersgd:", "powersgd:0"):
        with pytest.raises(ValueError, match="is none of"):
            workload(unknown)


def test_peers_that_say_what_they_can_do_and_send_small_sums_make_faster_steps() -> None:
    told = dataclasses.replace(PLAN, workload=workload("powersgd:4"), offers=True)
    plain, faster = world_of(PLAN, 2).journal.steps, world_of(told, 2).journal.steps
    assert faster[1].decided_at < 0.7 * plain[1].decided_at


def test_the_run_goes_on_while_machines_come_and_go() -> None:
    plan = dataclasses.replace(PLAN, peers=20, departures_per_node_hour=3.0, step_budget_s=200.0, seed=5)
    world = plan.world(1500.0, weigh)
    world.run_steps(6, 1500.0)
    gone = [process for process in world.processes if not process.alive]
    assert len(gone) >= 3 and world.journal.counts["PeerFenced"] >= 1
    assert len(world.journal.steps) == 6


def test_what_a_slow_peer_gave_up_is_not_taken_from_the_next_one_too() -> None:
    """Among seven replicas of very different speed a microbatch went from one slow peer to the other for ever."""
    world = dataclasses.replace(PLAN, peers=20, step_budget_s=200.0, seed=5).world(200.0, weigh)
    moved: list[tuple[int, int]] = []
    note = world.journal.note

    def noted(event: Event, now: float) -> None:
        if isinstance(event, StageAmended) and "slow and released" in event.reason:
            moved.extend((event.stage, m) for m in event.moved)
        note(event, now)

    world.journal.note = noted  # type: ignore[method-assign]
    world.run_steps(1, 200.0)
    assert len(moved) > 5 and len(moved) == len(set(moved)), "in one pass"


@pytest.mark.parametrize(
    "plan",
    [
        FleetPlan(peers=16, stages=8, microbatches_per_replica=24),
        FleetPlan(peers=6, stages=2, microbatches_per_replica=8, workload=dataclasses.replace(WORKLOAD, apply_s=7.0)),
    ],
    ids=["while a deep pipeline fills, its first stages finish nothing", "who applies a step does not begin the next"],
)
def test_no_sound_machine_is_fenced(plan: FleetPlan) -> None:
    """With the default budget, a second a microbatch, and a deadline of six."""
    even = dataclasses.replace(plan, spread=1.0001, uplinks=(2e8, 2.0001e8), step_budget_s=60.0, offers=True)
    world = even.world(3600.0, weigh)
    world.run_steps(3, 3600.0)
    assert len(world.journal.steps) == 3 and not world.journal.counts["PeerFenced"]
