"""A model whose arithmetic shows the cause of an error: integers instead of tensors, and the ideal run for comparison.

A payload is a hash chain over all its inputs, so one wrong input or one stale parameter anywhere changes it. The
gradient of a microbatch has such a hash in its high bits and counts itself in its low bits (eight bits per microbatch).
So a sum shows which microbatches it contains, and how often.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from swarm.protocol.clipping import step_scale
from swarm.protocol.codec_ladder import CodecLadders, Rung
from swarm.protocol.messages import CodecPair, Contribution
from swarm.protocol.settings import Settings
from swarm.protocol.sketch import PROJECTIONS, Sketch
from swarm.simulation.toy.toy_averaging import NOTHING, averaged

_MASK = (1 << 61) - 1
_COUNT_BITS = 8
VOCABULARY = 89
SHARED_BUCKETS = 2
"""Number of buckets that the first and the last stage share, if they share parameters. The shared buckets come
first.
"""
_NEVER = -1
"""Replaces the base of a change without a base. No peer can have computed with it."""


LADDERS = CodecLadders.of(
    [Rung("gentle", 4000), Rung("even", 2000), Rung("hard", 1000)],
    [Rung("gentle", 4000), Rung("even", 2000)],
    CodecPair("even", "even"),
)
"""The codecs of runs with automatic choice."""
RATES = (1e3, 1e5, 4e5, 1e6, 1e9)
"""Possible link rates in bytes/s. A microbatch is computed in 30 ms."""


def mix(*values: int) -> int:
    """A hash of integers that is the same in every process (unlike that of text)."""
    return hash(values) & _MASK


def tokens_payload(kind: int, step: int, microbatch: int) -> int:
    """The coordinator's tokens for a microbatch. `kind` 0: for training; otherwise the index of the forward-only
    pass.
    """
    return mix(11, kind, step, microbatch)


def forward_payload(stage: int, state: int, payload: int) -> int:
    return mix(12, stage, state, payload)


def backward_payload(stage: int, state: int, payload: int, gradient: int) -> int:
    return mix(13, stage, state, payload, gradient)


def rounded(payload: int) -> int:
    """An activation as a receiver decodes it from a key frame."""
    return mix(22, payload)


def rounded_since(payload: int, base: int) -> int:
    """An activation as both ends decode it from a change relative to `base`."""
    return mix(23, payload, base)


def change(reconstruction: int, base: int) -> int:
    """The change that is sent. With another base, it gives another activation. The operation is its own inverse."""
    return reconstruction ^ base


def reconstruction_digest(reconstruction: int) -> int:
    return mix(24, reconstruction) or 1


def coded(payload: int, codec: str) -> int:
    """An activation as it is decoded from a codec that keeps no data between frames."""
    return mix(26, payload, *codec.encode())


def loss_gradient(payload: int) -> int:
    """The gradient from which the last stage's backward starts, given that stage's output."""
    return mix(14, payload)


def loss_of(payload: int) -> float:
    """Loss sum of a microbatch of a forward-only pass, given the last stage's output."""
    return float(payload % 997)


def token_of(payload: int) -> int:
    return payload % VOCABULARY


def weight_gradient(stage: int, state: int, payload: int, gradient: int, microbatch: int, microbatches: int) -> int:
    """The contribution of one microbatch to the accumulator."""
    tag = mix(15, stage, state, payload, gradient)
    return (tag << (_COUNT_BITS * microbatches + 16)) + (1 << (_COUNT_BITS * microbatch))


def on_kind(value: int, kind: int) -> int:
    """A gradient or activation on a machine of another kind: its last bits differ. Kind 0: unchanged."""
    return mix(29, value, kind) if kind else value


def bucket_share(total: int, bucket: int) -> int:
    """Bucket `bucket` of a gradient sum: linear, and different for every bucket."""
    return total * (2 * bucket + 1)


def buckets_of(stage: int, shared: int = 0) -> int:
    """The number of buckets of a stage. `shared`: number of those that another stage shares."""
    return shared + 2 + stage % 2


