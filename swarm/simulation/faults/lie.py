"""Peers that misbehave inside the run: they compute plausible but wrong numbers, or they delay others."""

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
Keeping = Literal["keeping", "unsaved", "losing"]
KEEPING: tuple[Keeping, ...] = get_args(Keeping)
Meddling = Literal[
    "impostor", "claiming", "accusing", "misjudging", "boasting", "modest", "wavering", "delaying", "grudging"
]
MEDDLING: tuple[Meddling, ...] = get_args(Meddling)
Hindering = Literal["denying", "lagging", "dawdling", "roaming"]
HINDERING: tuple[Hindering, ...] = get_args(Hindering)
About = Wrong | Scaled | Disturbance | Said | Claim | Keeping | Meddling | Hindering | Literal["constant"]
FACTORS: Mapping[About, tuple[int, int]] = {
    "negated": (-1, 1),
    "a quarter more": (5, 4),
    "exaggerated": (-300, 1),
    "enormous": (10**20, 1),
}
"""Factor (numerator, denominator) for the peer's contribution to its stage's sums."""
WRONG: tuple[About, ...] = (*LIES, *FACTORS, "constant")
"""All kinds of wrong numbers, which only audits can find."""
NEWCOMERS: tuple[About, ...] = ("gift", "proof", "grudging", "boasting", "modest", "wavering")
"""Kinds that concern peers that join while others train."""
INSIDERS: tuple[About, ...] = (*WRONG, *DISTURBANCES, *SAID)
"""All kinds that an insider may use while its stage has honest peers of several people."""
LIE = (1 << 90) + (1 << 63) + 1
"""Added to a sum, or to a part of one, to make it wrong. It is odd, so that no wrong sum within the bounds is 0 modulo
2^64.
"""
SLOW = 15.0
"""A peer that is slow on purpose takes this many times as long."""
GRUDGING_S = 3.0
"""Seconds by which a donor delays a piece of a state that it gives slowly."""
HUGE = 1 << 80
"""A finite gradient that makes every sum of its receiver overflow."""


@dataclass(frozen=True, slots=True)
class Lie:
    about: About
    """The kind of misbehaviour.

    * `activations`, `gradients`, `sums`, `totals`, `sketch`: a wrong result: for the next stage, for the stage before,
      of its own part, as a reducer, or in the sketch of its own sums.
    * A key of `FACTORS`: its own sums are multiplied by that factor.
    * `constant`: its activations do not depend on the input.
    * `huge`: its gradients for the stage before are so large that they overflow there.
    * `failed`: it reports that every computation failed.
    * `mute`: it trains, but ignores forward-only passes.
    * `nan`: its contribution to its stage's sums is not finite.
    * `lazy`: it reports that it is present, but computes nothing.
    * `unreduced`: it takes no part in reductions.
    * `withholding`: it does not send its parts and sums to one sibling.
    * `slow`: it is slow and reports that it is not.
    * `flapping`: it restarts, or its connections break, again and again.
    * `status`: it reports extreme or false values.
    * `hoarding`: it gives up its state after a step and fetches one, again and again.
    * `checksum`, `proof`, `digest`, `copy`: it reports a false one; all such peers report the same.
    * `gift`: it gives newcomers a false state.
    * `spoilt`: it reports that its state is not finite, and saves none.
    * `keeping`: it gives its state and its checkpoints to nobody.
    * `unsaved`: it reports no checkpoints, but gives its state to others.
    * `losing`: it reports that it has lost its newest state.
    * `unsendable`: it reports that its results for others are not finite, and sends a marker instead.
    * `impostor`: it sends messages in the name of other peers and of the coordinator, and results of others' work.
    * `claiming`: its parts of sums claim microbatches that others have computed.
    * `accusing`: it reports that nobody answers it, that it waits for all its siblings, and that others' data fail.
    * `misjudging`: it trains, but its results in evaluations and samples are false.
    * `boasting`, `modest`, `wavering`: it reports that it is much faster and larger than it is; much slower and
      smaller; or now this and now that.
    * `delaying`: its data for one sibling, and for no other peer, are late.
    * `denying`: it reports something false about its stage's sums: that they are not finite, or another norm, loss or
      sketch.
    * `lagging`: its data for others, those of reductions only, or its reports about sums are late, to all and always.
    * `dawdling`: it is alone in its stage, and its reports about sums are very late.
    * `roaming`: it joins, leaves or is killed while its stage adds up, and comes back at once.
    * `grudging`: it gives its state to newcomers, but very slowly.
    """
    how_often: float = 1.0
    shy: bool = False
    """True if it lies only while all replicas of its stage take part, so never during a search for it."""
    stage: int | None = None
    """The peer misbehaves only if this is its first stage; None: in any stage."""
    since: int = 0
    """The peer misbehaves only once it holds this version."""

    @property
    def of_itself(self) -> bool:
        """True if it lies about its own state or sums. Others may then have to do without its state."""
        return self.about in ("nan", "spoilt", "status", "hoarding", "denying", *SAID, *KEEPING)
