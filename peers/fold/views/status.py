"""The view for `swarm-peer status`: what one process does, according to its own log."""

from __future__ import annotations

from typing import Any

from peers.fold.state import RunState
from peers.fold.views.run import speed


def status_view(state: RunState) -> dict[str, Any]:
    """The status of a process. Values are None until the log contains them. Steps and versions count from 0, as in the
    log.
    """
    run, work = state.run, state.work
    last = work.steps[-1] if work.steps else None
    evaluations = state.results.evaluations
    trouble = None if run.own_trouble_at is None else {"at": run.own_trouble_at, "text": run.own_trouble}
    return {
        "doing": run.doing,
        "state": run.word or None,
        "reason": run.reason,
        "role": run.role,
        "actor": run.actor,
        "run": run.run_hash,
        "release": run.release,
        "max_rate": run.max_rate,
        "machine": run.machine,
        "last_event": run.last_at if run.first_at is not None else None,
        "step": run.step if run.step >= 0 else None,
        "loss": last.loss if last is not None else None,
        "gradient_norm": last.gradient_norm if last is not None else None,
        "tokens_per_second": speed(state),
        "efficiency": last.efficiency if last is not None else None,
        "replicas": list(state.pipeline.replicas) or None,
        "leader": run.own_leader,
        "heldout_loss": evaluations[-1].loss if evaluations else None,
        "archived": state.results.archived,
        "trouble": trouble,
        "stopped": run.stopped,
    }
