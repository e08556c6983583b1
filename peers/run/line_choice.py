"""What suits a line: the width of boundaries, the codec and the averaging with which a run reaches the same loss first.

A way of training takes steps × seconds of a step (forecast.py) × the tokens that make up for what it loses (losses.py).
Only exact sums are chosen, in full or dithered: with these, a run equals its reference, and its steps can be audited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from peers.run.cards import MINE, parse_cards
from peers.run.coding import ENTROPY
from peers.run.forecast import Line
from peers.run.losses import percent, subspaces
from peers.run.new_run import NewRun
from peers.run.outlook import CODECS, EXACT, Fleet, Way, own_speed, soonest
from peers.run.placement import lacking, unfit
from swarm.manifest import DataSection, ManifestError, RunFile, RunManifest, Shard

if TYPE_CHECKING:
    from swarm.compute.speed import Speed

_WIDTH_KEYS = frozenset(
    f"model.{key}" for key in ("residual", "subspace_dim", "subspace_growth", "boundary", "boundary_dim")
)
_CODEC_KEYS = frozenset(("codec.forward", "codec.backward"))
_SUM_KEYS = frozenset(("sums.averaging", "sums.mode"))
_SHARD = Shard(file="", sha256="0" * 64, tokens=1 << 40)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A way of training a model with boundaries of one width."""

    new: NewRun
    width: int
    """Values per token that cross a boundary."""
    fleet: Fleet
    way: Way


@dataclass(frozen=True, slots=True)
class Choice:
    """The run that suits a line, and why."""

    new: NewRun
    way: Way
    steps: int
    reasons: tuple[str, ...]
    """Lines of text."""

    def as_json(self) -> dict[str, Any]:
        """The output of `--json` under `choice`."""
        loss = self.way.loss
        assert loss is not None
        return {
            "subspace_dim": self.new.subspace_dim,
            "codec": self.way.codec,
            "averaging": self.way.averaging,
            "step_s": self.way.forecast.step_s,
            "loss_percent": loss.gap,
            "kept": loss.kept,
            "tokens": loss.tokens,
            "hours": self.way.hours(self.steps),
        }


