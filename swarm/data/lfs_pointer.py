"""Git LFS pointers: the few lines that stand for a large file in a repository that was copied without Git LFS.

A pointer has the name of the file, so it would be read as text, or be refused as a damaged file.
(https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md)
"""

from __future__ import annotations

_BEGIN = b"version https://git-lfs.github.com/spec/"


def pointer_advice(start: bytes) -> str:
    """What to do about a file that begins with `start`, if it is a pointer; otherwise empty."""
    advice = "it is a Git LFS pointer in place of the file: fetch the file with `git lfs pull` in its repository"
    return advice if start.startswith(_BEGIN) else ""
