"""Decides which donors a newcomer believes about a state that it fetches: the majority of people, not of devices.

No decision contains the digest of a whole state, so only the donors can vouch for it. The coordinator names donors that
belong to several people, if the stage has them (`Members.donors`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeVar

from swarm.protocol.ids import Actor
from swarm.protocol.messages import Donor

_Answer = TypeVar("_Answer", bound=Hashable)


class Verdict(NamedTuple):
    """The answer that most people among the donors give. It is compared with the number of all people that the order
    names.
    """

    tellers: frozenset[Actor]
    """The donors that give this answer."""
    is_majority: bool
    """True if more than half of all people give it, so that no further answer can change the verdict."""
    is_tied: bool
    """True if equally many people give another answer."""
    told_by: int
    """The number of people that have given any answer."""


def verdict(answers: Mapping[Actor, _Answer], donors: Sequence[Donor]) -> Verdict:
    """Judge at least one answer. Each person has one vote, divided among the person's devices in `donors`.

    If two answers have equally many votes, the answer of the donor that is named first is believed: this donor has been
    in the stage for longest. The coordinator decides in the same way when replicas differ (`drift_of`).
    """
    devices = Counter(donor.person for donor in donors)
    votes: dict[Hashable, Fraction] = {}
    for donor in donors:
        if donor.actor in answers:
            answer = answers[donor.actor]
            votes[answer] = votes.get(answer, Fraction(0)) + Fraction(1, devices[donor.person])
    most = max(votes.values())
    common = next(answer for answer, count in votes.items() if count == most)
    return Verdict(
        frozenset(actor for actor, answer in answers.items() if answer == common),
        2 * most > len(devices),
        sum(count == most for count in votes.values()) > 1,
        len({donor.person for donor in donors if donor.actor in answers}),
    )