def shared_buckets(settings: Settings, stage: int) -> int:
    return 0 if settings.partner(stage) is None else SHARED_BUCKETS


def shared_digest(sums: tuple[int, ...]) -> str:
    return f"{mix(25, *sums):x}" if sums else ""


def digest_of(stage: int, sums: tuple[int, ...]) -> str:
    return f"{mix(16, stage, *sums):x}"


def squared_norm_of(stage: int, sums: tuple[int, ...]) -> float:
    return float(mix(17, stage, *sums) % 1_000_003)


_PROJECTED = tuple(mix(30, place) | 1 for place in range(PROJECTIONS))
"""The factors of a sketch."""


def sketch_of(sums: Iterable[int]) -> Sketch:
    """A sketch that is linear, modulo 2^64. Its length says nothing about the length of the vector."""
    total, half = sum(sums), 1 << 63
    return tuple([(total * factor + half) % (2 * half) - half for factor in _PROJECTED])


def loss_sum_of(stage: int, stages: int, sums: tuple[int, ...]) -> float:
    """The training loss, which is computed from the last stage's reduced bytes."""
    return float(mix(18, *sums) % 9973) if stage == stages - 1 else 0.0


def stepped_state(stage: int, state: int, sums: tuple[int, ...], scale: float, rate: float = 1.0) -> int:
    """The optimizer step. Scale 0 (SKIP) leaves the state unchanged. `rate`: as in Decision."""
    if scale == 0.0:
        return state
    how = scale.as_integer_ratio() if rate == 1.0 else (*scale.as_integer_ratio(), *rate.as_integer_ratio())
    return mix(19, stage, state, *how, *sums)


def initial_state(stage: int) -> int:
    return mix(20, stage)


def state_digest(stage: int, version: int, state: int) -> str:
    return f"{mix(21, stage, version, state):x}"


def checksum_of(state: int, key: int = 0) -> int:
    """Checksum of a peer's state in memory."""
    return mix(28, state, key) if key else mix(28, state)


def is_whole(total: int, microbatches: int, times: int = 1) -> bool:
    """Return True if a sum contains every microbatch, according to its counting bits. `times`: the right count."""
    return not _odd_counts(total, microbatches, times)


def explain_sum(total: int, microbatches: int, times: int = 1) -> str:
    """The microbatches that a sum lacks or contains too often, from its counting bits. `times`: the right count."""
    odd = _odd_counts(total, microbatches, times)
    often = "once" if times == 1 else f"{times} times"
    return ", ".join(odd) or f"every microbatch {often}, but computed from wrong inputs"


def _odd_counts(total: int, microbatches: int, times: int) -> list[str]:
    odd = []
    for m in range(microbatches):
        count = (total >> (_COUNT_BITS * m)) & ((1 << _COUNT_BITS) - 1)
        if count != times:
            odd.append(f"m{m} ×{count}")
    return odd


@dataclass(frozen=True, slots=True)
class Cycle:
    """The steps with the same samples: every epoch visits its `blocks` in the same order."""

    blocks: int

    @property
    def mutual(self) -> bool:
        return True

    def previous(self, step: int) -> int | None:
        return step - self.blocks if step >= self.blocks else None

    def next(self, step: int) -> int:
        return step + self.blocks


Chosen = tuple[CodecPair, ...]
"""The codecs by boundary, as in Decision."""


@dataclass(frozen=True, slots=True)
class IdealStep:
    sums: tuple[tuple[int, ...], ...]
    """The sums, by stage and then by bucket."""
    digests: tuple[str, ...]
    scale: float
    loss_sum: float


@dataclass(frozen=True, slots=True)
class Ideal:
    """The run as one machine would compute it."""

    states: tuple[tuple[int, ...], ...]
    """The states of all stages: `states[version][stage]`."""
    steps: tuple[IdealStep, ...]

    def output(self, version: int, payload: int, chosen: Chosen = ()) -> int:
        """The last stage's output for `payload` at `version`, with the codecs `chosen` for the pass."""
        for stage, state in enumerate(self.states[version]):
            payload = forward_payload(stage, state, payload)
            if stage < len(chosen):
                payload = coded(payload, chosen[stage].forward)
        return payload


