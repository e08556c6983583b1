"""The record of a group: whatever is lost, repeated, late, cut off or killed, one history stands, and it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from group_world import BEAT_S, GroupWorld

from swarm.protocol.ids import Actor, StepNumber, Term
from swarm.protocol.messages import ArchivedEntry, Canvass, Decision, DecisionEntry, TermEntry, Vote
from swarm.protocol.raft.io import WriteGroup
from swarm.protocol.raft.log import RaftLog, Standing, Stored
from swarm.protocol.raft.raft import BATCH, Part, Raft
from swarm.simulation.toy.member_disk import MemberDisk


def walk(seed: int, size: int = 3) -> GroupWorld:
    world = GroupWorld(seed, size)
    for _ in range(200 * (size + 1)):
        world.step()
    before = len(world.standing)
    world.calm()
    leaders = [member.core for member in world.members.values() if member.core.leads]
    assert len(leaders) == 1, "with everybody well, one leads"
    world.propose(leaders[0])
    world.calm()
    assert len(world.standing) > before, "and the record goes on"
    assert world.standing[-1] == TermEntry(leaders[0].ballot, Term(world.terms))
    for disk in world.disks.values():
        assert disk.entries[: disk.committed] == world.standing, "and is the same everywhere"
    return world


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_one_history_stands_on_random_schedules(size: int) -> None:
    walks = 400 if size == 3 else 60
    stood = sum(len(walk(seed, size).standing) for seed in range(walks))
    assert stood > 2 * walks, "and these were no idle walks"


def _twice() -> list[tuple[str, Any]]:
    return [("_may_vote_for", lambda self, sender: True)]


def _alone() -> list[tuple[str, Any]]:
    def commit(self: Raft) -> None:
        if self.log.ballot_at(self._durable) == self.ballot:
            self._advance(self._durable)

    return [("_commit", commit)]


def _shorter() -> list[tuple[str, Any]]:
    canvassed = Raft._on_canvass

    def heard(self: Raft, sender: Actor, canvass: Canvass, now: float) -> None:
        canvassed(self, sender, Canvass(canvass.ballot, 1 << 30, 1 << 30, canvass.binding), now)

    return [("_on_canvass", heard)]


def _early() -> list[tuple[str, Any]]:
    """What is said does not wait for the disk."""

    def release(self: Raft) -> None:
        while self._held_back:
            self._out.append(self._held_back.popleft()[1])

    return [("_release", release)]


@pytest.mark.parametrize("broken", [_twice, _alone, _shorter, _early])
def test_a_broken_record_is_caught(broken: Callable[[], list[tuple[str, Any]]], monkeypatch: Any) -> None:
    for name, value in broken():
        monkeypatch.setattr(Raft, name, value)
    with pytest.raises(AssertionError):
        for seed in range(2000):
            walk(seed)


def test_a_vote_outlives_a_restart() -> None:
    world = GroupWorld(0, loss=0.0)
    one, other, voter = world.actors

    def canvassed(by: Actor) -> bool:
        world.do(voter, lambda core: core.hear(by, Canvass(1, 0, 0, binding=True), 0.0))
        world.write(voter)
        vote = next(message for _, to, message in world.messages if to == by)
        assert isinstance(vote, Vote) and vote.ballot == 1
        return vote.granted

    assert canvassed(one)
    world.crash(voter)
    world.start(voter)
    assert not canvassed(other)
    world.messages.clear()
    assert canvassed(one), "the same vote may be told again"


def settle(world: GroupWorld) -> Raft:
    """The leader after a while in which all is well."""
    world.calm()
    (leader,) = [member.core for member in world.members.values() if member.core.leads]
    return leader


def test_the_first_of_the_group_leads_when_all_start_together() -> None:
    world = GroupWorld(0, loss=0.0)
    assert settle(world).me == world.actors[0]
    assert all(member.core.leader == world.actors[0] for member in world.members.values())


def test_who_is_merely_cut_off_disturbs_nobody() -> None:
    """It hears nothing and asks, over and over; the others hear their leader, and no ballot grows."""
    world = GroupWorld(0, loss=0.0)
    leader = settle(world)
    ballot, deaf = leader.ballot, world.actors[2]
    asked = 0
    for _ in range(200):
        world.now += BEAT_S / 4
        for actor in world.actors:
            world.do(actor, lambda core: core.tick(world.now))
        while world.messages:
            _, to, message = world.messages[0]
            asked += isinstance(message, Canvass)
            if to == deaf:
                world.messages.pop(0)
            else:
                world.deliver(0)
    assert asked > 10 and world.members[deaf].core.part is Part.ASKS
    assert leader.leads and leader.ballot == ballot == world.members[deaf].core.ballot


def test_a_leader_that_hears_no_majority_steps_down() -> None:
    world = GroupWorld(0, loss=0.0)
    leader = settle(world)
    world.now += leader.patience_s
    world.do(leader.me, lambda core: core.tick(world.now))
    assert not leader.leads and leader.why_not == "heard from 0 of 2 other members"


def test_a_member_that_was_away_gets_what_it_lacks_in_messages_of_a_bounded_size() -> None:
    world = GroupWorld(0, loss=0.0)
    leader = settle(world)
    away = world.actors[2]
    world.crash(away)
    world.disks[away] = MemberDisk()
    for _ in range(3 * BATCH):
        world.propose(leader)
        world.settle()
    assert leader.log.base > 2 * BATCH, "what is settled is on disk alone"
    world.start(away)
    world.calm()
    assert len(world.from_disk) >= 3
    assert world.disks[away].entries == world.disks[leader.me].entries


def test_a_write_replaces_what_the_log_held_from_its_first_entry_on() -> None:
    disk = MemberDisk(entries=[TermEntry(1, Term(1)), TermEntry(1, Term(2))])
    disk.write(WriteGroup(1, 2, "a", 2, (TermEntry(2, Term(9)),), 1))
    assert disk.entries == [TermEntry(1, Term(1)), TermEntry(2, Term(9))]
    stored = disk.stored()
    assert stored.standing.term == 1 and stored.tail == (TermEntry(2, Term(9)),) and stored.starts == ((1, 1),)


def decided(step: int, term: int = 1) -> DecisionEntry:
    return DecisionEntry(1, Decision(Term(term), StepNumber(step), 1.0, 1.0, 1, 1.0, ()))


def test_a_rollback_goes_back_to_the_decision_that_made_the_checkpoint() -> None:
    standing = Standing()
    for entry in (TermEntry(1, Term(1)), decided(0), decided(1), ArchivedEntry(1, 2, Term(1), ("a",)), decided(2)):
        standing = standing.after(entry)
    assert (standing.version, standing.archived.version if standing.archived else None) == (3, 2)
    back = standing.after(TermEntry(1, Term(4), rollback_to=2))
    assert (back.version, back.term, back.rolled_back_in) == (2, 4, 4)
    assert back.decision == decided(1).decision and back.archived == standing.archived
    fresh = back.after(decided(2, 4)).after(TermEntry(1, Term(5), rollback_to=0))
    assert (fresh.version, fresh.decision, fresh.archived) == (0, None, None)


def test_a_log_knows_the_ballot_of_entries_that_left_memory() -> None:
    log = RaftLog(Stored())
    log.extend([TermEntry(1, Term(1)), TermEntry(1, Term(2)), TermEntry(4, Term(3)), TermEntry(5, Term(4))])
    log.release(3)
    assert [log.ballot_at(index) for index in range(5)] == [0, 1, 1, 4, 5]
    assert log.agrees(3, 4) and not log.agrees(2, 4) and not log.agrees(5, 5)
    log.cut(4)
    assert (log.last, log.last_ballot) == (3, 4)
    with pytest.raises(AssertionError):
        log.cut(3)
