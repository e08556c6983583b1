"""Whole swarms wait as long as they compute, so `pytest -n 5 --dist loadgroup` runs up to five at once on two cores.

Those of one file run one after the other, on one worker, which starts their nursery and trains their references once.
So do tests that share a fixture of their file.
"""

import gc
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parent
sys.path.append(str(TESTS / "harness"))  # what tests of several folders share

DAEMON = "SWARM_PEER_P2PD"
"""The environment variable that names the daemon: swarm/net/daemon.py."""

# a libp2p daemon that collects garbage less often starts with a fifth less work, and each test starts several
os.environ.setdefault("GOGC", "400")

# a thread that waits for another one of the same product spins: on busy cores a third of the time of tests with torch
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Compiled code is kept, whatever the environment says: else every worker rewrites every test's assertions again, and
# every process that a test starts compiles the whole package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

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
_SLOW_TAKES = 6
"""How many times longer a slow test takes than another one: 1.2 s and 0.2 s on average."""
_LAST_WAITING = 0.9
"""The part of the run after which no whole swarm begins."""
NOT_SLOW = ("net/test_wire.py", "net/test_handshake.py", "net/test_invite.py", "net/test_links.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked `long` too, and scan seeds for mutants")


def pytest_configure(config: pytest.Config) -> None:
    """A shell that starts this in the background makes it ignore Ctrl-C; what tests start must not inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # `_spread` gives the order
        if config.option.maxworkerrestart is None:
            config.option.maxworkerrestart = "0"  # a worker that replaces one that died waits for its tests for ever
    _unpack_daemon(config)


def _unpack_daemon(config: pytest.Config) -> None:
    """Let all processes that tests start use an unpacked daemon: its start takes a third of the time."""
    from unpacked_daemon import packed_daemon, write_unpacked

    packed = packed_daemon()
    if DAEMON in os.environ or config.option.collectonly or packed is None:  # workers of a test run inherit it
        return
    folder = tempfile.TemporaryDirectory(prefix="swarm-peer-daemon-")
    config.add_cleanup(lambda: os.environ.pop(DAEMON, None))
    config.add_cleanup(folder.cleanup)
    os.chmod(folder.name, 0o755)  # some tests run as other users
    try:
        os.environ[DAEMON] = str(write_unpacked(packed, Path(folder.name)))
    except OSError as error:
        warnings.warn(f"tests start the packed libp2p daemon, which takes longer: {error}", stacklevel=1)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("long") is not None]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.get_closest_marker("long") is None]
    slow = _within(SLOW, NOT_SLOW)
    for item in items:
        is_swarm = item.get_closest_marker("swarm") is not None
        whole = _waits(item)
        if item.get_closest_marker("timeout") is None:
            if item.get_closest_marker("long") is not None:
                item.add_marker(pytest.mark.timeout(3600))
            elif whole:  # a machine may be busy with other swarms
                item.add_marker(pytest.mark.timeout(900))
        if is_swarm or slow(item.path):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("xdist_group") is None:
            if is_swarm:
                item.add_marker(pytest.mark.xdist_group(item.path.stem))
            elif _shares_with_its_file(item):
                item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(TESTS))))
    if hasattr(config, "workerinput"):  # several at once
        items[:] = _spread(items)


def _spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests in an order that keeps the processors busy: whole swarms, which wait for half of their time, evenly
    among the tests that only compute. Tests of one group stay together. The last tests are short, so that all workers
    end together.
    """
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        group = item.get_closest_marker("xdist_group")
        groups.setdefault(f"@{group.args[0]}" if group else item.nodeid, []).append(item)
    waiting = [group for group in groups.values() if _waits(group[0])]
    computing = [group for group in groups.values() if not _waits(group[0])]
    for each in (waiting, computing):
        each.sort(key=lambda group: -len(group))  # those that share fixtures take longest, so they come first
    placed = [(_LAST_WAITING * at, group) for at, group in _places(waiting)] + list(_places(computing))
    return [item for _, group in sorted(placed, key=lambda place: place[0]) for item in group]


def _waits(item: pytest.Item) -> bool:
    """Whether a test starts whole swarms. That folder marks its tests after this is asked."""
    return item.get_closest_marker("swarm") is not None or TESTS / "swarm" in item.path.parents


def _places(groups: list[list[pytest.Item]]) -> Iterator[tuple[float, list[pytest.Item]]]:
    """Where each group begins in the run if these groups take all of it: 0 to 1. A slow test counts six times."""
    takes = [sum(_SLOW_TAKES if item.get_closest_marker("slow") else 1 for item in group) for group in groups]
    at = 0.0
    for group, each in zip(groups, takes, strict=True):
        yield at / sum(takes), group
        at += each


def pytest_collection_finish() -> None:
    """Garbage collection in a test need not visit all modules and tests again: that takes half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """What a signal does in one test must not be what another test has left behind."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    ended = yield
    for number, does in before.items():
        signal.signal(number, does)
    return ended


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the page showed to the report of a failed browser test."""
    report = yield
    page = getattr(item, "funcargs", {}).get("page")
    if report.when == "call" and report.failed and page is not None:
        with suppress(Exception):
            report.sections.append(("the page", f"{page.url}\n{page.inner_text('body', timeout=5000)[:5000]}"))
    return report


def _within(names: tuple[str, ...], but: tuple[str, ...]) -> Callable[[Path], bool]:
    """Whether a file is one of these or in a folder of them, and not one of those."""
    places, others = ({TESTS / name for name in each} for each in (names, but))
    if missing := sorted(str(path) for path in places | others if not path.exists()):
        raise pytest.UsageError(f"tests/conftest.py names tests that are not there: {', '.join(missing)}")

    @cache  # thousands of tests are in a few hundred files
    def within(path: Path) -> bool:
        return path not in others and not places.isdisjoint((path, *path.parents))

    return within


def _shares_with_its_file(item: pytest.Item) -> bool:
    """Whether it uses a fixture that one worker makes once a file: several workers would make it several times."""
    known = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    return any(each.scope == "module" and each.baseid for found in known.values() for each in found)
