"""The goodput at a moment: the tokens that were processed, divided by those that could have been.

The state counts up to its last decision or change. During a long step or a standstill there is none for a while, so the
view adds the time since then, and what is done of the open step.
"""

from __future__ import annotations

from statistics import fmean

from peers.fold.state import RunState


def goodput_view(state: RunState, now: float) -> dict[str, float | None]:
    """Goodput over the last minute and hour until `now`, by seconds, and over `all` of the run. None: nothing could
    have been processed. After the end of the run, the windows end with it.
    """
    work, run = state.work, state.run
    end = run.finished_at if run.finished and run.finished_at is not None else now
    possible, done = work.unspent(state, end), _done_of_open_step(state)
    found: dict[str, float | None] = {}
    for name, counted in (("60", work.minute), ("3600", work.hour)):
        window = counted.until(end)
        if possible and work.possible_since is not None:
            window.add(work.possible_since, end, 0.0, possible)
        if done:
            window.add(work.opening_at, max(end, work.opening_at), done, 0.0)
        found[name] = window.goodput()
    possible += work.possible
    return found | {"all": (work.done + done) / possible if possible > 0 else None}


def _done_of_open_step(state: RunState) -> float:
    """Tokens of the open step, by the share of its microbatches that the stages have forwarded and accumulated."""
    work, opened = state.work, state.pipeline.open
    if opened is None or opened.step != work.opening_step or opened.kind != "train" or work.possible <= 0:
        return 0.0  # in the first step, nothing was counted as possible
    told = [stage.told for stage in state.pipeline.stages]
    shares = [min(1.0, (each[0] + each[1]) / (2 * each[2])) if each and each[2] else 0.0 for each in told]
    return fmean(shares) * (work.tokens_per_step or 0) if shares else 0.0
