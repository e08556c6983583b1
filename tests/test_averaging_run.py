"""Runs that average compressed gradients, real cores and real compute in one process: equal to the record, replayed."""

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from core_swarm import Corpus, Swarm, killing, killing_stage_one, manifest, once, runs

from peers.run import averaged_sums
from peers.run.reference import ReplayError, train_reference
from peers.run.replay import StepReplay
from swarm.compute import averaging, low_rank_reduction, reduction
from swarm.events import PeerFenced, RolledBack, StepAborted
from swarm.manifest import RunManifest
from swarm.protocol import io
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Contribution, Decision, Failed, Prepared, ReducedPart, ReducePart, StageTable
from swarm.protocol.peer import io as peer_io
from swarm.protocol.residuals import Carry

STEPS = 6
NOBODY, BOTH = (-1, -1), (0, 1)


@pytest.fixture
def run() -> Iterator[Callable[..., Swarm]]:
    yield from runs()


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage of the tiny model has several buckets, so that every replica reduces some."""
    for module in (averaged_sums, averaging, low_rank_reduction, reduction):
        monkeypatch.setattr(module, "BUCKET_ELEMENTS", 4096)


def averaged(averaging: str = "int4", stages: int = 2, **options) -> RunManifest:
    return manifest(**{"codec": "int8", "stages": stages, "steps": STEPS, "averaging": averaging, **options})


@pytest.mark.parametrize(("kind", "averaging"), [(peer_io.Backward, "none"), (peer_io.EncodePart, "dither:1")])
def test_token_means_stay_alike_at_both_ends_whoever_dies(run, kind: type, averaging: str) -> None:
    coded = {"codec": "entropy:1.4", "backward": "entropy-dithered:1", "means": True}
    of = averaged(averaging, stages=3, **coded)
    swarm, expected = run(of, hook=killing(3, 1, kind, BACK)), train_reference(of, Corpus(of))
    assert swarm.digests() == swarm.reference() == expected.digests
    tables = [
        {name: tensor for name, tensor in state.tensors.items() if name.endswith(".token_means")}
        for state in expected.states
    ]
    for sender, receiver in itertools.pairwise(tables):
        (sent,) = (table for name, table in sender.items() if name.startswith("param/") and "sent" in name)
        (received,) = (table for name, table in receiver.items() if name.startswith("param/") and "received" in name)
        assert torch.equal(sent, received) and sent[:, :-1].any()


def carried(swarm: Swarm, stage: int = 0) -> list[tuple[int, ...]]:
    """By step."""
    outcomes = [swarm.decisions[step].outcomes[stage] for step in sorted(swarm.decisions)]
    return [tuple(each.carried for each in outcome.contributions) for outcome in outcomes]


@pytest.mark.parametrize("codec", ["int8", "int4", "int2", "bf16", "topk:0.1", "powersgd:2"])
@pytest.mark.parametrize("stages", [pytest.param(1, marks=pytest.mark.long), 2])
def test_replicas_agree_and_equal_the_replayed_record(run, codec: str, stages: int) -> None:
    swarm = run(averaged(codec, stages))
    assert carried(swarm, stages - 1) == [NOBODY] + [BOTH] * (STEPS - 1)
    for decision in swarm.decisions.values():
        for outcome in decision.outcomes:
            one, other = outcome.contributions
            assert one.microbatches ^ other.microbatches == 0b1111 and one.microbatches and other.microbatches
    assert swarm.digests() == swarm.reference()
    assert swarm.digests() != swarm.plain(), "the record is needed"


def test_residuals_keep_training_near_the_exact_run(run) -> None:
    """Two bits a number: without what they lose, the run would go elsewhere."""
    exact = [decision.loss_sum for decision in run(averaged("none", steps=12)).decisions.values()]
    coded = [decision.loss_sum for decision in run(averaged("int4", steps=12)).decisions.values()]
    assert coded != exact
    assert coded[-1] == pytest.approx(exact[-1], rel=0.02)


@pytest.mark.parametrize("averaging", ["int4", "powersgd:2"])
def test_one_replica_sends_nothing_and_compresses_nothing(run, averaging: str) -> None:
    sent: list[object] = []

    def hook(swarm: Swarm, actor: Actor, action: object) -> None:
        if isinstance(action, io.Send) and isinstance(action.message, ReducePart | ReducedPart):
            sent.append(action)

    swarm = run(averaged(averaging, replicas=1), hook=hook)
    assert not sent and carried(swarm) == [(-1,)] + [(0,)] * (STEPS - 1)
    assert swarm.digests() == swarm.plain() == swarm.reference()


AWAY, BACK = False, True


@pytest.mark.parametrize(
    ("averaging", "replicas", "kind", "back"),
    [
        ("int4", 2, peer_io.Forward, BACK),
        ("int4", 2, peer_io.EncodePart, AWAY),
        ("int4", 2, peer_io.SumBucket, BACK),
        ("int4", 2, peer_io.StoreSum, AWAY),
        ("int4", 2, peer_io.Assemble, BACK),
        ("int4", 2, peer_io.Apply, AWAY),
        ("int4", 3, peer_io.EncodePart, BACK),
        ("int4", 3, peer_io.SumBucket, AWAY),
        ("int4", 3, peer_io.Apply, BACK),
        ("powersgd:2", 2, peer_io.EncodePart, AWAY),
        ("powersgd:2", 2, peer_io.StoreSum, BACK),
        ("powersgd:2", 2, peer_io.Apply, BACK),
        ("powersgd:2", 3, peer_io.SumBucket, AWAY),
        ("powersgd:2", 3, peer_io.Assemble, BACK),
    ],
)
def test_a_replica_killed_in_a_step(run, averaging: str, replicas: int, kind: type, back: bool) -> None:
    swarm = run(averaged(averaging, replicas=replicas), hook=killing(2, 1, kind, back))
    everybody = tuple(range(replicas))
    places = carried(swarm, 1)
    assert places[1] == everybody and places != [(-1,) * replicas] + [everybody] * (STEPS - 1)
    assert carried(swarm, 0) == [(-1,) * replicas] + [everybody] * (STEPS - 1), "the other stage goes on as it was"
    assert swarm.digests() == swarm.reference()


def test_who_dies_when_all_others_are_prepared_has_added_its_share_but_carries_nothing(run) -> None:
    prepared: set[Actor] = set()

    def strike(swarm: Swarm, actor: Actor, action: object) -> bool:
        if not isinstance(action, io.Send) or not isinstance(action.message, Prepared):
            return False
        if action.message.attempt.pass_id.step != 2:
            return False
        prepared.add(actor)
        if len(prepared) < 4:
            return False
        swarm.kill(actor, back=True)
        victims.append(actor)
        return True

    victims: list[Actor] = []
    swarm = run(averaged(), hook=once(strike))
    (stage,) = {peer.core.held_stage.stage for actor, peer in swarm.peers.items() if actor.peer == victims[0].peer}
    assert not [event for event in swarm.events if isinstance(event, PeerFenced)], "decided without it"
    places = carried(swarm, stage)
    assert places[2] == BOTH and places[3] != BOTH, "its shares are in the step, its memory is not"
    back = next(each for each in places[3:] if len(each) == 2)
    assert min(back) == -1 < max(back), "it begins with nothing: in the midst of the next step, or in a later one"
    assert swarm.digests() == swarm.reference()


def test_after_an_abort_all_residuals_are_empty(run) -> None:
    swarm = run(averaged(every=1), hook=killing_stage_one(2, 0, peer_io.Assemble))
    assert any(isinstance(event, StepAborted) for event in swarm.events)
    assert carried(swarm)[:4] == [NOBODY, BOTH, NOBODY, BOTH]
    assert swarm.digests() == swarm.reference()


def test_a_rollback_empties_them_too(run) -> None:
    swarm = run(averaged(steps=8, every=4), hook=killing_stage_one(5, 1, peer_io.Forward))
    assert any(isinstance(event, RolledBack) for event in swarm.events)
    assert carried(swarm) == [NOBODY, *[BOTH] * 3, NOBODY, *[BOTH] * 3]
    assert swarm.digests() == swarm.reference()


def test_evaluations_between_steps_change_nothing(run) -> None:
    swarm = run(averaged(evaluate=2))
    assert carried(swarm) == [NOBODY] + [BOTH] * (STEPS - 1)
    assert swarm.digests() == swarm.reference()


@pytest.mark.parametrize("averaging", ["int4", "powersgd:2"])
def test_a_gradient_that_is_not_finite_reaches_everyone_is_skipped_and_leaves_nothing(run, averaging: str) -> None:
    def hook(swarm: Swarm, actor: Actor, action: object) -> None:
        """Whoever reduces stage 0 in step 2: with one of them alone, the other's half of the step is finite."""
        if not isinstance(action, peer_io.EncodePart | peer_io.SumBucket):
            return
        if (action.attempt.pass_id.step, action.attempt.stage) == (2, 0):
            engine = swarm.peers[actor].engine
            assert engine is not None and engine.state.stage is not None
            sums = engine.state.stage._accumulator
            sums.add_one(0, torch.full(sums.layout.shapes[0], math.inf))

    swarm = run(averaged(averaging), hook=hook)
    assert [decision.skip for decision in swarm.decisions.values()] == [False, False, True, False, False, False]
    by_half = (-1,)  # each half has tried it alone, and the last attempt is the one that is skipped
    assert carried(swarm) == [NOBODY, BOTH, by_half, NOBODY, BOTH, BOTH]
    assert len(swarm.digests()) == 2, "replicas agree"


