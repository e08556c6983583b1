"""Islands: groups of peers that cannot reach each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.protocol.coordinator.passes.partitions import islands
from swarm.protocol.ids import Actor, Pair

ACTORS = [Actor(name, 1) for name in "abcdef"]
PAIRS = [Pair((a, b)) for a in ACTORS for b in ACTORS if a < b]


def test_nobody_blocked_is_one_group() -> None:
    assert islands(ACTORS, ()) == (tuple(ACTORS),)
    assert islands([], ()) == ()


def test_one_that_all_reach_holds_them_together() -> None:
    public = ACTORS[3]
    assert islands(ACTORS, [pair for pair in PAIRS if public not in pair]) == (tuple(ACTORS),)
    assert islands(ACTORS, PAIRS) == tuple((actor,) for actor in ACTORS)


@given(st.sets(st.sampled_from(PAIRS)))
def test_groups_are_whole_and_apart(blocked: set[Pair]) -> None:
    groups = islands(reversed(ACTORS), blocked)
    assert sorted(actor for group in groups for actor in group) == ACTORS
    assert list(groups) == sorted(groups)
    for n, group in enumerate(groups):
        for other in groups[n + 1 :]:
            assert all(Pair((a, b)) in blocked for a in group for b in other)
        assert islands(group, blocked) == (group,), "it holds together without the others"
