"""The view of the run: its state in words, its progress, its speed compared with the ideal, and its cost."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from peers.fold.facts import RunFacts
from peers.fold.links import KINDS
from peers.fold.state import RunState
from peers.fold.views.goodput import goodput_view
from peers.fold.work import ideal_rate

RECENT_STEPS = 16


def run_view(
    state: RunState,
    facts: RunFacts | None = None,
    now: float | None = None,
    *,
    live: bool = False,
    control: bool = False,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """`now`: the moment that is looked at, in unix seconds; by default, that of the last event. `live`: True if a
    process is writing the log now. `control`: True if this viewer may give commands.
    """
    run, work, pipeline = state.run, state.work, state.pipeline
    last = work.steps[-1] if work.steps else None
    heldout = state.results.evaluations[-1] if state.results.evaluations else None
    alone = next(iter(run.coordinators), None) if len(run.coordinators) == 1 and not state.faults.led else None
    stages = len(pipeline.replicas) or (len(facts.layers) if facts is not None else len(pipeline.stages))
    return {
        "run": facts.name if facts is not None else None,
        "run_hash": run.run_hash,
        "release": run.release,
        "role": run.role,
        "actor": run.actor,
        "at": run.last_at,
        "first_at": run.first_at,
        "last_at": run.last_at,
        "live": live,
        "finished": run.finished,
        "state": {"word": run.word or "starting", "reason": run.reason, "since": run.since},
        "leader": run.leader,
        "coordinators": [
            {"actor": each.actor, "leads": each.actor == (run.leader or alone) and not each.stopped}
            | {"last_at": each.last_at}
            for each in run.coordinators.values()
        ],
        "step": run.step if run.step >= 0 else None,
        "steps": total_steps(state, facts),
        "open": _open(state),
        "tokens": work.tokens,
        "tokens_undone": state.people.undone,
        "tokens_per_step": work.tokens_per_step or (facts.tokens_per_step if facts is not None else None),
        "eta_s": _eta(state, facts),
        "loss": last.loss if last is not None else None,
        "heldout": None if heldout is None else {"loss": heldout.loss, "version": heldout.version, "at": heldout.at},
        "gradient_norm": last.gradient_norm if last is not None else None,
        "tokens_per_second": speed(state),
        "ideal_tokens_per_second": ideal_rate(state),
        "efficiency": last.efficiency if last is not None else None,
        "goodput": goodput_view(state, run.last_at if now is None else now),
        "bytes": bytes_view(state, facts),
        "peers": len(state.members.here),
        "standby": state.members.standby(),
        "stages": stages,
        "replicas": list(pipeline.replicas),
        "archived": state.results.archived,
        "faults": state.faults.number,
        "lost": {"seconds": state.faults.seconds, "tokens": state.faults.tokens},
        "trouble": None if run.trouble_at is None else {"at": run.trouble_at, "text": run.trouble},
        "control": control,
        "warnings": list(warnings),
    }


def total_steps(state: RunState, facts: RunFacts | None) -> int | None:
    """The number of steps of the run: the number that the organiser set last; by default, that of the manifest."""
    return state.run.steps if state.run.steps is not None else facts.steps if facts is not None else None


def speed(state: RunState) -> float | None:
    """Tokens/s of the last step."""
    if not state.work.steps:
        return None
    last = state.work.steps[-1]
    if last.tokens_per_second is not None:
        return last.tokens_per_second
    return last.tokens / last.seconds if last.seconds else None


def bytes_view(state: RunState, facts: RunFacts | None) -> dict[str, Any]:
    """Bytes that peers reported to have sent, by kind, and the fp32 size of the activations and gradients of all
    decided steps, including those that were rolled back, since their bytes were sent too.

    If no peer reported any, the bytes that the processes of these logs sent, without kinds.
    """
    links = state.links
    by_kind = {kind: links.sent.get(kind, 0) for kind in sorted(KINDS)}
    sent = sum(by_kind.values())
    if not sent:
        traffic = links.traffic.values()
        sent = sum(sum(each.sent.values()) + each.sent_before for each in traffic)
    fp32 = saved = None
    if facts is not None and by_kind["forward"] + by_kind["backward"]:
        fp32 = 2 * state.work.decided * facts.microbatches * facts.frames_fp32
        saved = fp32 / (by_kind["forward"] + by_kind["backward"])
    return {"sent": sent, "by_kind": by_kind, "fp32": fp32, "saved": saved}


def _open(state: RunState) -> dict[str, Any] | None:
    opened = state.pipeline.open
    if opened is None:
        return None
    return {
        "pass_id": opened.pass_id,
        "kind": opened.kind,
        "step": opened.step,
        "opened_at": opened.opened_at,
        "stages": [list(stage.told) or [0, 0, opened.microbatches] for stage in state.pipeline.stages],
    }


def _eta(state: RunState, facts: RunFacts | None) -> float | None:
    """Expected seconds from the last decided step to the end of the run, including evaluations."""
    steps, run = total_steps(state, facts), state.run
    if steps is None or run.finished:
        return 0.0 if run.finished else None
    recent = state.work.steps[-RECENT_STEPS:]
    between = [b.decided_at - a.decided_at for a, b in itertools.pairwise(recent)]
    between = [seconds for seconds in between if seconds > 0]
    if not between:
        between = [step.seconds for step in recent if step.seconds]
    return statistics.median(between) * max(0, steps - run.step - 1) if between else None