def _sums(stage: int, totals: list[int], ends_share: bool) -> tuple[int, ...]:
    """The sums by bucket, given the sum of every stage's gradient."""
    shared = SHARED_BUCKETS if ends_share and stage in (0, len(totals) - 1) else 0
    both = totals[0] + totals[-1]
    return tuple(bucket_share(both if b < shared else totals[stage], b) for b in range(buckets_of(stage, shared)))


@lru_cache(maxsize=256)
def ideal_run(
    stages: int,
    microbatches: int,
    steps: int,
    targets_per_step: int,
    clip_norm: float,
    skipped: frozenset[int],
    visited: tuple[int, ...] = (),
    key_frames: tuple[tuple[int, ...] | None, ...] = (),
    contributions: tuple[tuple[tuple[Contribution, ...], ...] | None, ...] = (),
    codecs: tuple[Chosen, ...] = (),
    ends_share: bool = False,
    rates: tuple[float, ...] = (),
    taken: tuple[tuple[tuple[int, ...], ...] | None, ...] = (),
) -> Ideal:
    """All states, sums and scales of the run without faults. The steps in `skipped` change nothing.

    * `visited`: for each step, the previous step with the same samples (−1: none).
    * `key_frames`: for each step, as in Decision; None without bases, or if not decided yet.
    * `contributions`: for each step and stage, from the outcomes.
    * `codecs`: for each step, if they are chosen automatically.
    * `ends_share`: True if the first and the last of several stages share parameters.
    * `rates`: for each step, as in Decision; empty: always 1.
    * `taken`: for each step, the wrong sums of each stage that were decided. Empty, or None for a step: all sums are
    right.
    """
    states = [tuple(initial_state(s) for s in range(stages))]
    done = []
    crossed: dict[tuple[int, int, int], int] = {}
    left = [NOTHING] * stages
    for step in range(steps):
        gradients: list[list[int]] = [[] for _ in range(stages)]
        for m in range(microbatches):
            inputs = [tokens_payload(0, step, m)]
            for s in range(stages):
                output = forward_payload(s, states[-1][s], inputs[-1])
                if visited and s < stages - 1:
                    fresh = key_frames[step]
                    base = crossed.get((visited[step], s, m), _NEVER)
                    output = rounded(output) if fresh is None or fresh[s] >> m & 1 else rounded_since(output, base)
                    crossed[step, s, m] = output
                if codecs and s < len(codecs[step]):
                    output = coded(output, codecs[step][s].forward)
                inputs.append(output)
            gradient = loss_gradient(inputs[stages])
            for s in reversed(range(stages)):
                gradients[s].append(weight_gradient(s, states[-1][s], inputs[s], gradient, m, microbatches))
                gradient = backward_payload(s, states[-1][s], inputs[s], gradient)
                if s and codecs and codecs[step]:
                    gradient = coded(gradient, codecs[step][s - 1].backward)
        sums = tuple(_sums(s, [sum(each) for each in gradients], ends_share) for s in range(stages))
        if contributions and (decided := contributions[step]) is not None:
            found = [averaged(gradients[s], decided[s], left[s], buckets_of(s), bucket_share) for s in range(stages)]
            sums, left = tuple(each for each, _ in found), [lost for _, lost in found]
        if taken and (wrong := taken[step]) is not None:
            sums = wrong
        scale, _ = step_scale((squared_norm_of(s, sums[s]) for s in range(stages)), targets_per_step, clip_norm)
        loss = sum(loss_sum_of(s, stages, sums[s]) for s in range(stages))
        done.append(IdealStep(sums, tuple(digest_of(s, sums[s]) for s in range(stages)), scale, loss))
        states.append(
            states[-1]
            if step in skipped
            else tuple(
                stepped_state(s, states[-1][s], sums[s], scale, rates[step] if rates else 1.0) for s in range(stages)
            )
        )
    return Ideal(tuple(states), tuple(done))
