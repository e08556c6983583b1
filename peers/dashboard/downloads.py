"""Sends a checkpoint as its file, and an export as a tar file that is made while it is sent."""

from __future__ import annotations

import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
from starlette.responses import FileResponse, Response, StreamingResponse

from peers.dashboard.access import Denied

_CHUNK = 1 << 18
_TAR_RECORD = 10_240


def checkpoint(archive: Path, version: int, stage: int) -> Response:
    """The safetensors file of one stage. Raises Denied."""
    path = archive / f"{version:08d}" / f"stage-{stage}.safetensors"
    if not path.is_file() or not (path.parent / "manifest.json").is_file():
        raise Denied(404, f"the archive has no version {version} of stage {stage}")
    name = f"version-{version}-stage-{stage}.safetensors"
    return FileResponse(path, media_type="application/octet-stream", filename=name)


def folder(path: Path, name: str) -> Response:
    """All files of a folder as an uncompressed tar, because weights hardly compress."""
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.is_symlink())
    entries = [(file, _header(file, name)) for file in files]
    length = sum(len(header) + _padded(file.stat().st_size) for file, header in entries) + _TAR_RECORD
    headers = {"content-length": str(length), "content-disposition": f'attachment; filename="{name}.tar"'}
    return StreamingResponse(_tar(entries), media_type="application/x-tar", headers=headers)


async def _tar(entries: list[tuple[Path, bytes]]) -> AsyncIterator[bytes]:
    for path, header in entries:
        yield header
        size = 0
        async with await anyio.open_file(path, "rb") as file:
            while chunk := await file.read(_CHUNK):
                size += len(chunk)
                yield chunk
        yield bytes(_padded(size) - size)
    yield bytes(_TAR_RECORD)


def _header(path: Path, folder_name: str) -> bytes:
    entry = tarfile.TarInfo(f"{folder_name}/{path.name}")
    stat = path.stat()
    entry.size, entry.mtime, entry.mode = stat.st_size, int(stat.st_mtime), 0o644
    return entry.tobuf(tarfile.PAX_FORMAT)


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def listed(archive: Path) -> Iterator[int]:
    """The versions that are complete in an archive."""
    if archive.is_dir():
        for entry in archive.iterdir():
            if entry.name.isdecimal() and (entry / "manifest.json").is_file():
                yield int(entry.name)
