"""A browser looks at real coordinators: every control has its effect, and a page outlives the leader of a group."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from browser_page import wait_until
from conftest import MakeGroup, MakeSwarm
from served_dashboard import Dashboard, dashboard
from swarm_processes import Process, Swarm

from peers.runtime.control_client import send
from swarm.events import (
    CheckpointArchived,
    ControlGiven,
    DecisionRecorded,
    LeadershipTaken,
    PeerExpelled,
    ProcessStopped,
    RunFinished,
    StepDecided,
)

PACE = "--pace=0.08,0.08"
FOUR = "batch.microbatches=4"
ONE = "--seats=1"
"""A second seat would be a command of its own: the coordinator may ask for one while a busy machine starts peers."""
PEERS = ("p0", "p1", "p2", "p3")
DECIDED = """(steps) => {
    const shown = document.querySelector(".progress b")?.innerText ?? "";
    return Number(shown.replace(/[^0-9]/g, "")) >= steps;
}"""


def sign_in(page: Any, shown: Dashboard) -> None:
    page.goto(f"{shown.address}#token={shown.token}")
    page.locator(".big-state").wait_for()


def command(page: Any, title: str, value: str = "") -> str:
    """Give one on the page of controls; what the page says of it then."""
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Controls").click()
    card = page.locator(".command").filter(has=page.get_by_role("heading", name=title, exact=True))
    if value:
        card.get_by_role("textbox").or_(card.get_by_role("spinbutton")).or_(card.get_by_role("combobox")).fill(value)
    card.get_by_role("button", name=f"{title}…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Why?").fill("to see it")
    dialog.get_by_role("button", name=title, exact=True).click()
    dialog.wait_for(state="detached")
    said = card.locator("[role=status]", has_not_text="Sent…")
    said.wait_for()
    return str(said.inner_text())


def told(process: Process) -> dict[str, Any]:
    return send(process.home, "status", by="the test", timeout=30.0).state


def ask_without_a_token(page: Any, name: str, value: str) -> int:
    """With the page's own means."""
    status: int = page.evaluate(
        """([command, value]) => fetch("/api/v1/control", { method: "POST",
            headers: { "Content-Type": "application/json", "X-Swarm-Peer": "1" },
            body: JSON.stringify({ command, value, why: "" }) }).then((reply) => reply.status)""",
        [name, value],
    )
    return status


@pytest.fixture
def steered(make_swarm: MakeSwarm) -> Iterator[tuple[Swarm, Dashboard]]:
    swarm = make_swarm("none", FOUR, "run.steps=100000", "checkpoint.every=100000", "swarm.replicas=2")
    swarm.coordinate()
    swarm.join_stages(PEERS, dict.fromkeys(PEERS, (PACE, ONE)))
    swarm.coordinator.wait_for(StepDecided)
    with dashboard(swarm.coordinator.home) as shown:
        yield swarm, shown


def test_every_control_has_its_effect_and_none_without_the_token(page: Any, steered: tuple[Swarm, Dashboard]) -> None:
    swarm, shown = steered
    organiser = swarm.coordinator
    page.goto(f"{shown.address}#/controls")
    page.get_by_role("heading", name="Are you the organiser?").wait_for()
    values = {"dismiss": swarm.peers["p3"].actor, "expel": swarm.peers["p2"].actor, "rate": "0.5", "steps": "50000"}
    for name in ("pause", "resume", "checkpoint", "dismiss", "expel", "rate", "steps", "stop_after"):
        assert ask_without_a_token(page, name, values.get(name, "")) in (401, 403), name
    assert told(organiser)["commands"] == 4 and page.locator(".command").count() == 0, "four devices were let in"

    sign_in(page, shown)
    assert "Command 5" in command(page, "Pause")
    organiser.wait(lambda: told(organiser)["phase"] == "between steps", "the end of the open pass")
    assert told(organiser)["paused"] == {"by": "dashboard", "why": "to see it", "number": 5}
    page.get_by_role("link", name=re.compile("paused")).wait_for()
    assert "▲" in command(page, "Pause"), "it is refused, and said"
    assert "Command 6" in command(page, "Learning rate", "0.5")
    assert "Command 7" in command(page, "Length of the run", "50000")
    assert told(organiser)["rate"] == 0.5 and told(organiser)["steps"] == 50000
    decided = told(organiser)["steps_decided"]
    assert "Command 8" in command(page, "Checkpoint now")
    organiser.wait_for(CheckpointArchived, version=decided)
    assert "Command 9" in command(page, "Resume")
    organiser.wait_for(StepDecided, step=decided, rate=0.5)
    assert "Command 10" in command(page, "Expel", swarm.peers["p2"].actor)
    assert swarm.peers["p2"].wait_end() == 4
    assert "expelled from the run by dashboard: to see it" in swarm.peers["p2"].of(ProcessStopped)[-1].reason
    assert "Command 11" in command(page, "Ask to leave", swarm.peers["p3"].actor)
    assert swarm.peers["p3"].wait_end() == 0
    assert len(organiser.of(PeerExpelled)) == 1
    end = told(organiser)["steps_decided"] + 15  # so far that the page is quicker on a busy machine, too
    assert "Command 12" in command(page, "End after a step", str(end))
    organiser.wait_for(RunFinished)
    assert organiser.of(RunFinished)[-1].step + 1 == end
    swarm.finish(("p0", "p1"))
    page.get_by_text("The run is finished: there is nothing to steer.").wait_for()
    assert [event.number for event in organiser.of(ControlGiven)] == list(range(1, 13))
    swarm.assert_command_says_equal(whole=False)


