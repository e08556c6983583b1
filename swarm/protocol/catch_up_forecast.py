"""Forecast whether a newcomer can ever catch up: the sums of a step must arrive in less time than a step takes.

When a peer takes up a stage while others train, the coordinator tells the organiser and the peer tells its owner. The
forecast does not know what else uses the newcomer's downlink, nor how much uplink the donors have left.
"""

from __future__ import annotations

from swarm.events import CatchUpForecast
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.settings import Settings


def forecast(
    actor: Actor, stage: StageIndex, settings: Settings, downlink: float | None, step_s: float
) -> CatchUpForecast | None:
    """`downlink`: bytes/s. `step_s`: seconds per step. None while one of them, or the size of the sums, is unknown."""
    nbytes = settings.stage_sums[stage] if settings.stage_sums else 0
    if not downlink or not nbytes or step_s <= 0:
        return None
    sums_s = nbytes / downlink
    return CatchUpForecast(str(actor), stage, nbytes, sums_s, step_s, sums_s < step_s)
