"""The files of `deploy` fit the program: the metrics and states that alerts and board name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from story import Story

from peers.dashboard.metrics import STATES, metrics_text
from peers.fold import views
from swarm import events as e

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = (DEPLOY / "prometheus-rules.yml").read_text(encoding="utf-8")
_KEY = re.compile(r"(?m)^ +(alert|expr|for|labels|annotations): (.+)$")


def rules() -> dict[str, dict[str, str]]:
    """The keys of each alert, by its name."""
    found = {}
    for block in RULES.split("      - ")[1:]:
        keys = dict(_KEY.findall(" " + block))
        found[keys["alert"]] = keys
    assert len(found) == RULES.count("- alert:") > 5
    return found


def served(story: Story) -> str:
    """The metrics of a run."""
    return metrics_text(views.run_view(story.state, live=True), views.pipeline_view(story.state), 0).decode()


@pytest.mark.parametrize("name", ["prometheus-rules.yml", "grafana-dashboard.json"])
def test_all_metrics_and_states_that_are_named_exist(name: str) -> None:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    story = Story().tell(e.PassOpened("1:0", "train", [2, 1], 8)).wait(10).decide(0).steps(1, 200)
    story.tell(e.Evaluated(3, 4.0, 100))
    known = served(story)
    named = set(re.findall(r"\bswarm_peer_[a-z_]+", text))
    optional = {"swarm_peer_eta_seconds"}  # only if the number of steps is known
    assert len(named) > 5 and not {each for each in named if f"\n{each}" not in known} - optional
    assert set(re.findall(r"state=\\?\"([a-z]+)", text)) <= set(STATES)


def test_a_coordinator_that_took_its_dashboard_along_is_a_critical_alert() -> None:
    """The usual case: its `swarm_peer_up` is never seen to be 0."""
    unseen = [keys for keys in rules().values() if 'up{job="swarm-peer"} == 0' in keys["expr"]]
    assert [("severity: critical" in keys["labels"], "training goes on" in keys["annotations"]) for keys in unseen] == [
        (True, False)
    ]


def test_no_alert_is_about_the_last_moment_of_a_run_that_has_died() -> None:
    for name, keys in rules().items():
        about_life = "swarm_peer_up == 0" in keys["expr"] or " up{" in f" {keys['expr']}"
        assert about_life or "and on (instance) swarm_peer_up == 1" in keys["expr"], name
        assert " on () " not in keys["expr"], f"{name}: another run must not hide it"
        assert re.fullmatch("[0-9]+m", keys["for"]), f"{name}: a short moment is no reason for an alert"


def test_the_alert_about_missing_steps_looks_at_a_series_that_begins_before_the_first_step() -> None:
    """A series that begins with the first step has no change, just after a step."""
    counted = re.findall(r"(?:changes|increase|rate)\((swarm_peer_[a-z_]+)\[", RULES)
    before = served(Story())
    assert counted and all(f"\n{name} 0.0\n" in before for name in counted)
    assert "\nswarm_peer_step " not in before
    after = served(Story().open(0).wait(10).decide(0))
    assert all(f"\n{name} 0.0\n" not in after for name in counted)


def test_a_loss_that_is_not_a_number_is_left_out_as_its_alert_expects() -> None:
    diverged = e.StepDecided(1, 0, 1.0, float("nan"), 1.0, 800, [], [])
    text = served(Story().open(0).wait(10).tell(diverged))
    assert "\nswarm_peer_step 1.0\n" in text and "\nswarm_peer_loss " not in text


def test_no_example_shows_a_secret_to_all_users_of_the_machine() -> None:
    """All users can read command lines, and all processes of a service its environment."""
    unit, container = ((DEPLOY / name).read_text(encoding="utf-8") for name in ("swarm-peer.service", "Dockerfile"))
    name, path = re.findall(r"(?m)^LoadCredential=([a-z]+):(/\S+)$", unit)[0]
    assert f" join @${{CREDENTIALS_DIRECTORY}}/{name} " in unit and path in unit.splitlines()[0]
    mounted = re.findall(r'-v "\S+:(/\S+):ro"', container)
    assert len(mounted) == 1 and f" join @{mounted[0]} " in container
    for file in (*DEPLOY.iterdir(), DEPLOY.parent / "README.md", *(DEPLOY.parent / "docs").glob("*.md")):
        if file.is_file() and file.suffix not in (".json", ".py"):
            text = file.read_text(encoding="utf-8")
            shown = re.findall(r"(?m)^.*(?:INVITE=|\$\{?INVITE|(?:-H|--header)[ =]\S*Authorization).*$", text)
            assert not shown, f"{file}: {shown}"