def test_a_page_of_a_follower_outlives_the_leader(page: Any, make_group: MakeGroup) -> None:
    """It dies as it writes that a step is decided: nobody has had that line from it.

    On a busy machine another coordinator may lead by then. So two have pages, and one of these two outlives the leader.
    """
    endless = ("run.steps=100000", "swarm.replicas=1", FOUR)
    swarm = make_group(*endless, "timing.step_budget_s=15", "timing.recruit_after_s=30")
    swarm.start_group("--fault=kill@StepDecided,step=6")
    shown_ones = swarm.followers()
    pages = [page, page.context.new_page()]
    with contextlib.ExitStack() as stack:
        dashboards = [stack.enter_context(dashboard(each.home)) for each in shown_ones]
        for each, shown in zip(pages, dashboards, strict=True):
            sign_in(each, shown)
        swarm.join_stages(PEERS[:2], dict.fromkeys(PEERS, (PACE, ONE)))
        for each in pages:
            wait_until(each, DECIDED, arg=3, within_s=60.0)
            each.evaluate("window.untouched = true")
        coordinators = swarm.coordinators.values()
        shown_ones[0].wait(lambda: any(c.code is not None for c in coordinators), "the leader's death", alive=False)
        (leader,) = (c for c in coordinators if c.code is not None)
        survivor = shown_ones.index(next(each for each in shown_ones if each is not leader))
        follower, page, shown = shown_ones[survivor], pages[survivor], dashboards[survivor]
        wait_until(page, DECIDED, arg=12, within_s=60.0)
        assert page.evaluate("window.untouched"), "it was not loaded anew"
        known = shown.get("/api/v1/run")["step"]
        taken = swarm.coordinator.of(LeadershipTaken)[-1].actor
        assert shown.get("/api/v1/run")["leader"] == taken != leader.actor

        assert follower.of(DecisionRecorded, step=6) and leader.of(StepDecided)[-1].step == 6
        span = shown.get("/api/v1/marks")
        for first in range(0, known, 16):
            steps = shown.get(f"/api/v1/timeline?first={first}&last={min(first + 15, known)}")["steps"]
            assert [step["step"] for step in steps] == list(range(first, min(first + 15, known) + 1)), "no hole"
        curve = shown.get(f"/api/v1/series?name=loss&points=4000&first={span['first']}&last={span['last']}")
        losses = {event.step: event.loss for c in swarm.coordinators.values() for event in c.of(StepDecided)}
        assert curve["last"][: known + 1] == [losses[step] for step in range(known + 1)]

        said = command(page, "End after a step", str(told(swarm.coordinator)["steps_decided"] + 15))
        assert "Command 3" in said, said
        swarm.coordinator.wait_for(RunFinished)
        swarm.finish_group(but=(leader,))
        page.get_by_role("navigation", name="Pages").get_by_role("link", name="Run", exact=True).click()
        page.get_by_text("· finished").wait_for()
    assert [event.command for event in swarm.coordinator.commanded()] == ["stop_after"]
