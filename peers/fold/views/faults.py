"""The view of all incidents with time, peer, reason and cost, the newest first."""

from __future__ import annotations

from typing import Any

from peers.fold.faults import FaultRecord
from peers.fold.state import RunState
from peers.fold.views.paging import page
from peers.fold.views.words import display_name

WORDS = {
    "fenced": "taken out of the step",
    "lost": "lost in the step",
    "slow": "too slow",
    "aborted": "step begun anew",
    "dropped": "evaluation given up",
    "rolled back": "steps undone",
    "expelled": "expelled",
    "waiting": "nothing could start",
    "diverged": "no result was finite any more",
    "out of memory": "not enough memory for a microbatch",
    "restart": "coordinator died",
    "failover": "another coordinator took over",
}


def faults_view(state: RunState, *, offset: int = 0, limit: int = 200) -> dict[str, Any]:
    """`total`: number of incidents that are kept, at most the last 500. `lost`: the losses of all incidents so far."""
    items = list(reversed(state.faults.items))
    return {
        "total": len(items),
        "ever": state.faults.number,
        "lost": {"seconds": state.faults.seconds, "tokens": state.faults.tokens},
        "faults": [fault_row(fault) for fault in page(items, offset, limit)],
    }


def fault_row(fault: FaultRecord) -> dict[str, Any]:
    word = WORDS.get(fault.kind, fault.kind)
    if fault.kind == "lost" and not fault.pass_id:
        word = "lost while it had no work in a step"
    if "+" in fault.pass_id:
        word = word.replace("step", "evaluation")
    return {
        "id": fault.id,
        "at": fault.at,
        "kind": fault.kind,
        "word": word,
        "actor": fault.actor or None,
        "name": display_name(fault.actor) if fault.actor else None,
        "stage": fault.stage,
        "step": fault.step,
        "pass_id": fault.pass_id,
        "reason": fault.reason,
        "microbatches": fault.microbatches,
        "finished": fault.finished,
        "seconds": fault.seconds,
        "tokens": fault.tokens,
        "recovered_at": fault.recovered_at,
        "costed": fault.costed,
    }
