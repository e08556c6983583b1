"""Peers that misbehave inside the run: their numbers look sound and are wrong, or they delay others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Wrong = Literal["activations", "gradients", "sums", "totals", "sketch"]
LIES: tuple[Wrong, ...] = get_args(Wrong)
Scaled = Literal["negated", "a quarter more", "exaggerated", "enormous"]
Disturbance = Literal[
    "huge", "failed", "mute", "nan", "lazy", "unreduced", "withholding", "slow", "flapping", "status", "hoarding"
]
DISTURBANCES: tuple[Disturbance, ...] = get_args(Disturbance)
Said = Literal["checksum", "proof", "digest", "copy", "gift"]
SAID: tuple[Said, ...] = get_args(Said)
Claim = Literal["spoilt", "unsendable"]
About = Wrong | Scaled | Disturbance | Said | Claim | Literal["constant"]
FACTORS: Mapping[About, tuple[int, int]] = {
    "negated": (-1, 1),
    "a quarter more": (5, 4),
    "exaggerated": (-300, 1),
    "enormous": (10**20, 1),
}
"""What its contribution to its stage's sums is multiplied by: numerator and denominator."""
WRONG: tuple[About, ...] = (*LIES, *FACTORS, "constant")
"""Everything that makes numbers wrong: only audits find it."""
NEWCOMERS: tuple[About, ...] = ("gift", "proof")
"""What concerns those that come while others train."""
INSIDERS: tuple[About, ...] = (*WRONG, *DISTURBANCES, *SAID)
"""Everything that an insider may do while its stage has honest peers of several people."""
LIE = (1 << 90) + (1 << 63) + 1
"""Added to a sum, or a part of one, to make it wrong. Odd, since no wrong sum that is in bounds is 0 modulo 2^64."""
SLOW = 15.0
"""So many times as long takes somebody who is slow on purpose."""
HUGE = 1 << 80
"""A finite gradient with which every sum of its receiver overflows."""


@dataclass(frozen=True, slots=True)
class Lie:
    about: About
    """The wrong result: for the next stage, for the stage before, a part for a reducer, a sum as a reducer, or the
    sketch of its own sums. Or a factor of its own sums (`FACTORS`), or activations that are `constant`.

    `huge`: results for the stage before are so large that they overflow there. `failed`: it reports that every
    computation failed. `mute`: it trains, and ignores forward-only passes. `nan`: its contribution to its stage's sums
    is not finite. `lazy`: it reports that it is there, and computes nothing. `unreduced`: it has no part in a reduce.
    `withholding`: it keeps its parts and sums from one sibling. `slow`: it takes long, and reports that it does not.
    `flapping`: it restarts, or its links break, again and again. `status`: it reports extreme or false things.
    `hoarding`: it gives up its state after a step and fetches one, again and again and for ever.

    `checksum`, `proof`, `digest`, `copy`: it reports a false one, the same as all others that do. `gift`: it gives
    newcomers a false state. `spoilt`: it reports that its state is not finite, and saves none. `unsendable`: it reports
    that its results for others are not finite, and sends a mark instead.
    """
    how_often: float = 1.0
    shy: bool = False
    """Only while all replicas of its stage take part, so never during a search for it."""
    stage: int | None = None
    """Only if it gets this stage first; None: any stage."""
    since: int = 0
    """Only once it holds this version."""

    @property
    def of_itself(self) -> bool:
        """True if it lies about its own state or sums: others may have to do without its state."""
        return self.about in ("nan", "spoilt", "status", "hoarding", *SAID)
