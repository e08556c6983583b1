"""Whom a newcomer believes about a state that it fetches: most people, not most devices.

No decision says what a whole state must be, so only its donors can. The coordinator names the donors, of several people
where the stage has them (`Members.donors`).
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
    """What most people among the donors say, counted among all whom the order names."""

    tellers: frozenset[Actor]
    """The donors that say it."""
    is_majority: bool
    """More than half of all people say it. What others may still say changes nothing."""
    is_tied: bool
    """As many people say something else."""
    told_by: int
    """How many people have said anything."""


def verdict(answers: Mapping[Actor, _Answer], donors: Sequence[Donor]) -> Verdict:
    """Judge at least one answer. Each person has one vote, which its devices among `donors` share.

    Of answers with as many votes, that of the donor named first is believed, which is in the stage for longest: the
    coordinator believes the same one when replicas differ (`drift_of`).
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
