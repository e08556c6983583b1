"""Answers the organiser's programs: `status` from the core's state, every other command through the core."""

from __future__ import annotations

from typing import Any

from peers.coordinator.driver import CoordinatorDriver
from peers.runtime.control_client import Request
from swarm.protocol.coordinator.commands import signed
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import ControlRequested
from swarm.protocol.raft.member import GroupMember


class Steward:
    def __init__(self, driver: CoordinatorDriver, core: CoordinatorCore | GroupMember) -> None:
        self._driver = driver
        self._core = core

    async def answer(self, request: Request) -> dict[str, Any]:
        """The reply for the control socket. It may never come, so the caller needs a deadline."""
        if request.command == "status":
            return {"ok": True, "number": 0, **self.status()}
        asked = ControlRequested(request.request, request.command, request.value, request.by, request.why)
        answer = await self._driver.command(asked)
        if answer.error:
            return {"ok": False, "error": answer.error, "unsure": answer.unsure}
        return {"ok": True, "number": answer.number, "text": answer.text}

    def status(self) -> dict[str, Any]:
        """The state of the run: `state`, and `text` for people."""
        state = self._state()
        return {"text": _told(state), "state": state}

    def _state(self) -> dict[str, Any]:
        core, leader = self._core, None
        directing: CoordinatorCore | None
        if isinstance(core, GroupMember):
            leader = None if core.leader is None else str(core.leader)
            directing = core.core
        else:
            directing = core
        if directing is not None:
            history = directing.history
            version, controls, archived = history.version, history.controls, history.archived
        else:
            assert isinstance(core, GroupMember)
            standing = core.standing
            version, controls = standing.version, standing.controls
            archived = None if standing.archived is None else standing.archived.version
        paused = controls.paused
        return {
            "phase": core.phase.value,
            "leads": directing is not None,
            "leader": leader,
            "steps_decided": version,
            "steps": controls.end(core.settings),
            "rate": controls.rate,
            "paused": None if paused is None else {"by": paused.by, "why": paused.why, "number": paused.number},
            "paused_text": "" if paused is None else signed("paused", paused),
            "checkpoint_wanted": controls.checkpoint if controls.checkpoint > (archived or 0) else None,
            "archived": archived,
            "expelled": [command.value for command in controls.expelled],
            "peers": len(core.members),
            "commands": controls.count,
        }


def _told(state: dict[str, Any]) -> str:
    here = state["paused_text"] or state["phase"]
    parts = [here if state["leads"] else f"follows {state['leader'] or 'no coordinator, because none leads'}"]
    parts.append(f"{state['steps_decided']} of {state['steps']} steps decided")
    if state["rate"] != 1.0:
        parts.append(f"learning rate × {state['rate']:g}")
    if state["checkpoint_wanted"]:
        parts.append(f"checkpoint {state['checkpoint_wanted']} is being archived")
    if state["leads"]:
        parts.append(f"{state['peers']} peers")
    return "; ".join(parts)
