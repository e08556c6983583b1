"""Forecast: whether a newcomer can ever catch up. The sums of a step must come in less time than a step takes.

Both sides say it when a stage is taken up while others train: the coordinator to the organiser, the peer to its
owner.
It is a forecast: what others of the house download, and what the donors have left to send, is not known here.
"""

from __future__ import annotations

from swarm.events import CatchUpForecast
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.settings import Settings


def forecast(
    actor: Actor, stage: StageIndex, settings: Settings, downlink: float | None, step_s: float
) -> CatchUpForecast | None:
    """`downlink`: bytes a second; `step_s`: seconds of a step. None while one of them, or the size, is not known."""
    nbytes = settings.stage_sums[stage] if settings.stage_sums else 0
    if not downlink or not nbytes or step_s <= 0:
        return None
    sums_s = nbytes / downlink
    return CatchUpForecast(str(actor), stage, nbytes, sums_s, step_s, sums_s < step_s)
