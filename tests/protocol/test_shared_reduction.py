"""Two stages reduce what both hold: one by hand, with two peers in each."""

import pytest

from swarm.events import FrameRefused
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor, Attempt, PartKey, PassId, StageIndex, StepNumber, SumKey, Term
from swarm.protocol.io import Emit, Send
from swarm.protocol.outbox import Outbox
from swarm.protocol.peer.all_reduce import AllReduce, BucketCounts
from swarm.protocol.peer.indirect_siblings import IndirectSiblings
from swarm.protocol.peer.io import Assemble, Assembled, BucketSummed, EncodePart, PartEncoded, SumBucket
from swarm.protocol.timeouts import Observed

FIRST, LAST = (Actor("a", 1), Actor("b", 1)), (Actor("y", 1), Actor("z", 1))
PASS = PassId(Term(1), StepNumber(0))
HERE, THERE = Attempt(PASS, StageIndex(0), 3, 5), Attempt(PASS, StageIndex(2), 5, 3)
EVERYTHING = 0b1111
SHARED = 4


def _table(attempt: Attempt, roster: tuple[Actor, ...]) -> m.StageTable:
    return m.StageTable(attempt.number, roster, (0, 0, 1, 1))


class Peer:
    """One peer of the first or the last stage, which has done half of the microbatches."""

    def __init__(self, me: Actor, *, last: bool = False, done: int = 0b0011, pauses: Observed | None = None) -> None:
        self.out = Outbox(me)
        attempt, own = (THERE, LAST) if last else (HERE, FIRST)
        self.reduction = AllReduce(
            me=me,
            attempt=attempt,
            table=_table(attempt, own),
            partner=(StageIndex(0), _table(HERE, FIRST)) if last else (StageIndex(2), _table(THERE, LAST)),
            accumulated=done,
            receipt=m.Receipt(inputs=1),
            microbatches=4,
            buckets=BucketCounts(SHARED + 1, shared=SHARED),
            carry=None,
            pauses=pauses or Observed(),
            indirect=IndirectSiblings(),
            wanted_around={},
            budget_s=60.0,
            out=self.out,
            now=0.0,
        )
        self.begun = self.out.take()

    def part(self, bucket: int, contributor: Actor, done: int, attempt: Attempt = HERE) -> list[object]:
        key = PartKey(attempt, bucket, contributor)
        self.reduction.on_part(m.ReducePart(key, done, contributor.peer, m.Receipt(inputs=10)), 0.0)
        return list(self.out.take())


def messages(actions: list[object], to: Actor) -> list[object]:
    return [action.message for action in actions if isinstance(action, Send) and action.to == to]


def test_shared_buckets_go_round_the_union_and_others_round_the_own_roster() -> None:
    encoded = {}
    for me, last in ((FIRST[0], False), (FIRST[1], False), (LAST[0], True), (LAST[1], True)):
        begun = Peer(me, last=last).begun
        encoded[me.peer] = [action.bucket for action in begun if isinstance(action, EncodePart)]
    assert encoded == {"a": [1, 2, 3], "b": [0, 2, 3, 4], "y": [0, 1, 3], "z": [0, 1, 2, 4]}


def test_a_part_must_contain_the_microbatches_of_its_contributor_in_either_stage() -> None:
    """Else its contributor, and nobody else, is awaited still."""
    peer = Peer(FIRST[0])
    assert not peer.part(0, LAST[1], 0b1100)
    for liar in (LAST[0], FIRST[1]):
        (refused,) = peer.part(0, liar, 0b0111)
        assert isinstance(refused, Emit) and isinstance(refused.event, FrameRefused)
        assert refused.event.sender == str(liar)
        assert not peer.part(0, liar, 0b0111), "the log is told once"
    assert {actor for bucket, actor in peer.reduction._parts_lacking() if bucket == 0} == {LAST[0], FIRST[1]}
    assert not peer.part(0, LAST[0], 0b0011)
    (order,) = peer.part(0, FIRST[1], 0b1100)
    assert order == SumBucket(HERE, 0, ("b", "y", "z")), "the lower stage first, whoever came first"


def test_a_bucket_of_one_stage_takes_no_part_of_the_other() -> None:
    peer = Peer(FIRST[0])
    assert not peer.part(SHARED, LAST[0], 0b1100)
    assert [type(action) for action in peer.part(SHARED, FIRST[1], 0b1100)] == [SumBucket]


def test_everybody_is_told_in_the_names_of_its_own_stage() -> None:
    peer = Peer(FIRST[0])
    peer.reduction.on_part_encoded(PartEncoded(HERE, 2, "mine"))
    (sent,) = messages(peer.out.take(), LAST[0])
    assert isinstance(sent, m.ReducePart) and sent.key == PartKey(THERE, 2, FIRST[0])
    for contributor, done in ((FIRST[1], 0b1100), (LAST[0], 0b0011), (LAST[1], 0b1100)):
        peer.part(0, contributor, done)
    peer.reduction.on_bucket_summed(BucketSummed(HERE, 0, "sum"))
    actions = list(peer.out.take())
    for actor, attempt in ((FIRST[1], HERE), (LAST[0], THERE), (LAST[1], THERE)):
        assert messages(actions, actor) == [m.ReducedPart(SumKey(attempt, 0), "sum", None)]
    peer.reduction.on_want(LAST[1], SumKey(HERE, 0), None)
    assert messages(peer.out.take(), LAST[1]) == [m.ReducedPart(SumKey(THERE, 0), "sum", None)]
    peer.reduction.ask_again()
    (want,) = messages(list(peer.out.take()), LAST[0])
    assert want == m.Want((SumKey(THERE, 2),))


