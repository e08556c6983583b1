import torch

from swarm.compute.digest import first_chain, next_chain, reduced_digest, run_digest, state_digest
from swarm.protocol.update import STILL, Update


def test_every_ingredient_counts(make_manifest):
    start = first_chain(make_manifest(), 0)
    assert len({start, first_chain(make_manifest(), 1), first_chain(make_manifest(codec="int8"), 0)}) == 3
    reduced = reduced_digest(torch.zeros(3, dtype=torch.float64))
    other = reduced_digest(torch.tensor([0, 0, 1e-300], dtype=torch.float64))
    chains = {
        next_chain(start, reduced, 1.0, STILL),
        next_chain(start, other, 1.0, STILL),
        next_chain(start, reduced, 1.0 + 2**-52, STILL),
        next_chain(reduced, start, 1.0, STILL),
        next_chain(start, reduced, 1.0, Update(5e-324)),
    }
    assert len(chains) == 5


def test_a_state_digest_covers_names_values_and_counts_but_not_the_order_of_a_dictionary():
    a, b = torch.zeros(2), torch.ones(2)
    digest = state_digest(3, 2, {"a": a, "b": b})
    assert digest == state_digest(3, 2, {"b": b, "a": a})
    others = [
        state_digest(4, 2, {"a": a, "b": b}),
        state_digest(3, 3, {"a": a, "b": b}),
        state_digest(3, 2, {"a": b, "b": a}),
        state_digest(3, 2, {"a": a, "c": b}),
        state_digest(3, 2, {"a": a, "b": b.view(1, 2)}),
        state_digest(3, 2, {"a": a, "b": b.double()}),
    ]
    assert len({digest, *others}) == 7


def test_a_run_digest_depends_on_the_order_of_stages():
    a, b = "00" * 32, "11" * 32
    assert run_digest([a, b]) != run_digest([b, a])
