"""Runs work in a thread and waits until the work has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def to_its_end(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run `function` in a thread. A thread cannot be stopped, so even a cancelled caller waits until the work has
    ended.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments, **named))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait((work,))
        raise