def test_the_receipt_is_that_of_the_own_stage() -> None:
    peer = Peer(FIRST[0])
    for bucket, owner in enumerate((FIRST[0], FIRST[1], LAST[0], LAST[1])):
        if bucket:
            peer.reduction.on_sum(owner, m.ReducedPart(SumKey(HERE, bucket), "sum", m.Receipt(inputs=99)), 0.0)
            continue
        for contributor, done in ((FIRST[1], 0b1100), (LAST[0], 0b0011), (LAST[1], 0b1100)):
            peer.part(0, contributor, done)
    peer.reduction.on_bucket_summed(BucketSummed(HERE, 0, "sum"))
    peer.part(SHARED, FIRST[1], 0b1100)
    peer.reduction.on_bucket_summed(BucketSummed(HERE, SHARED, "sum"))
    assert Assemble(HERE) in peer.out.take()
    prepared = peer.reduction.on_assembled(Assembled(HERE, "digest", 1.0, 0.0, shared="both"))
    assert (prepared.receipt, prepared.shared) == (m.Receipt(inputs=11), "both")


def test_a_sum_is_taken_of_its_reducer_alone() -> None:
    peer = Peer(FIRST[0])
    for sender in (FIRST[1], LAST[1]):
        peer.reduction.on_sum(sender, m.ReducedPart(SumKey(HERE, 2), "forged"), 0.0)
    assert not peer.out.take()
    peer.reduction.on_sum(LAST[0], m.ReducedPart(SumKey(HERE, 2), "sum"), 0.0)
    assert peer.out.take()


def test_who_is_awaited_is_who_computes_whose_parts_lack_then_whose_sums() -> None:
    peer = Peer(FIRST[0])
    for bucket in (1, 2, 3):
        assert peer.reduction.awaited == (FIRST[0],), "its own part is not computed yet"
        peer.reduction.on_part_encoded(PartEncoded(HERE, bucket, "part"))
    assert set(peer.reduction.awaited) == {FIRST[1], *LAST}, "buckets 0 and 4 are summed here"
    for contributor, done in ((FIRST[1], 0b1100), (LAST[1], 0b1100)):
        peer.part(0, contributor, done)
    assert set(peer.reduction.awaited) == {LAST[0], FIRST[1]}
    peer.part(0, LAST[0], 0b0011)
    assert peer.reduction.awaited == (FIRST[0],), "it sums bucket 0"
    peer.reduction.on_bucket_summed(BucketSummed(HERE, 0, "sum"))
    assert peer.reduction.awaited == (FIRST[1],)
    peer.part(SHARED, FIRST[1], 0b1100)
    peer.reduction.on_bucket_summed(BucketSummed(HERE, SHARED, "sum"))
    assert set(peer.reduction.awaited) == {FIRST[1], *LAST}, "their sums"
    for bucket, owner in ((1, FIRST[1]), (3, LAST[1])):
        peer.reduction.on_sum(owner, m.ReducedPart(SumKey(HERE, bucket), "sum", None), 0.0)
    assert peer.reduction.awaited == (LAST[0],)
    peer.reduction.on_sum(LAST[0], m.ReducedPart(SumKey(HERE, 2), "sum", None), 0.0)
    assert peer.reduction.awaited == (FIRST[0],), "it puts them together"
    peer.reduction.on_assembled(Assembled(HERE, "digest", 1.0, 0.0))
    assert not peer.reduction.awaited


def test_what_is_missing_is_asked_for_after_several_times_the_usual_pause() -> None:
    assert Peer(FIRST[0]).reduction.next_deadline_at() == 3.0, "a twentieth of the budget: nothing is known"
    for pause, expected in ((0.01, 0.5), (0.25, 1.0), (30.0, 3.0)):
        pauses = Observed()
        pauses.add(pause)
        assert Peer(FIRST[0], pauses=pauses).reduction.next_deadline_at() == expected


def test_the_deadline_counts_from_the_last_arrival() -> None:
    reduction = Peer(FIRST[0]).reduction
    assert reduction.overdue(3.0) == 1 and reduction.overdue(8.9) == 0, "it doubles from request to request"
    reduction.on_sum(LAST[0], m.ReducedPart(SumKey(HERE, 2), "sum"), 8.9)
    assert reduction.next_deadline_at() == pytest.approx(11.9)
    assert reduction.overdue(11.8) == 0 and reduction.overdue(11.95) == 1


@pytest.mark.parametrize("around", [False, True])
def test_the_longest_pause_of_a_reduction_counts_unless_it_ended_by_a_detour(around: bool) -> None:
    pauses = Observed()
    peer = Peer(FIRST[0], pauses=pauses)
    for at, (bucket, owner) in zip((0.5, 2.5), ((2, LAST[0]), (3, LAST[1])), strict=True):
        peer.reduction.on_sum(owner, m.ReducedPart(SumKey(HERE, bucket), "sum"), at)
    peer.reduction.ask_again({FIRST[1]: LAST[1]} if around else None)
    peer.reduction.on_assembled(Assembled(HERE, "digest", 1.0, 0.0))
    assert pauses.quantile(1.0) == (None if around else 2.0)
