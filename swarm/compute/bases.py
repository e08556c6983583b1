"""Bases for codecs that code the change since an earlier visit: the reconstruction of that visit, or its coding error.

The core decides which bases are kept (swarm/protocol/peer/delta_bases.py). All are fp16, in main memory.
"""

from __future__ import annotations

from torch import Tensor

from swarm.compute.digest import reconstruction_digest
from swarm.manifest import RunManifest
from swarm.protocol.ids import BaseKey, End, Microbatch, StepNumber
from swarm.protocol.peer.io import SettleBases


class BaseStore:
    """The bases of one stage. Those of the open step are staged; `settle` makes them bases for the next visit."""

    def __init__(self) -> None:
        self._held: dict[BaseKey, Tensor] = {}
        self._staged: dict[BaseKey, tuple[Tensor | None, int]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def of(self, key: BaseKey | None) -> Tensor | None:
        """The base with this key; None if `key` is None. Raises LookupError if it is not stored."""
        if key is None:
            return None
        if key not in self._held:
            raise LookupError(
                f"the base of microbatch {key.microbatch} from step {key.visit} ({key.end.name.lower()}) is not stored"
            )
        return self._held[key]

    def stage(self, key: BaseKey, crossed: Tensor, left: Tensor | None) -> int:
        """Stage a base. crossed: the reconstruction, fp32; left: the base, fp16, or None. Returns crossed's digest."""
        digest = reconstruction_digest(crossed)
        self._staged[key] = left, digest
        return digest

    def staged_digest(self, key: BaseKey) -> int:
        """The digest that `stage` returned for this key; 0 if nothing is staged."""
        return self._staged[key][1] if key in self._staged else 0

    def discard(self, visit: StepNumber, microbatch: Microbatch) -> None:
        for end in End:
            self._staged.pop(BaseKey(visit, microbatch, end), None)

    def begin(self) -> None:
        """Start a new pass: drop what an earlier pass has staged."""
        self._staged.clear()

    def settle(self, action: SettleBases) -> None:
        for key in action.dropped:
            self._held.pop(key, None)
        for key in action.kept:
            left, _ = self._staged.get(key, (None, 0))
            if left is not None:  # otherwise `of` will raise LookupError for it
                self._held[key] = left
        self._staged.clear()

    def clear(self) -> None:
        self._held.clear()
        self._staged.clear()


def base_bytes(manifest: RunManifest) -> int:
    """Bytes of one base at the widest boundary."""
    return 2 * manifest.batch.tokens_per_microbatch * manifest.model.widest_boundary
