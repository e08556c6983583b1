"""The image classifier: cut or whole it is the same function, and one image knows nothing of the others."""

import pytest
import torch
from whole_model import build, run

from swarm.manifest import ModelSection
from swarm.models.kinds import count_parameters

MODEL = ModelSection(kind="resnet", vocab_size=17, dim=16, layers=3, classes=10, context=64, cuts=(1, 2))


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 17, shape, generator=torch.Generator().manual_seed(seed))


def test_a_cut_changes_neither_loss_nor_gradients() -> None:
    images, labels = draw(5, 64), draw(5, 64, seed=1) % 10
    found = []
    for model in (MODEL, MODEL.model_copy(update={"cuts": ()})):
        modules = build(model)
        logits, crossed = run(modules, images)
        assert logits.shape == (5, 10)
        assert [tuple(x.shape) for x in crossed] == [(5, 64, model.widest_boundary)] * (model.stages - 1)
        loss = modules[-1].loss_sum(logits, labels)
        loss.backward()
        found.append((loss, {name: p.grad for module in modules for name, p in module.named_parameters()}))
    (cut, cut_gradients), (whole, whole_gradients) = found
    torch.testing.assert_close(cut, whole)
    assert cut_gradients.keys() == whole_gradients.keys()
    for name, gradient in cut_gradients.items():
        assert gradient is not None and gradient.abs().max() > 0, name
        torch.testing.assert_close(gradient, whole_gradients[name], rtol=1e-4, atol=1e-5)
    assert count_parameters(MODEL) == count_parameters(MODEL.model_copy(update={"cuts": ()}))


def test_the_loss_is_of_the_class_behind_the_pixels_summed_over_images() -> None:
    module = build(MODEL)[-1]
    logits, labels = torch.randn(4, 10, generator=torch.Generator().manual_seed(0)), draw(4, 64) % 10
    each = [-torch.log_softmax(logits[i].double(), 0)[labels[i, -1]] for i in range(4)]
    assert module.loss_sum(logits, labels).item() == pytest.approx(sum(each).item(), rel=1e-6)


def test_an_image_is_judged_by_itself() -> None:
    modules, images = build(MODEL), draw(6, 64)
    together, _ = run(modules, images)
    alone = torch.cat([run(modules, images[i : i + 1])[0] for i in range(6)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_it_learns_which_half_is_bright() -> None:
    model = MODEL.model_copy(update={"cuts": (), "layers": 1})
    module = build(model)[0]
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    images, classes = draw(32, 64) // 4, torch.arange(32) % 2
    images[classes == 0, :32] += 8
    images[classes == 1, 32:] += 8
    rows = torch.cat((images[:, 1:], classes[:, None]), 1)
    for _ in range(30):
        optimizer.zero_grad()
        module.loss_sum(module(images), rows).backward()
        optimizer.step()
    assert (module(images).argmax(1) == classes).float().mean() > 0.9