def choose(new: NewRun, line: Line, cards: str | None) -> Choice:
    """Choose for peers with this line. Values that `new` sets are not changed.

    `cards`: those of all peers, as in cards.py. None: as many processors like this one as the run wants peers; this one
    is measured. Imports torch. Raises ManifestError, UnknownCard.
    """
    dense, _ = new.made(measure=False)
    if dense.model.kind != "llama":
        raise ManifestError(
            f"--line chooses by losses of language models, but preset {new.preset} is a classifier: leave --line out, "
            "or choose a codec with --compress"
        )
    cards = "".join((cards or "").split()) or f"{MINE}:{dense.model.stages * dense.swarm.replicas}"
    told = new.set_keys
    new = _with_replicas(new, dense, len(parse_cards(cards)) // dense.model.stages)
    dense, _ = new.made(measure=False)
    # measured once: a difference between two measurements is larger than one between two widths
    speed = own_speed(_manifest(dense)) if MINE in parse_cards(cards) else None
    fleets = [_fleet(wide, run, cards, line, speed) for wide, run in _widths(new, dense)]
    fitting = [(wide, fleet) for wide, fleet in fleets if not unfit(fleet.placements)]
    if not fitting:
        lacks = "; ".join(lacking(each) for each in unfit(fleets[0][1].placements))
        raise ManifestError(
            f"{lacks}: cut the model into more stages (--stages), make microbatches smaller (--set batch.sequences=1), "
            "or name larger cards with --gpu"
        )
    found = [each for wide, fleet in fitting for each in _candidates(wide, fleet)]
    best = soonest(each.way for each in found)
    if best is None:
        raise ManifestError(
            f"--line compares measured losses, but none was measured for codec {dense.codec.forward}, "
            f"{dense.codec.backward} with "
            f"averaging {dense.sums.averaging} and this kind of boundary (docs/compression.md): let --line choose "
            "one of them"
        )
    chosen = next(each for each in found if each.way is best)
    free = fitting[0][1].unlimited() * dense.run.steps / 3600
    reasons = _reasons(chosen, found, free, line, cards, dense.run.steps)
    if chosen.new.set_keys != told:
        replicas = chosen.fleet.manifest.swarm.replicas
        reasons += (f"swarm.replicas = {replicas}: with these cards, a stage gets no more peers.",)
    return Choice(chosen.new, best, dense.run.steps, reasons)


def _with_replicas(new: NewRun, run: RunFile, cards: int) -> NewRun:
    """The run with `cards` planned replicas, if it asks for more and `new` does not set them: it would wait for peers
    that do not exist.
    """
    if "swarm.replicas" in new.set_keys or run.swarm.replicas <= max(1, cards):
        return new
    return replace(new, overrides=(*new.overrides, f"swarm.replicas={max(1, cards)}"))


def _fleet(new: NewRun, run: RunFile, cards: str, line: Line, speed: Speed | None) -> tuple[NewRun, Fleet]:
    """The run on these cards, without replicas that no cards are for: those that fit a stage may be few."""
    fleet = Fleet(_manifest(run), cards, line, speed)
    fewer = _with_replicas(new, run, fleet.rows)
    if fewer is new:
        return new, fleet
    return fewer, Fleet(_manifest(fewer.made(measure=False)[0]), cards, line, speed)


def _widths(new: NewRun, dense: RunFile) -> list[tuple[NewRun, RunFile]]:
    """The run with each width that may be chosen, also with token means, which only `ENTROPY` uses."""
    found = [(new, dense)]
    if new.subspace_dim is not None or new.narrowed or new.set_keys & _WIDTH_KEYS or dense.model.stages == 1:
        return found
    if dense.model.tie_embeddings:  # a tied model has no subspace
        return found
    for width in subspaces(dense.model):
        narrow = replace(new, subspace_dim=width)
        found.append((narrow, narrow.made(measure=False)[0]))
    if new.codec is None and not new.set_keys & (_CODEC_KEYS | {"model.token_means"}):
        for narrow, _ in found[1:]:
            centred = replace(narrow, codec=ENTROPY)
            found.append((centred, centred.made(measure=False)[0]))
    return found


def _candidates(new: NewRun, fleet: Fleet) -> list[_Candidate]:
    """The ways that leave what `new` sets itself as it is."""
    run, fixed = fleet.manifest, new.set_keys
    own_codec = new.codec is not None or fixed & _CODEC_KEYS or run.model.stages == 1
    own_sums = new.averaging is not None or fixed & _SUM_KEYS or fleet.most == 1
    return [
        _Candidate(
            replace(new, codec=codec or new.codec, averaging=averaging or new.averaging),
            run.model.widest_boundary,
            fleet,
            fleet.way(codec, averaging or run.sums.averaging),
        )
        for codec in ((None,) if own_codec else CODECS)
        for averaging in ((None,) if own_sums else EXACT)
    ]


def _manifest(run: RunFile) -> RunManifest:
    """The run over a corpus that need not exist: it plays no part in time."""
    return run.resolve(
        DataSection(
            tokenizer_sha256="0" * 64,
            vocab_size=1,
            train=(_SHARD,),
            heldout=(_SHARD,),
            unigram_entropy=1.0,
            bytes_per_token=1.0,
        )
    )


def _reasons(
    chosen: _Candidate, found: Sequence[_Candidate], free: float, line: Line, cards: str, steps: int
) -> tuple[str, ...]:
    """The choice beside the best of each other width and of each other averaging, as a table in text.

    `free`: hours of the uncoded run on unlimited links.
    """
    rows: list[tuple[str, ...]] = [("width", "codec", "averaging", "step, s", "loss", "kept", "tokens", "hours", "")]
    rows += [_row(each, steps, "chosen" if each is chosen else "") for each in _shown(chosen, found)]
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(cell.rjust(size) for cell, size in zip(row, sizes, strict=True)).rstrip() for row in rows]
    loss, hours = chosen.way.loss, chosen.way.hours(steps)
    assert loss is not None and hours is not None
    return (
        f"Width, codec and averaging are chosen for {cards} and lines of {_in_words(line)}:",
        f"with these, the run reaches a loss first. They cost {percent(loss.gap)} of loss after the same tokens.",
        f"The loss that the model has after {steps} steps without codecs takes {loss.tokens:.2f} times the tokens:",
        f"{hours:.3g} hours. Without codecs and on unlimited links, it would take {free:.3g} hours.",
        *table,
        *(line for said in chosen.fleet.warnings for line in wrap(f"Warning: {said}.", 112)),
        "Width: values per token at a boundary. Kept: what is left of a boundary's worth; –: not measured. Times",
        "are computed; losses were measured with small models, each against the same model without codecs",
        "(docs/compression.md, docs/averaging.md). To see how large steps must be to be efficient, run",
        f"`swarm-peer coordinate RUN.toml --dry-run --gpu {cards} --line {_in_words(line)}`.",
    )


def _shown(chosen: _Candidate, found: Sequence[_Candidate]) -> Iterator[_Candidate]:
    """For each width its best way, for the chosen width also the best with each other averaging."""
    for width in dict.fromkeys(each.width for each in found):
        of_width = [each for each in found if each.width == width and each.way.loss is not None]
        groups = {each.way.averaging for each in of_width} if width == chosen.width else {None}
        bests = [soonest(each.way for each in of_width if group in (None, each.way.averaging)) for group in groups]
        yield from (each for each in of_width if any(each.way is best for best in bests))


def _row(each: _Candidate, steps: int, note: str) -> tuple[str, ...]:
    way, hours = each.way, each.way.hours(steps)
    assert way.loss is not None and hours is not None
    kept = "–" if way.loss.kept is None else f"{way.loss.kept:.2f}"
    cost = percent(way.loss.gap), kept, f"{way.loss.tokens:.2f}", f"{hours:.3g}"
    return str(each.width), way.codec, way.averaging, f"{way.forecast.step_s:.3g}", *cost, note


def _in_words(line: Line) -> str:
    """The line as `--line` takes it."""
    down, up = (rate * 8 / 1e6 for rate in (line.down, line.up))
    rates = f"{down:g}Mbit" if down == up else f"{down:g}Mbit/{up:g}Mbit"
    return f"{rates},{1000 * line.delay_s:g}ms"
