"""The tables of docs/faults.md: what they show is what was measured, and where a target is missed they say so."""

import copy
import json

from benchmarks import aims, faults
from benchmarks.fault_matrix import FENCED, JOINED, LEADS, LOST
from benchmarks.scenarios import IN_CI, IN_LONG_CI
from swarm.events import LeadershipTaken, PeerFenced, PeerJoined, PeerLost

REPORTS = json.loads(faults.RESULTS.read_text())["reports"]


def rows_of(reports: dict[str, dict[str, object]]) -> dict[int, str]:
    return {int(line.split("|")[1]): line for line in faults.table(reports).splitlines()[2:]}


def test_the_page_shows_the_results_on_record() -> None:
    page = faults.PAGE.read_text(encoding="utf-8")
    assert faults.with_table(page, REPORTS) == page, "write it anew: python -m benchmarks.faults"
    assert "not played yet" not in page and "not as expected" not in page


def test_every_scenario_is_on_record_and_went_as_expected() -> None:
    scenarios = {path.stem for path in faults.SCENARIOS.glob("*.toml")}
    assert scenarios == set(REPORTS) and {*IN_CI, *IN_LONG_CI} < scenarios
    assert not [name for name, report in REPORTS.items() if report["failures"]]


def test_what_was_not_as_expected_is_shown_and_what_was_not_played() -> None:
    reports = copy.deepcopy(REPORTS)
    reports["liars"]["equal"] = False
    reports["ctrl-c"]["failures"] = ["p0 stayed"]
    del reports["full-disk"]
    rows = rows_of(reports)
    assert len(rows) == 19
    assert "digests **not** equal" in rows[14] and "2 of 10 expelled" in rows[14]
    assert "**not as expected:** p0 stayed" in rows[16] and "not played yet" in rows[13]


def test_a_target_that_is_missed_is_shown() -> None:
    reports = copy.deepcopy(REPORTS)
    reports["last-replica"]["longest_gap_s"] = 31.0
    reports["soak-long"]["longest_gap_s"] = 45.0
    rows = rows_of(reports)
    assert "**missed:** 31.0 s" in rows[5] and "**missed:** " in rows[18]
    assert "**missed:**" not in rows_of(REPORTS)[5]


def test_the_other_aims_are_judged_by_their_figures() -> None:
    join = {
        "joiners": 1,
        "averaging": "none",
        "state_MB": 71.0,
        "until_loaded_s": 9.0,
        "until_forwarded_s": 9.5,
        "total_s": 10.0,
        "bound_s": 10.0,
        "incumbents_rate": 0.9,
        "donor_load_max_over_mean": 2.0,
    }
    first, costs = aims.AIMS[:2]
    assert all(figure.met for aim in (first, costs) for figure in aim.figures({"rows": [join]}))
    late = join | {"until_forwarded_s": 10.1, "incumbents_rate": 0.89}
    came, missed = first.figures({"rows": [join, late]})
    assert str(came).startswith("71 MB, exact sums: loaded after 9.0 s") and str(missed).startswith("**missed:** 71 MB")
    slowed, _ = costs.figures({"rows": [join, late]})
    assert str(slowed) == "**missed:** 0.89 and more"
    departures = {"rows": [{"departures": "0.16", "goodput": 0.9, "equal": True}]}
    assert aims.goodput_met(departures) and aims.goodput(departures) == "0.90 at 16 %; digests equal"
    assert not aims.goodput_met({"rows": [{"departures": "trace", "goodput": 0.79, "equal": True}]})


def test_the_matrix_looks_for_what_reports_say_today() -> None:
    lost = PeerLost(actor="p0.1", stage=0, reason="its connection broke")
    fenced = PeerFenced(actor="p0.1", stage=0, pass_id="1:2", finished=[1], unfinished=[2], reason="silent")
    joined = PeerJoined(actor="p0.1", stage=0, reason="it came back")
    leads = LeadershipTaken(actor="coordinator2", ballot=2, reached=3, members=3)
    for event, word in ((lost, LOST), (fenced, FENCED), (joined, JOINED), (leads, LEADS)):
        assert word in event.describe()
