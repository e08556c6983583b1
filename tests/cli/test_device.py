"""Which device computes: one on which a kernel ran, else the CPU, and why."""

from __future__ import annotations

import pytest
import torch

from peers.runtime import device
from peers.runtime.device import DeviceError, Picked, check_offload, pick_device, pick_devices
from swarm.compute.precision import Precision


class Accelerator:
    """An accelerator that torch says is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
        monkeypatch.setattr(device, "_broken", lambda picked: reason if picked.name == "xpu" else "")


def test_without_an_accelerator_it_is_the_cpu_and_nothing_is_said() -> None:
    picked = pick_device("auto")
    assert (picked.name, picked.precision, picked.why) == ("cpu", Precision.FP32, "")


def test_an_accelerator_that_computes_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    Accelerator(monkeypatch, reason="")
    picked = pick_device("auto")
    assert (picked.name, picked.precision, picked.why) == ("xpu", Precision.BF16, "")


def test_an_accelerator_that_cannot_compute_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    Accelerator(monkeypatch, reason="no kernel image is available")
    picked = pick_device("auto")
    assert picked.name == "cpu" and picked.precision is Precision.FP32
    assert picked.why == "xpu cannot compute (no kernel image is available)"


def test_a_device_by_name_must_compute() -> None:
    with pytest.raises(DeviceError, match=r"--device cuda:7: not usable here \(.*\); try --device cpu"):
        pick_device("cuda:7")


def test_a_precision_by_name_is_taken() -> None:
    assert pick_device("cpu", "bf16").precision is Precision.BF16


def test_a_product_that_is_wrong_is_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda self, other: self)
    with pytest.raises(DeviceError, match="a product came to 4096 instead of 262144"):
        pick_device("cpu")


def test_to_compile_takes_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(DeviceError, match=r"--compile: torch needs a C\+\+ compiler"):
        pick_device("cpu", compiled=True)


def test_several_devices_are_named_with_commas() -> None:
    assert [picked.name for picked in pick_devices("cpu, cpu")] == ["cpu", "cpu"]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("cpu,cuda:7", "--device cuda:7: not usable here"),
        ("cpu,auto", "name each device, such as cuda:0,cuda:1"),
        ("cpu,", "name each device"),
        (",".join(["cpu"] * 17), "names 17 devices: a process has at most 16 peers"),
    ],
)
def test_of_several_devices_each_must_be_there(names: str, says: str) -> None:
    with pytest.raises(DeviceError, match=says):
        pick_devices(names)


def test_a_card_cannot_be_named_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    Accelerator(monkeypatch, reason="")
    with pytest.raises(DeviceError, match="xpu is named twice; --seats puts several peers on one card"):
        pick_devices("xpu,xpu")
    monkeypatch.setattr(device, "pick_device", lambda name, *_: device.Picked(name, Precision.BF16))
    with pytest.raises(DeviceError, match="cuda is named twice"):
        pick_devices("cuda,cuda:0")
    assert len(pick_devices("cuda:0,cuda:1")) == 2


def test_only_a_card_has_something_to_offload() -> None:
    cpu, card = Picked("cpu", Precision.FP32), Picked("cuda:1", Precision.BF16)
    check_offload([card])
    check_offload([cpu, card])
    with pytest.raises(DeviceError, match=r"--offload: cpu, cpu already uses .* leave this out, or name a CUDA"):
        check_offload([cpu, cpu])


def test_a_precision_in_which_the_processor_is_slow_is_told_with_the_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {Precision.FP32: 0.01, Precision.BF16: 0.21, Precision.FP16: 0.011}
    monkeypatch.setattr(device, "_product_s", lambda picked: seconds[picked.precision])
    said = device.slower(Picked("cpu", Precision.BF16))
    assert said.startswith("--precision bf16: ") and " 21 times slower than in fp32" in said
    seconds[Precision.BF16] = 3.2
    assert " 320 times slower" in device.slower(Picked("cpu", Precision.BF16))
    assert device.slower(Picked("cpu", Precision.FP16)) == "", "a tenth more is no reason to say anything"
    assert device.slower(Picked("cpu", Precision.FP32)) == ""
    assert device.slower(Picked("cuda", Precision.BF16)) == ""


def test_a_product_takes_time_in_every_precision() -> None:
    assert all(device._product_s(Picked("cpu", precision)) > 0 for precision in Precision)
