"""Carries out faults on machines and links."""

from __future__ import annotations

import time
from collections.abc import Mapping

from peers.chaos.fault import PlannedFault, between
from peers.chaos.internet import Internet, all_pairs
from peers.chaos.machine import EmulatedMachine
from peers.chaos.scenario import NetworkPlan

_END_S = 10.0


class Striker:
    """Carries out the faults of one play. It can do all kinds except `join`, which needs more than a machine."""

    def __init__(self, plan: NetworkPlan, internet: Internet, machines: Mapping[str, EmulatedMachine]) -> None:
        self._plan = plan
        self._internet = internet
        self._machines = machines

    def strike(self, fault: PlannedFault) -> None:
        """Carry out a fault. Raises InternetError, OSError."""
        if fault.kind in ("cut", "heal", "link"):
            self._relink(fault)
            return
        for host in fault.who:
            self._befall(self._machines[host], fault)

    def _befall(self, machine: EmulatedMachine, fault: PlannedFault) -> None:
        match fault.kind:
            case "kill":
                machine.kill()
            case "power_off":
                self._internet.cut(all_pairs([machine.name], self._machines))
                machine.kill()
            case "restart":
                self._restart(machine)
            case "stop":
                machine.stop()
            case "continue":
                machine.resume()
            case "slow":
                machine.slow(fault.factor)
            case "leave":
                machine.leave()
            case "fill":
                machine.free() if fault.undoes else machine.fill(fault.leave)
            case "skew":
                machine.skew(fault.by_s)
            case unknown:
                raise AssertionError(unknown)

    def _restart(self, machine: EmulatedMachine) -> None:
        self._internet.heal(all_pairs([machine.name], self._machines))
        deadline = time.time() + _END_S
        while machine.running and machine.ordered_to_end and time.time() < deadline:
            time.sleep(0.005)
        if machine.running:  # a supervisor would not ask either
            machine.kill()
        while machine.running:
            time.sleep(0.005)
        machine.restart()
        self._internet.started(machine.name, machine.pid)

    def _relink(self, fault: PlannedFault) -> None:
        if fault.between is not None:
            pairs = between(*fault.between, fault.one_way)
        else:
            pairs = all_pairs(fault.who or tuple(self._machines), self._machines)
        if fault.kind == "cut":
            self._internet.cut(pairs)
        elif fault.kind == "heal":
            self._internet.heal(pairs)
        else:
            for pair in pairs:
                self._internet.shape([pair], self._plan.shape(*pair) if fault.undoes else fault.shape)
