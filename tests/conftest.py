"""Tests that start whole swarms run one after the other, on one worker of `pytest -n 2 --dist loadgroup`.

Those with hosts of their own (tests/internet) are on another one: most of their time is waiting.
"""

import signal
import sys
from pathlib import Path

import hypothesis
import pytest

sys.path.append(str(Path(__file__).parent / "harness"))  # what tests of several folders share

# how long an example takes says how busy the machine is
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")


def pytest_configure() -> None:
    """A shell that starts this in the background makes it ignore Ctrl-C; what tests start must not inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("swarm") is not None and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("swarm"))
