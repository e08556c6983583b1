"""Bytes moved by a whole swarm, from the last report in each process's event log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from swarm.events import TrafficMeasured, read_log


@dataclass(frozen=True)
class Traffic:
    """Bytes sent by channel, headers included: by all processes, and by peers alone."""

    total: dict[str, int]
    peers: dict[str, int]

    @classmethod
    def of(cls, coordinator: Path, peers: Iterable[Path]) -> Traffic:
        """Sum the event logs at these paths. A killed process counts up to its last report, at most 10 s before its "
        "end."""
        between = Counter[str]()
        for path in peers:
            between.update(_sent(path))
        return cls(dict(between + Counter(_sent(coordinator))), dict(between))

    def per_token_and_boundary(self, trained: int, forwarded: int, boundaries: int) -> tuple[float, float]:
        """Bytes (forward, backward) for each token that crosses a boundary.

        `trained` tokens go both ways. `forwarded` tokens are more, because tokens of evaluations go forward only.
        Frames that were sent again because a peer was lost are included.
        """
        if boundaries == 0:
            return 0.0, 0.0
        forward = self.peers.get("activation", 0) / ((trained + forwarded) * boundaries)
        return forward, self.peers.get("gradient", 0) / (trained * boundaries)


def _sent(path: Path) -> dict[str, int]:
    last: dict[str, int] = {}
    for _, event in read_log(path):
        if isinstance(event, TrafficMeasured):
            last = event.sent
    return last
