"""Tests Triton kernels on a device before they are used: they must give the results of the CPU for a small example."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

_log = logging.getLogger(__name__)

T = TypeVar("T")


def checked(what: str, device: torch.device, load: Callable[[], T], agrees: Callable[[T], bool]) -> T | None:
    """The kernels from `load`, if Triton is installed and `agrees` accepts them; otherwise None.

    If it is None, the reason is logged. what: a verb and its object, such as "add gradients". On devices other than
    CUDA: None.
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
    except Exception as error:  # a compiler may raise anything; the run continues without the kernels
        _log.warning("no Triton kernels %s on %s: they failed (%s: %.300s)", what, device, type(error).__name__, error)
        return None
    if not right:
        _log.warning("no Triton kernels %s on %s: their results differ from those of a CPU", what, device)
        return None
    _log.info("Triton kernels %s on %s", what, device)
    return found
