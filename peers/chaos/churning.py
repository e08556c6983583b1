"""Turns the random decisions of [churn] into faults, given the processes that run at the moment."""

from __future__ import annotations

from collections.abc import Sequence

from peers.chaos.churn import ChurnPlan, turns
from peers.chaos.fault import PlannedFault
from peers.chaos.holders import stages_held
from peers.chaos.machine import EmulatedMachine, Seen
from peers.chaos.moment import Moment

_AT_ONCE = Moment()


class Churning:
    """The churn of one scenario. `peers`: all peers that are killed and started. The first pause begins at `begin`,
    Unix seconds.
    """

    def __init__(self, churn: ChurnPlan, peers: Sequence[EmulatedMachine], begin: float) -> None:
        self._churn = churn
        self._peers = peers
        self._turns = turns(churn)
        self._at = begin

    def turn(self, now: float, coordinator: Sequence[Seen]) -> PlannedFault | None:
        """The fault of the next random decision, if its time has come."""
        if not self._turns or now < self._at + self._turns[0].after_s:
            return None
        turn = self._turns.pop(0)
        self._at += turn.after_s
        running = [machine for machine in self._peers if machine.running]
        resting = [machine for machine in self._peers if not machine.running]
        if turn.kills and len(running) > self._churn.fewest:
            last = _last_replicas(running, coordinator) if self._churn.spare_last else ()
            victims = [machine for machine in running if machine not in last]
            if victims:
                return _fault("kill", victims[int(turn.pick * len(victims))])
        elif not turn.kills and resting and len(running) < self._churn.most:
            newcomer = resting[int(turn.pick * len(resting))]
            return _fault("restart" if newcomer.pid else "join", newcomer)
        return None


def _fault(kind: str, machine: EmulatedMachine) -> PlannedFault:
    verb = "kills" if kind == "kill" else "starts"
    return PlannedFault(f"churn {verb} {machine.name}", kind, _AT_ONCE, (machine.name,))


def _last_replicas(running: Sequence[EmulatedMachine], coordinator: Sequence[Seen]) -> list[EmulatedMachine]:
    """Machines that are the only holders of a stage, as far as the coordinator's log says."""
    stages = stages_held(coordinator)
    holds = {machine.name: {stages[a] for a in machine.lives[-1:] if a in stages} for machine in running}
    found = []
    for machine in running:
        others = set().union(*(held for name, held in holds.items() if name != machine.name))
        if not holds[machine.name] <= others:
            found.append(machine)
    return found
