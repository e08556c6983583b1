"""Options of a stage: where and how its peer computes it. They concern memory and time; with one device and precision
the results have the same bits, but compiled layers differ from others by rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.compute.precision import Precision


@dataclass(frozen=True, slots=True)
class StageOptions:
    device: str = "cpu"
    graph_budget_bytes: int = 1 << 30
    """Limit of the autograd graphs kept between forward and backward; 0 recomputes every forward."""
    precision: Precision | None = None
    """None: the default of the device."""
    compiled: bool = False
    """torch compiles the layers before the first computation."""
    splits: bool = False
    """A backward may defer the gradients of the weights while there is memory for their inputs. They are computed when
    there is nothing else to do. Not together with `compiled`, whose layers compute all gradients at once.
    """
    recomputes_layers: bool = False
    """Activation checkpointing: a graph holds only the input of each layer, for stages whose whole graph does not fit.
    Not together with `compiled`: torch recomputes a compiled layer differently, and the bits would differ.
    """
    updates_on_cpu: bool = False
    """The optimizer's steps are computed on the CPU, whatever device computes the rest."""
    offload: bool = False
    """The fp32 parameters, their moments and the reduced vector are in the host's memory (offload.py)."""

    def __post_init__(self) -> None:
        assert not (self.compiled and self.splits), "compiled layers compute all gradients at once"
        assert not (self.compiled and self.recomputes_layers), "layers cannot be compiled when they are recomputed"
