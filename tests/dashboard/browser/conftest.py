"""The browser's tests run one at a time: two cores have enough with one."""

from __future__ import annotations

import pytest
from browser_page import chromium, page

__all__ = ["chromium", "page"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "dashboard/browser" in str(item.path):
            item.add_marker(pytest.mark.xdist_group("browser"))
