"""Collects one verified copy of every stage's checkpoint into the archive, from whichever replica has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peers.state_request import StateRequest
from swarm.events import CheckpointRefused, Event
from swarm.net.network import Network
from swarm.protocol.actions import CollectCheckpoint
from swarm.protocol.ids import Actor
from swarm.state.archive import Archive
from swarm.state.error import StateError


async def collect(
    network: Network, archive: Archive, order: CollectCheckpoint, emit: Callable[[Event], None]
) -> tuple[str, ...]:
    """Fetch what the archive lacks of a checkpoint; returns the digests of its stages, in order.

    Empty when some stage could not be had, each holder's reason told: the core orders it again.
    """
    for stage, (holders, file_hash) in enumerate(zip(order.holders, order.digests, strict=True)):
        if archive.holds(stage, order.version, file_hash):
            continue
        for holder in holders:
            try:
                await _fetch(network, archive, holder, stage, order.version, file_hash)
                break
            except (OSError, ValueError, TimeoutError) as error:
                what = f"{holder} stage {stage} version {order.version}"
                emit(CheckpointRefused(what, f"not archived: {error or 'no answer'}"))
        else:
            return ()
    try:
        return tuple(archive.checkpoint(stage, order.version).digest for stage in range(archive.stages))
    except StateError as error:
        emit(CheckpointRefused(error.where, error.reason))
        return ()


async def _fetch(network: Network, archive: Archive, holder: Actor, stage: int, version: int, file_hash: str) -> None:
    request = StateRequest(stage, version, checkpoint=True)
    writer = archive.receive(stage, version, file_hash)
    try:
        transfer = await network.fetch(holder, request.encode())
        async for chunk in transfer.chunks:
            writer.feed(chunk)
        commit = asyncio.ensure_future(asyncio.to_thread(writer.commit))
        try:
            await asyncio.shield(commit)
        except asyncio.CancelledError:
            await commit  # the thread cannot be stopped: who ended us shall not find the file appear later
            raise
    finally:
        writer.abort()
