"""A shard file: bytes, refusals, atomicity."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.atomic import atomic_file
from swarm.state.error import StateError
from swarm.state.layout import LENGTH, ShardMeta, head_bytes, shard_limit, state_shapes, to_metadata
from swarm.state.shard import Shard, WrittenFile, open_shard, parse_shard, read_shard, shard_parts, write_parts

META = ShardMeta("ab" * 32, 2, 40, 39, "cd" * 32, "ef" * 32)
SHAPES = state_shapes({"model.norm.weight": (6,), "lm_head.weight": (3, 5), "empty": (0, 4), "scalar": ()})


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(shape, generator=generator) for name, shape in SHAPES.items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


def write_shard(path: Path, values: dict[str, torch.Tensor], meta: ShardMeta) -> WrittenFile:
    return write_parts(path, shard_parts(values, meta))


def raw_shard() -> bytes:
    return b"".join(bytes(part) for part in shard_parts(tensors(), META))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written = write_shard(tmp_path / "s.safetensors", tensors(), META)
    shard = read_shard(
        tmp_path / "s.safetensors",
        run_hash=META.run_hash,
        stage=2,
        version=40,
        shapes=SHAPES,
        written=written,
    )
    assert shard.meta == META
    assert same(shard.tensors, tensors())
    assert shard.of_kind("exp_avg").keys() == {"model.norm.weight", "lm_head.weight", "empty", "scalar"}
    assert written.nbytes == (tmp_path / "s.safetensors").stat().st_size <= shard_limit({"x": (40,)})


def test_the_safetensors_library_reads_ours_and_we_read_its(tmp_path: Path) -> None:
    write_shard(tmp_path / "ours", tensors(), META)
    assert same(safetensors.torch.load_file(tmp_path / "ours"), tensors())
    safetensors.torch.save_file(tensors(), tmp_path / "theirs", metadata=to_metadata(META))
    shard = read_shard(tmp_path / "theirs", shapes=SHAPES)
    assert shard.meta == META and same(shard.tensors, tensors())


def test_equal_state_makes_equal_bytes_whatever_the_order_and_strides(tmp_path: Path) -> None:
    strided = {name: t.t().contiguous().t() if t.ndim == 2 else t for name, t in reversed(tensors().items())}
    assert write_shard(tmp_path / "a", tensors(), META) == write_shard(tmp_path / "b", strided, META)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ({"run_hash": "cd" * 32}, "run_hash is abab"),
        ({"stage": 1}, "stage is 2, expected 1"),
        ({"version": 41}, "version is 40, expected 41"),
        ({"shapes": {k: v for k, v in SHAPES.items() if k != "param/scalar"}}, "param/scalar does not belong"),
        ({"shapes": SHAPES | {"param/more": (1,)}}, "param/more is missing"),
        ({"shapes": SHAPES | {"param/lm_head.weight": (5, 3)}}, r"shape \[3, 5\], expected \[5, 3\]"),
    ],
)
def test_another_shard_is_refused_naming_the_file(tmp_path: Path, expect: dict[str, object], message: str) -> None:
    path = tmp_path / "s.safetensors"
    write_shard(path, tensors(), META)
    with pytest.raises(StateError, match=message) as caught:
        read_shard(path, **expect)
    assert caught.value.where == str(path)


def opened(path: Path, **expect: Any) -> Shard:
    return open_shard(path, str(path), **expect)


READERS = pytest.mark.parametrize("read", [read_shard, opened])
"""All at once into memory, and tensor by tensor."""


def places(raw: bytes) -> range:
    """Every third byte, of the header and of the values."""
    return range(0, len(raw), 3)


@READERS
def test_a_torn_file_is_refused(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "s.safetensors"
    raw = raw_shard()
    for size in places(raw):
        path.write_bytes(raw[:size])
        with pytest.raises(StateError) as caught:
            read(path)  # even without the hash
        assert caught.value.where == str(path)
    path.write_bytes(raw + b"\0")
    with pytest.raises(StateError):
        read(path)


@READERS
def test_a_flipped_byte_is_refused(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "s.safetensors"
    written = write_shard(path, tensors(), META)
    assert same(read(path, written=written).tensors, tensors())
    raw = path.read_bytes()
    for place in places(raw):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 0x10]) + raw[place + 1 :])
        with pytest.raises(StateError):
            read(path, written=written)


def test_tensors_are_read_from_a_file_that_has_no_name_any_more_and_checked_each_time(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    bad = tensors()
    bad["exp_avg/lm_head.weight"][1, 2] = float("nan")
    write_shard(path, bad, META)
    shard = opened(path, shapes=SHAPES)
    path.unlink()
    assert torch.equal(shard.tensors["param/lm_head.weight"], tensors()["param/lm_head.weight"])
    for _ in range(2):
        with pytest.raises(StateError, match=r"exp_avg/lm_head\.weight contains NaN"):
            shard.tensors["exp_avg/lm_head.weight"]


def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    write_shard(path, tensors(), META)
    shard = opened(path)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(StateError, match="1 bytes too early"):
        dict(shard.tensors)


@given(raw=st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(StateError):
        parse_shard(bytearray(raw), "fuzz")
    with pytest.raises(StateError):
        parse_shard(bytearray(LENGTH.pack(len(raw)) + raw), "fuzz")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_any_lie_in_the_head_is_refused_or_harmless(data: st.DataObject) -> None:
    raw = raw_shard()
    (length,) = LENGTH.unpack_from(raw)
    tree = json.loads(raw[8 : 8 + length])
    name = data.draw(st.sampled_from(sorted(tree)))
    field = data.draw(st.sampled_from(sorted(tree[name])))
    tree[name][field] = data.draw(
        json_values | st.sampled_from([[10**18, 10**18], [0, -4], [2**63] * 2, "I8", [4] * 40])
    )
    head = json.dumps(tree).encode()
    lie = bytearray(LENGTH.pack(len(head)) + head + raw[8 + length :])
    try:
        shard = parse_shard(lie, "fuzz", shapes=SHAPES)
    except StateError:
        return
    assert same(shard.tensors, tensors())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_state_that_is_not_finite_is_refused(value: float) -> None:
    bad = tensors()
    bad["exp_avg/lm_head.weight"][1, 2] = value
    with pytest.raises(StateError, match=r"exp_avg/lm_head\.weight contains NaN or infinity"):
        parse_shard(bytearray(b"".join(bytes(p) for p in shard_parts(bad, META))), "x")


def test_negative_second_moments_are_refused() -> None:
    bad = tensors()
    bad["exp_avg_sq/lm_head.weight"][1, 2] = -1e-9
    with pytest.raises(StateError, match="second moment"):
        parse_shard(bytearray(b"".join(bytes(p) for p in shard_parts(bad, META))), "x")


@pytest.mark.parametrize("bad", [{"param/x": torch.zeros(2, dtype=torch.bfloat16)}, {"gradient/x": torch.zeros(2)}])
def test_only_fp32_state_is_written(tmp_path: Path, bad: dict[str, torch.Tensor]) -> None:
    with pytest.raises(StateError):
        write_shard(tmp_path / "s", bad, META)
    assert not list(tmp_path.iterdir())


def test_a_head_that_claims_too_much_is_refused_before_it_is_read() -> None:
    with pytest.raises(StateError, match="limit"):
        parse_shard(bytearray(LENGTH.pack(2**40) + b"{}"), "x")


@pytest.mark.parametrize(
    "lie",
    [
        {"stage": "-1"},
        {"version": "x"},
        {"version": "9" * 40},
        {"updates": "41"},
        {"chain": "zz"},
        {"state_digest": ""},
        {"run_hash": "../../etc"},
        {"subspace_id": "ab"},
    ],
)
def test_metadata_that_no_shard_has_is_refused(lie: dict[str, str]) -> None:
    raw = head_bytes(to_metadata(META) | lie, {"param/a": (2,)}) + bytes(8)
    with pytest.raises(StateError, match=r"metadata does not belong to a shard|has 41 updates"):
        parse_shard(bytearray(raw), "x")


@pytest.mark.parametrize("name", ["param/\ud800", "param/\x1b]0;x", "p" * 300])
def test_a_name_that_cannot_be_printed_is_refused_in_words_that_can(name: str) -> None:
    raw = head_bytes(to_metadata(META), {name: (2,)}) + bytes(8)
    with pytest.raises(StateError, match="is not a valid tensor name") as caught:
        parse_shard(bytearray(raw), "x")
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200


def test_overlapping_tensors_are_refused() -> None:
    raw = head_bytes(to_metadata(META), {"param/a": (2,), "param/b": (2,)})
    raw = raw.replace(b'"data_offsets":[8,16]', b'"data_offsets":[4,12]')
    with pytest.raises(StateError, match="param/b"):
        parse_shard(bytearray(raw + bytes(16)), "x")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), atomic_file(path) as file:
        file.write(b"new and torn")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"old")
    with (
        open("/dev/full", "wb", buffering=0) as full,  # its errors name no file, as those of any open file
        pytest.raises(OSError, match="No space left") as caught,
        atomic_file(path) as file,
    ):
        file.write(b"half")
        full.write(b"new")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError) as missing, atomic_file(tmp_path / "none" / "s"):
        pass
    assert missing.value.filename == str(tmp_path / "none" / "s")


def test_a_writer_killed_before_the_rename_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"old")
    code = (
        "import os, signal, sys, pathlib\n"
        "from swarm.atomic import atomic_file\n"
        "with atomic_file(pathlib.Path(sys.argv[1])) as file:\n"
        "    file.write(b'new')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, env=os.environ)
    assert done.returncode == -9
    assert path.read_bytes() == b"old"
