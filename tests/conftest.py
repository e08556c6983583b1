"""Whole swarms wait more than they compute, so `pytest -n 4 --dist loadgroup` runs up to four at once on two cores.

Those of one file run one after the other, on one worker, which starts their nursery and trains their references once.
So do tests that share a fixture of their file.
"""

import os
import signal
import sys
from pathlib import Path

import hypothesis
import pytest

sys.path.append(str(Path(__file__).parent / "harness"))  # what tests of several folders share

# a libp2p daemon that collects garbage less often starts with a fifth less work, and each test starts several
os.environ.setdefault("GOGC", "400")

# how long an example takes says how busy the machine is
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

SLOW = (
    "benchmarks",
    "cli/test_bootstrap_command.py",
    "cli/test_heap.py",
    "cli/test_odd_surroundings.py",
    "compute/test_averaging.py",
    "compute/test_machine_kinds.py",
    "compute/test_speed.py",
    "cli/test_demo_command.py",
    "dashboard/browser",
    "dashboard/test_fold_of_simulated_runs.py",
    "dashboard/test_report.py",
    "dashboard/test_robust.py",
    "dashboard/test_stream.py",
    "docs/test_site.py",
    "docs/test_worked_examples.py",
    "models/test_building.py",
    "net",
    "protocol/test_raft.py",
    "protocol/test_imported_start.py",
    "protocol/test_teeth.py",
    "protocol/test_told.py",
    "simulation",
    "state/test_generate.py",
    "swarm",
    "test_audited_run.py",
    "test_auto_run.py",
    "test_averaging_run.py",
    "test_controlled_run.py",
    "test_delta_run.py",
    "test_diverging_run.py",
    "test_drifted_run.py",
    "test_nonfinite_run.py",
    "test_reference.py",
    "test_tied_run.py",
)
"""Where tests are that take long together. These and other whole swarms are left out by `-m "not slow"`."""
NOT_SLOW = ("net/test_wire.py", "net/test_handshake.py", "net/test_invite.py", "net/test_links.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked `long` too, and scan seeds for mutants")


def pytest_configure() -> None:
    """A shell that starts this in the background makes it ignore Ctrl-C; what tests start must not inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("long") is not None]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.get_closest_marker("long") is None]
    tests = Path(__file__).parent
    slow, not_slow = ([tests / name for name in names] for names in (SLOW, NOT_SLOW))
    if missing := [path for path in (*slow, *not_slow) if not path.exists()]:
        raise pytest.UsageError(f"tests/conftest.py names tests that are not there: {', '.join(map(str, missing))}")
    for item in items:
        places = (item.path, *item.path.parents)
        listed = any(path in places for path in slow) and item.path not in not_slow
        if listed or item.get_closest_marker("swarm") is not None:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("xdist_group") is None:
            if item.get_closest_marker("swarm") is not None:
                item.add_marker(pytest.mark.xdist_group(item.path.stem))
            elif _shares_with_its_file(item):
                item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(tests))))


def _shares_with_its_file(item: pytest.Item) -> bool:
    """Whether it uses a fixture that one worker makes once a file: several workers would make it several times."""
    known = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    return any(each.scope == "module" and each.baseid for found in known.values() for each in found)
