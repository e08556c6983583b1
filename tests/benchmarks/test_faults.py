"""The fault matrix of docs/faults.md: what it shows is what was measured."""

import copy
import json

from benchmarks import faults

REPORTS = json.loads(faults.RESULTS.read_text())["reports"]


def test_the_page_shows_the_results_on_record() -> None:
    page = faults.PAGE.read_text(encoding="utf-8")
    assert faults.with_table(page, REPORTS) == page, "write it anew: python -m benchmarks.faults"
    assert "not played yet" not in page and "not as expected" not in page


def test_what_was_not_as_expected_is_shown_and_what_was_not_played() -> None:
    reports = copy.deepcopy(REPORTS)
    reports["liars"]["equal"] = False
    reports["ctrl-c"]["failures"] = ["p0 stayed"]
    del reports["full-disk"]
    rows = {int(line.split("|")[1]): line for line in faults.table(reports).splitlines()[2:]}
    assert len(rows) == 18
    assert "digests **not** equal" in rows[14] and "2 of 10 expelled" in rows[14]
    assert "**not as expected:** p0 stayed" in rows[16] and "not played yet" in rows[13]
