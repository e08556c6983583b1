"""Members are listed by stage, without a stage and without a connection just as looking through all of them would."""

from random import Random

import pytest

from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.ids import Actor, StageIndex

STAGES = 3


def agrees(members: Members) -> None:
    everyone = list(members)
    for stage in range(STAGES):
        of_stage = sorted((m for m in everyone if m.stage == stage), key=lambda m: m.actor)
        assert members.of_stage(stage) == of_stage
        assert members.crew(stage) == [m for m in of_stage if not (m.given_up or m.benched or m.leaving_since)]
    assert members.unplaced == [m for m in everyone if m.stage is None]
    assert members.lost == [m for m in everyone if m.lost_at is not None]


def change(member: Member, rng: Random) -> None:
    match rng.randrange(8):
        case 0:
            member.place(StageIndex(rng.randrange(STAGES)), now=1.0)
        case 1:
            member.disconnect(rng.choice((1.0, 2.0)))
        case 2:
            member.reconnect()
        case 3:
            member.yield_place()
        case 4:
            member.has_state()
        case 5:
            member.bench(rng.random() < 0.5)
        case 6:
            member.move(StageIndex(rng.randrange(STAGES)), version=1, number=1, now=1.0)
        case _:
            if rng.random() < 0.1:
                member.leave(1.0)


@pytest.mark.parametrize("seed", range(20))
def test_the_lists_are_right_whatever_happens_to_members(seed: int) -> None:
    rng, members, gone = Random(seed), Members(), []
    for number in range(200):
        here = list(members)
        if not here or rng.random() < 0.2:
            members.add(Actor(f"{rng.randrange(100)}", number), 0.0)
        elif rng.random() < 0.1:
            gone.append(rng.choice(here))
            members.remove(gone[-1].actor)
        else:
            change(rng.choice(here), rng)
        if gone:
            change(rng.choice(gone), rng)  # who is gone is in no list
        agrees(members)


def test_the_older_incarnation_of_a_peer_is_found_while_it_is_here() -> None:
    members = Members()
    one, two = Actor("peer", 1), Actor("peer", 2)
    members.add(one, 0.0)
    assert members.older(two) == [one] and members.older(one) == [] and members.older(Actor("other", 9)) == []
    members.remove(one)
    assert members.older(two) == []
