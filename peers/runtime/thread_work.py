"""Work in a thread that is awaited to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def to_its_end(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run in a thread, which cannot be stopped: a cancelled caller still waits for its end."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments, **named))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait((work,))
        raise
