"""Coding: how a run sends activations and gradients over its boundaries, under one name."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.manifest import CodecSection, ModelSection


@dataclass(frozen=True, slots=True)
class Coding:
    forward: str
    backward: str
    token_means: bool = False
    """Whether both ends of a boundary keep a mean for each token (docs/boundaries.md)."""

    @property
    def section(self) -> CodecSection:
        return CodecSection(forward=self.forward, backward=self.backward)


ENTROPY = "entropy"
_ENTROPY = Coding("entropy:1.4", "entropy-dithered:1", token_means=True)


def coding(name: str) -> Coding:
    """The coding with this name: `ENTROPY`, or the codec that is used both ways."""
    return _ENTROPY if name == ENTROPY else Coding(name, name)


def name_of(codec: CodecSection, model: ModelSection) -> str | None:
    """The name of a run's coding; None: it has none."""
    found = Coding(codec.forward, codec.backward, model.token_means)
    if found == _ENTROPY:
        return ENTROPY
    return found.forward if found == coding(found.forward) else None
