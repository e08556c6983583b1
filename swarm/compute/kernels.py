"""Whether Triton kernels do a job on a device: only once they have done a small one there as a CPU does it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

_log = logging.getLogger(__name__)

T = TypeVar("T")


def checked(what: str, device: torch.device, load: Callable[[], T], agrees: Callable[[T], bool]) -> T | None:
    """What `load` imports, if there is Triton and `agrees` says that it is right. Else None, and the log says why.

    what: a verb and its object, as in "add gradients". Only CUDA devices are tried.
    """
    if device.type != "cuda":
        return None
    try:
        found = load()
    except ImportError as error:
        _log.info("no Triton kernels %s on %s: Triton is not installed (%s)", what, device, error)
        return None
    try:
        right = agrees(found)
    except Exception as error:  # whatever a compiler throws: the run goes on without it
        _log.warning("no Triton kernels %s on %s: they failed (%s: %.300s)", what, device, type(error).__name__, error)
        return None
    if not right:
        _log.warning("no Triton kernels %s on %s: their results differ from those of a CPU", what, device)
        return None
    _log.info("Triton kernels %s on %s", what, device)
    return found
