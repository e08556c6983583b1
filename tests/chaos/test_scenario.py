"""Scenarios are checked before anything is started, and errors name the key and what it may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from peers.chaos.pipe import Shape
from peers.chaos.scenario import load
from peers.chaos.table import ScenarioError
from swarm.compute.least_pace import LeastPace

GOOD = """
peers = 2
pace = ["100ms", 0.2]
[network]
up = "80Mbit"
delay = "25ms"
[[link]]
between = [["p0"], ["p1", "coordinator"]]
one_way = true
loss = "5%"
[[fault]]
name = "cut"
do = "cut"
who = "p0"
at = "1s"
for = "2s"
[[expect.event]]
event = "PeerLost"
where = { actor = "p0" }
after = "cut"
within = "3s"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "scenario.toml"
    path.write_text(text)
    return path


def test_a_scenario_is_read(tmp_path: Path) -> None:
    scenario = load(written(tmp_path, GOOD))
    assert scenario.peers == ("p0", "p1")
    assert set(scenario.hosts) == {"coordinator", "p0", "p1"}
    assert scenario.pace == LeastPace(0.1, 0.2)
    assert scenario.hosts["p0"].up == Shape(rate=10_000_000)
    assert scenario.network.links[0].pairs == {("p0", "p1"), ("p0", "coordinator")}
    assert [fault.name for fault in scenario.faults] == ["cut", "cut, over"]
    assert scenario.expect.events[0].within_s == 3.0


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("peers = 2", "peer = 2", "peers is missing: how many peers join, or a list of their names; peer is unknown"),
        ("peers = 2", "peers = -1", "peers = -1: write a number from 1 to 200"),
        ("peers = 2", "peers = 'four'", "peers = 'four': write a number from 1 to 200"),
        ("peers = 2", "peers = 2\nrun = 'none.toml'", "run: there is no file"),
        ("peers = 2", "peers = 2\nsteps = 3", "steps is unknown"),
        ('peers = 2\npace = ["100ms", 0.2]', "peers = 2\npace = '1s'", "the times of a forward and a backward"),
        ('peers = 2\npace = ["100ms", 0.2]', "peers = 2\npace = ['1s', '-1s']", "'-1s' is negative"),
        ('peers = 2\npace = ["100ms", 0.2]', "peers = 2\npace = ['1s', '1h']", "is out of range: 0 to 600"),
        ('do = "cut"', 'do = "cutt"', "did you mean cut"),
        ('who = "p0"', 'who = "p7"', "'p7' is not a host"),
        ('who = "p0"', "", "who is missing"),
        ('at = "1s"', 'at = "1 parsec"', "fault[1].at: '1 parsec' is not a duration"),
        ('at = "1s"', 'when = "1s"', "fault[1].when is unknown"),
        ('at = "1s"', 'after = "rain"', "after 'rain'"),
        ('at = "1s"', 'of = "p0"', "need an `event`"),
        ('at = "1s"', 'event = "PeerLot"', "did you mean PeerLost"),
        (
            'event = "PeerLost"\nwhere = { actor',
            'event = "PeerLost"\nwhere = { actr',
            "actr is not a field of PeerLost",
        ),
        ('loss = "5%"', 'loss = "500%"', "is not a share"),
        ('up = "80Mbit"', 'up = "80 apples"', "network.up"),
        ("[[link]]", "[hosts.coordinator]\nnat = true\n[[link]]", "hosts.coordinator.nat: all peers dial this host"),
        ('delay = "25ms"', 'dealy = "25ms"', "did you mean delay"),
        ('do = "cut"', 'do = "fill"', "would fill the real disk"),
        ('do = "cut"', 'do = "join"', "cannot be undone"),
        ('do = "cut"\nwho = "p0"\nat = "1s"\nfor = "2s"', 'do = "join"\nwho = "p0"', "2 hosts are named 'p0'"),
        ('do = "cut"', 'do = "slow"', "fault[1].factor is missing"),
        ('after = "cut"\nwithin', "within", "needs `after`"),
        ("one_way = true", "one_way = 3", "neither true nor false"),
        ('do = "cut"', 'do = ["cut"]', "fault[1].do: ['cut'] is not text"),
        ('event = "PeerLost"', 'event = ["PeerLost"]', "['PeerLost'] is not text"),
        ('do = "cut"\nwho = "p0"', 'do = "fill"\nwho = "leader"', "name the host whose disk is filled, not 'leader'"),
        ('do = "cut"\nwho = "p0"\nat = "1s"\nfor = "2s"', 'do = "join"\nwho = "leader"', "'leader' is a reserved name"),
        ('do = "cut"\nwho = "p0"\nat = "1s"\nfor = "2s"', 'do = "join"\nwho = ["x", "x"]', "2 hosts are named 'x'"),
        ("peers = 2", 'peers = ["../../evil"]', "'../../evil' is not a name for a host"),
        ("peers = 2", 'peers = ["stage:1", "p1"]', "'stage:1' is not a name for a host"),
        ("peers = 2", 'peers = ["prepare"]', "'prepare' is a reserved name"),
        ("peers = 2", 'peers = ["c0"]\nchurn = { fewest = 1, most = 3, lasts = "1s" }', "2 hosts are named 'c0'"),
        ("peers = 2", 'peers = 2\nchurn = { every = ["soon", "2s"] }', "churn.every: 'soon' is not a duration"),
        ("peers = 2", "peers = 2\nchurn = { fewest = 1, most = 2, lasts = inf }", "churn.lasts: inf is not a duration"),
        (
            "peers = 2",
            "peers = 2\nchurn = { every = [0.001, 1], fewest = 1, most = 2, lasts = '1h' }",
            "100,000 changes",
        ),
        ("peers = 2", f"peers = {'9' * 5000}", "is not TOML: Exceeds the limit"),
        ("peers = 2", "peers = 2\nends = nan", "ends: nan is not a duration"),
        ("peers = 2", "peers = 2\ncoordinators = 99", "an odd number up to 7"),
        ('up = "80Mbit"', "mtu = 10", "network.mtu: 10 is not between 576 and 65535"),
        ("[[link]]", "[hosts.p0]\ndisk = '0MB'\n[[link]]", "hosts.p0.disk: '0MB' is less than 1 MiB"),
        ('do = "cut"', 'do = "slow"\nfactor = inf', "fault[1].factor: inf is not a number"),
        ("[[expect.event]]", "[expect]\nmay_end = 'p7'\n[[expect.event]]", "expect.may_end: 'p7' is not a host"),
    ],
)
def test_a_mistake_is_named(before: str, after: str, says: str, tmp_path: Path) -> None:
    assert before in GOOD
    with pytest.raises(ScenarioError) as error:
        load(written(tmp_path, GOOD.replace(before, after)))
    assert says in str(error.value)
    assert "scenario.toml" in str(error.value)


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent.parent / "internet" / "scenarios").glob("*.toml")), ids=lambda path: path.stem
)
def test_the_scenarios_of_this_repository_are_sound(path: Path) -> None:
    scenario = load(path)
    assert scenario.about and scenario.rows
