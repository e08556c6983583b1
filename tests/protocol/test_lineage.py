"""Nobody builds on what the other end does not hold, and stages that computed with different copies are found out."""

from hypothesis import given
from hypothesis import strategies as st

from swarm.data import StepOrder
from swarm.protocol.ids import BaseKey, Direction, End, FrameKey, Microbatch, PassId, StepNumber, Term
from swarm.protocol.lineage import Crossings, mismatch, total
from swarm.protocol.messages import Lineage, Receipt
from swarm.protocol.peer.delta_bases import DeltaBases

PASS = PassId(Term(1), StepNumber(3))
M = Microbatch(2)


def key(m: int = M, direction: Direction = Direction.FORWARD) -> FrameKey:
    return FrameKey(PASS, 1, direction, Microbatch(m))


def send(crossings: Crossings, received: int, sent: int) -> Lineage:
    lineage = crossings.forwarded(M, received, sent)
    assert lineage is not None
    return lineage


def test_without_a_base_a_frame_is_a_key_frame() -> None:
    crossings = Crossings()
    assert crossings.encoded_with(M) is None and crossings.hints([key()]) == ()
    assert send(crossings, 7, 8) == Lineage(source=7, base=0, fresh=True)


def test_with_a_base_a_frame_is_its_change_and_the_receiver_says_which_it_holds() -> None:
    crossings = Crossings(StepNumber(1), {M: 55}, {M: 66})
    assert crossings.hints([key(), key(1), key(direction=Direction.BACKWARD)]) == (55, 0, 0)
    assert crossings.encoded_with(M) == BaseKey(StepNumber(1), M, End.SENT)
    assert send(crossings, 7, 8) == Lineage(source=7, base=66, fresh=False)
    crossings.arrived(M, Lineage(base=55))
    assert crossings.decoded_with(M) == BaseKey(StepNumber(1), M, End.RECEIVED)
    crossings.arrived(M, Lineage(fresh=True))
    assert crossings.decoded_with(M) is None, "a whole frame needs no base, even where there is one"


def test_a_change_of_another_base_is_not_accepted() -> None:
    held_stage = Crossings(StepNumber(1), {M: 55}, {})
    assert held_stage.accepts(M, None) and held_stage.accepts(M, Lineage()) and held_stage.accepts(M, Lineage(base=55))
    assert not held_stage.accepts(M, Lineage(base=56))
    assert not Crossings().accepts(M, Lineage(base=55))


def test_a_sender_keeps_what_its_receiver_has_used() -> None:
    for used, kept in ((8, {(End.SENT, M): 8}), (9, {})):
        crossings = Crossings()
        send(crossings, 0, 8)
        crossings.gradient_arrived(M, Lineage(source=used, trail=1))
        crossings.accumulated(M, 0)
        assert crossings.left() == kept


def test_what_is_given_up_leaves_nothing() -> None:
    crossings = Crossings()
    crossings.arrived(M, Lineage(fresh=True))
    send(crossings, 7, 8)
    crossings.gradient_arrived(M, Lineage(source=8))
    crossings.forget(M)
    assert crossings.left() == {} and crossings.receipt is None


def test_a_run_without_digests_has_no_receipt() -> None:
    crossings = Crossings()
    assert crossings.forwarded(M, 0, 0) is None and crossings.accumulated(M, 0) is None
    assert crossings.receipt is None and total((None, None)) is None and mismatch([None, None, None]) is None


class Step:
    """One step of three stages by hand: each microbatch with the copies (of boundary 1, of boundary 2) it is given."""

    def __init__(self, copies: dict[int, tuple[int, int]]) -> None:
        self.stages = [Crossings(), Crossings(), Crossings()]
        for m, (one, two) in copies.items():
            self.compute(Microbatch(m), one, two)

    def compute(self, m: Microbatch, one: int, two: int) -> None:
        first, middle, last = self.stages
        middle.arrived(m, first.forwarded(m, 0, one))
        last.arrived(m, middle.forwarded(m, one, two))
        middle.gradient_arrived(m, last.accumulated(m, two))
        first.gradient_arrived(m, middle.accumulated(m, one))
        first.accumulated(m, 0)

    @property
    def receipts(self) -> list[Receipt | None]:
        return [stage.receipt for stage in self.stages]


copies = st.dictionaries(
    st.integers(0, 9), st.tuples(st.integers(1, 2**62), st.integers(1, 2**62)), min_size=1, max_size=6
)