def test_a_peer_that_has_lost_its_residuals_says_so_and_is_not_used(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table builds on what the peer does not have."""
    said: list[str] = []
    of = Carry.of

    def forgetful(me: Actor, table: StageTable, decision: Decision) -> Carry | None:
        return None if (me.peer, decision.step) == ("peer0", 2) else of(me, table, decision)

    def hook(swarm: Swarm, actor: Actor, action: object) -> None:
        if isinstance(action, io.Send) and isinstance(action.message, Failed):
            said.append(action.message.reason)

    monkeypatch.setattr(Carry, "of", forgetful)
    swarm = run(averaged(), hook=hook)
    assert said == ["lacks the residuals of step 2, which the pass needs"]
    assert len(carried(swarm)[3]) == 1, "it is fenced"
    back = next(each for each in carried(swarm)[4:] if len(each) == 2)
    assert sorted(back) == [-1, 0], "it listens, and begins anew"
    assert swarm.digests() == swarm.reference()


def test_the_reference_says_when_it_cannot_replay() -> None:
    of = averaged()
    half = train_reference(of, Corpus(of), stop_after=2)
    shares = ((Contribution(0b0101, 0), Contribution(0b1010, 1)),) * 2
    with pytest.raises(ReplayError, match=r"step 2 adds residuals of step 1, which are not known here: train from"):
        train_reference(of, Corpus(of), state=half.states, replay={2: StepReplay((), shares)})
    missing = ((Contribution(0b0001, -1), Contribution(0b1010, -1)),) * 2
    with pytest.raises(ReplayError, match=r"microbatch 2 of step 0 is in no member's sum"):
        train_reference(of, Corpus(of), replay={0: StepReplay((), missing)})


@pytest.mark.parametrize("kind", [None, peer_io.EncodePart, peer_io.Assemble])
def test_dithered_sums_are_exact_whoever_dies(run, kind: type | None) -> None:
    """No record is needed: the result is that of one process, as with the usual grid."""
    swarm = run(averaged("dither:1"), **({} if kind is None else {"hook": killing(3, 1, kind, BACK)}))
    assert swarm.digests() == swarm.plain() == swarm.reference()
    assert swarm.digests() != run(averaged("none")).digests(), "blocks have grids of their own"
