"""Named model sizes. The names give the number of all parameters, with embedding and head (a test checks this)."""

from __future__ import annotations

from typing import Any

from swarm.manifest import ModelSection
from swarm.models.cuts import Costs, flop_costs, propose_cuts

_TABLE: dict[str, dict[str, Any]] = {
    "1m": dict(vocab_size=2048, dim=128, layers=4, heads=4, kv_heads=2, ffn_dim=320, context=256),
    "2m": dict(vocab_size=4096, dim=128, layers=4, heads=4, kv_heads=2, ffn_dim=320, context=256),
    "5m": dict(vocab_size=4096, dim=192, layers=8, heads=6, kv_heads=2, ffn_dim=512, context=256),
    "15m": dict(vocab_size=8192, dim=320, layers=8, heads=10, kv_heads=5, ffn_dim=896, context=512),
    "40m": dict(vocab_size=8192, dim=512, layers=12, heads=8, kv_heads=4, ffn_dim=1408, context=1024),
    "125m": dict(vocab_size=32_000, dim=768, layers=12, heads=12, kv_heads=4, ffn_dim=2048, context=1024),
    "350m": dict(vocab_size=32_000, dim=1024, layers=24, heads=16, kv_heads=8, ffn_dim=2816, context=2048),
    "1b": dict(vocab_size=32_000, dim=2048, layers=20, heads=32, kv_heads=8, ffn_dim=5632, context=2048),
    "digits": dict(kind="resnet", vocab_size=17, dim=64, layers=8, classes=10, context=64),
}

NAMES = tuple(_TABLE)


def preset(name: str, stages: int = 4, costs: Costs | None = None) -> ModelSection:
    """Preset `name`, cut into `stages` by `costs` (None: FLOP). Raises ValueError for an unknown name."""
    if name not in _TABLE:
        raise ValueError(f"no preset is named {name!r}: use one of {', '.join(NAMES)}")
    whole = ModelSection(**_TABLE[name], cuts=())
    return whole.model_copy(
        update={"cuts": propose_cuts(whole, stages, costs or flop_costs(whole, min(whole.context, 512)))}
    )
