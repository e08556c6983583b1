"""The largest payload: what a run sends fits, and a stranger can announce no more."""

import pytest
import torch

from swarm.compute.averaging import largest_bucket
from swarm.compute.body import BodyFormat, BodyKind
from swarm.compute.payload import largest_payload
from swarm.compute.reduction import BUCKET_ELEMENTS


@pytest.mark.parametrize("codec", ["none", "bf16", "int8"])
def test_of_a_wide_model_it_is_a_frame(make_manifest, codec):
    manifest = make_manifest(codec=codec)
    wide = manifest.model.model_copy(update={"dim": 1 << 19})
    manifest = manifest.model_copy(update={"model": wide})
    form = BodyFormat(manifest)
    hidden = torch.ones(2, 6, 1 << 19)
    forward = form.pack_forward(1, BodyKind.BATCH, torch.zeros(2, 7, dtype=torch.int64), hidden)
    prompt = form.pack_forward(1, BodyKind.PROMPT, torch.zeros(1, 8, dtype=torch.int64), hidden[:1, :1].repeat(1, 8, 1))
    assert len(forward) >= len(prompt)
    assert len(forward) <= largest_payload(manifest) <= len(forward) + 64


@pytest.mark.parametrize(
    ("mode", "size"), [("exact", 8 * BUCKET_ELEMENTS + BUCKET_ELEMENTS // 64), ("fp32", 4 * BUCKET_ELEMENTS)]
)
def test_of_a_narrow_model_it_is_a_part_of_a_sum(make_manifest, mode, size):
    manifest = make_manifest(mode=mode)
    assert largest_payload(manifest) == largest_bucket(manifest.sums) == size