@given(copies, st.randoms())
def test_receipts_match_in_any_order_and_division(given_copies: dict[int, tuple[int, int]], draw) -> None:
    whole = Step(given_copies)
    assert mismatch(whole.receipts) is None
    order = list(given_copies.items())
    draw.shuffle(order)
    cut = draw.randrange(len(order) + 1)
    parts = [Step(dict(order[:cut])), Step(dict(order[cut:]))]
    assert [total(shares) for shares in zip(*(part.receipts for part in parts), strict=True)] == whole.receipts


@given(copies, st.data())
def test_any_stage_that_computed_with_another_copy_is_found_out(given_copies, data: st.DataObject) -> None:
    """The last stage, or the last two, computed again for one microbatch after the others had used the first copies."""
    m = Microbatch(data.draw(st.sampled_from(sorted(given_copies))))
    one, two = given_copies[m]
    step, again = Step(given_copies), Step(given_copies | {m: (one, two ^ 1)})
    assert mismatch([*step.receipts[:2], again.receipts[2]]) == 2
    again = Step(given_copies | {m: (one ^ 1, two)})
    assert mismatch([step.receipts[0], *again.receipts[1:]]) == 1
    assert mismatch([step.receipts[0], again.receipts[1], step.receipts[2]]) is not None


def test_another_copy_made_of_the_same_input_and_used_by_nobody_is_no_matter() -> None:
    """A peer that computes a microbatch again may have another copy: it goes by the one its receiver has used."""
    step = Step({2: (5, 6)})
    again = Crossings()
    again.arrived(M, Lineage(source=0, fresh=True))
    again.forwarded(M, 5, 7)
    again.gradient_arrived(M, step.stages[2].accumulated(M, 6))
    again.accumulated(M, 5)
    assert again.receipt == step.receipts[1] and (End.SENT, M) not in again.left()


# ---------------------------------------------------------------- from visit to visit

ORDER = StepOrder(2, seed=1)


def visited(bases: DeltaBases, step: int, digest: int) -> Crossings:
    """A step in which microbatch `M` comes in as `digest` and goes out as digest + 1, and is kept."""
    crossings = bases.crossings(StepNumber(step))
    crossings.arrived(M, Lineage(fresh=True))
    crossings.forwarded(M, digest, digest + 1)
    crossings.gradient_arrived(M, Lineage(source=digest + 1, trail=3))
    crossings.accumulated(M, digest)
    return crossings


def test_a_base_serves_the_next_visit_of_its_samples_and_no_other() -> None:
    bases = DeltaBases(ORDER, 100, 10)
    settled = bases.settle(StepNumber(0), visited(bases, 0, 10))
    assert settled is not None and settled.dropped == ()
    assert settled.kept == (BaseKey(StepNumber(0), M, End.RECEIVED), BaseKey(StepNumber(0), M, End.SENT))
    bases.settle(StepNumber(1), visited(bases, 1, 20))
    back = ORDER.next(0)
    assert ORDER.previous(back) == 0
    assert bases.crossings(StepNumber(back)).hints([key()]) == (10,)
    settled = bases.settle(StepNumber(back), visited(bases, back, 30))
    assert (
        settled is not None and {k.visit for k in settled.dropped} == {0} and {k.visit for k in settled.kept} == {back}
    )


def test_what_is_needed_soonest_is_kept_and_what_is_never_needed_is_not() -> None:
    order = StepOrder(4, seed=3)
    bases = DeltaBases(order, 8, 4)
    for step in range(4):
        bases.settle(StepNumber(step), visited(bases, step, 10 * (step + 1)))
        assert len(bases) <= 4
    soonest = sorted(range(4), key=order.next)[:2]
    held = {step for step in range(4) if bases.crossings(StepNumber(order.next(step))).hints([key()])}
    assert held == set(soonest)
    for step in range(4, 8):
        bases.settle(StepNumber(step), visited(bases, step, 10 * (step + 1)))
    assert len(bases) == 0, "the run ends before these samples come again"


def test_a_loaded_state_has_no_bases() -> None:
    bases = DeltaBases(ORDER, 100, 10)
    bases.settle(StepNumber(0), visited(bases, 0, 10))
    bases.clear()
    assert len(bases) == 0 and bases.crossings(StepNumber(ORDER.next(0))).hints([key()]) == ()


def test_a_run_without_visits_remembers_nothing() -> None:
    bases = DeltaBases(None, 100, 10)
    assert bases.settle(StepNumber(0), visited(bases, 0, 10)) is None and len(bases) == 0
