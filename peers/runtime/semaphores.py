"""Semaphores, which hivemind makes when it is imported. On Linux they are files in /dev/shm."""

from __future__ import annotations


class NoSemaphores(OSError):
    """This system gives no semaphores; the text says why and what to do."""


def need_semaphores() -> None:
    """Raise NoSemaphores if this process cannot make one."""
    import multiprocessing

    try:
        multiprocessing.Lock()
    except (OSError, ImportError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise NoSemaphores(
            f"no semaphore can be made in /dev/shm ({reason}): mount it so that it can be written, such as with "
            "`mount -t tmpfs tmpfs /dev/shm`"
        ) from None
