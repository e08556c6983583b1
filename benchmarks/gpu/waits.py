"""Counts how often each thread of this process waits for a CUDA device."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

LAUNCHING = "compute-"
"""The name of the thread that launches work begins so."""


class Waits:
    """Explicit waits are calls of `synchronize`, by thread. Implicit ones, such as `.item()`, are found by torch's
    debug mode for synchronisation, which does not name the thread.
    """

    def __init__(self) -> None:
        self._explicit: Counter[str] = Counter()
        self._implicit: list[warnings.WarningMessage] = []

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count inside this context."""
        owners = ((torch.cuda.Event, "synchronize"), (torch.cuda.Stream, "synchronize"), (torch.cuda, "synchronize"))
        plain = [(owner, name, getattr(owner, name)) for owner, name in owners]
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as implicit:
            warnings.simplefilter("always")
            self._implicit = implicit
            for owner, name, call in plain:
                setattr(owner, name, self._counting(call))
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode(mode)
                for owner, name, call in plain:
                    setattr(owner, name, call)

    def forget(self) -> None:
        """Forget what was counted so far."""
        self._explicit.clear()
        self._implicit.clear()

    def per_microbatch(self, count: int) -> dict[str, Any]:
        """`waits_launching`: explicit waits of the thread that launches, and all implicit waits."""
        implicit = [each for each in self._implicit if "synchroniz" in str(each.message)]
        launching = sum(n for name, n in self._explicit.items() if name.startswith(LAUNCHING))
        return {
            "waits_launching": round((launching + len(implicit)) / count, 3),
            "waits_implicit": round(len(implicit) / count, 3),
            "waits_by_thread": {name: round(n / count, 3) for name, n in sorted(self._explicit.items())},
        }

    def _counting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **kwargs: Any) -> Any:
            self._explicit[threading.current_thread().name] += 1
            return call(*args, **kwargs)

        return counting
