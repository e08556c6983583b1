"""Forecasts whether a newcomer can catch up: the sums of a step must arrive in less time than a step takes.

When a peer takes up a stage while others train, the coordinator informs the organiser, and the peer informs its owner.
The forecast ignores other traffic on the newcomer's downlink and the free uplink of the donors.
"""

from __future__ import annotations

from swarm.events import CatchUpForecast
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.settings import Settings


def forecast(
    actor: Actor, stage: StageIndex, settings: Settings, downlink: float | None, step_s: float
) -> CatchUpForecast | None:
    """The forecast, or None if an input or the size of the sums is unknown. `downlink`: bytes/s. `step_s`: seconds per
    step.
    """
    nbytes = settings.stage_sums[stage] if settings.stage_sums else 0
    if not downlink or not nbytes or step_s <= 0:
        return None
    sums_s = nbytes / downlink
    return CatchUpForecast(str(actor), stage, nbytes, sums_s, step_s, sums_s < step_s)
