"""GGUF files, written here by the format's specification: every value as the formulas say, every lie refused."""

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from swarm.data.tokenizer import Tokenizer
from swarm.manifest import ModelSection
from swarm.models.kinds import parameter_shapes
from swarm.state.error import StateError
from swarm.state.pretrained.bpe import _letters, byte_level_bpe
from swarm.state.pretrained.gguf import read_gguf
from swarm.state.pretrained.gguf_llama import unpermute
from swarm.state.pretrained.source import open_pretrained

MODEL = ModelSection(vocab_size=320, dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=64, context=64, cuts=())
METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
    "llama.rope.dimension_count": 8,
    "llama.rope.freq_base": 500.0,
}
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

Raw = tuple[tuple[int, ...], int, bytes]
"""Shape, type, bytes of a tensor."""


def gguf(metadata: dict[str, Any], tensors: dict[str, Raw], version: int = 3, torn: int = 0) -> bytes:
    """The bytes of a file."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def value(entry: Any) -> bytes:
        match entry:
            case bool():
                return struct.pack("<I?", 7, entry)
            case str():
                return struct.pack("<I", 8) + text(entry)
            case int():
                return struct.pack("<II", 4, entry)
            case float():
                return struct.pack("<If", 6, entry)
            case [str(), *_]:
                return struct.pack("<IIQ", 9, 8, len(entry)) + b"".join(map(text, entry))
            case _:
                return struct.pack(f"<IIQ{len(entry)}i", 9, 5, len(entry), *entry)

    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(key) + value(entry) for key, entry in metadata.items())
    body = b""
    for name, (shape, kind, raw) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, len(body))
        body += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + body[: len(body) - torn]


def quantised(kind: int, count: int, rng: np.random.Generator) -> tuple[bytes, list[float]]:
    """Random blocks of a type, and their values by the formulas of ggml, one at a time."""
    raw, values = b"", []
    for _ in range(count // 32):
        d, m = (np.float16(x) for x in rng.normal(size=2))
        scale, offset = np.float32(d), np.float32(m)
        if kind == 8:
            q = rng.integers(-128, 128, 32)
            raw += d.tobytes() + q.astype(np.int8).tobytes()
            values += [scale * np.float32(x) for x in q]
            continue
        five, with_offset = kind in (6, 7), kind in (3, 7)
        q = rng.integers(0, 32 if five else 16, 32)
        raw += d.tobytes() + (m.tobytes() if with_offset else b"")
        if five:
            raw += struct.pack("<I", sum((int(x) >> 4) << j for j, x in enumerate(q)))
        raw += bytes((int(q[j]) & 15) | (int(q[j + 16]) & 15) << 4 for j in range(16))
        middle = 0 if with_offset else (16 if five else 8)
        values += [scale * np.float32(x - middle) + (offset if with_offset else np.float32(0)) for x in q]
    return raw, [float(x) for x in values]


@pytest.mark.parametrize("kind", [8, 2, 3, 6, 7], ids=["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_blocks_hold_what_the_formulas_say(kind: int, tmp_path: Path) -> None:
    raw, values = quantised(kind, 3 * 64, np.random.default_rng(kind))
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf({}, {"a": ((3, 64), kind, raw), "b": ((64, 3), 0, bytes(64 * 3 * 4))}))
    found = read_gguf(path).tensors
    assert found["a"].values().tolist() == np.array(values, dtype=np.float32).reshape(3, 64).tolist()
    assert not found["b"].values().any()


@pytest.mark.parametrize("kind", [0, 1, 30], ids=["F32", "F16", "BF16"])
def test_floats_are_taken_as_they_are(kind: int, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    if kind == 1:
        raw = values.astype(np.float16).tobytes()
        expected = values.astype(np.float16).astype(np.float32)
    else:
        expected = values if kind == 0 else (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
        raw = expected.tobytes() if kind == 0 else (expected.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf({"general.alignment": 32}, {"a": ((4, 5), kind, raw)}, version=2))
    assert np.array_equal(read_gguf(path).tensors["a"].values(), expected)


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's converter does (convert_hf_to_gguf.py, LlamaModel.permute)."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def test_the_permutation_is_undone() -> None:
    rows = np.arange(24 * 3.0).reshape(24, 3)
    for heads in (1, 2, 3):
        assert not np.array_equal(permute(rows, heads), rows)
        assert np.array_equal(unpermute(permute(rows, heads), heads), rows)


def their_name(name: str) -> str:
    if not name.startswith("model.layers."):
        return NAMES[name]
    number, part = name.split(".", 3)[2:]
    return f"blk.{number}.{NAMES[part.removesuffix('.weight')]}.weight"


def order_of(name: str, rows: int) -> np.ndarray:
    """Which of our rows each of the file's rows is."""
    order = np.arange(rows)
    if "q_proj" in name or "k_proj" in name:
        return permute(order, MODEL.heads if "q_proj" in name else MODEL.kv_heads)
    return order


def model_tensors(values: dict[str, np.ndarray], tied: bool = False) -> dict[str, Raw]:
    """A model's parameters as a converter would write them, fp32."""
    found = {}
    for name, value in values.items():
        if not (tied and name == "lm_head.weight"):
            found[their_name(name)] = (value.shape, 0, value[order_of(name, len(value))].tobytes())
    return found


@pytest.fixture
def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {n: rng.normal(size=shape).astype(np.float32) for n, shape in parameter_shapes(MODEL, 0).items()}


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_is_taken_up_exactly(
    tied: bool, values: dict[str, np.ndarray], tokenizer_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(METADATA, model_tensors(values, tied)))
    found = open_pretrained(path, tokenizer_path)
    assert found.tied == tied
    assert found.section == MODEL.model_copy(update={"rope_theta": 500.0, "norm_eps": 1e-6, "tie_embeddings": tied})
    if tied:
        del values["lm_head.weight"]
    assert found.tensors.keys() == values.keys()
    for name, tensor in found.tensors.items():
        assert np.array_equal(tensor.load().numpy(), values[name]), name


def test_the_end_of_a_turn_ends_a_text_of_the_model_too(
    values: dict[str, np.ndarray], tokenizer_path: Path, tmp_path: Path
) -> None:
    inner = tokenizers.Tokenizer.from_file(str(tokenizer_path))
    inner.add_special_tokens(["<|eot|>"])
    turn = inner.token_to_id("<|eot|>")
    inner.save(str(tmp_path / "tokenizer.json"))
    path = tmp_path / "model.gguf"
    ends = {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": turn}
    path.write_bytes(gguf({**METADATA, **ends}, model_tensors(values)))
    found = open_pretrained(path, tmp_path / "tokenizer.json")
    assert Tokenizer(found.tokenizer).ends == (0, turn)
    assert f"'<|eot|>' (token {turn})" in found.notes[1]


@pytest.mark.parametrize(("kind", "form"), [(0, "B"), (2, "H"), (6, "f"), (7, "?"), (12, "d")])
def test_numbers_in_the_head_stay_in_the_file(kind: int, form: str, tmp_path: Path) -> None:
    """As Python objects, they took 20 times the size of the file."""
    width = struct.calcsize(form)
    count = (8 << 20) // width
    values = np.arange(count).astype(form)
    path = tmp_path / "x.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 3) + b"odd"
    path.write_bytes(head + struct.pack("<IIQ", 9, kind, count) + values.tobytes())
    tracemalloc.start()
    try:
        found = read_gguf(path).metadata["odd"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert np.array_equal(found.values, values) and len(found) == count
    assert repr(found) == f"[{', '.join(map(str, values[:8].tolist()))}, …]"


@pytest.mark.parametrize(
    "changed",
    [
        {"llama.rope.dimension_count": [8]},
        {"llama.attention.head_count_kv": [2, 2]},
        {"llama.attention.head_count": [4]},
        {"llama.attention.layer_norm_rms_epsilon": [1]},
        {"llama.expert_count": [0]},
        {"llama.rope.scaling.factor": [1, 1]},
        {"general.architecture": [1, 2]},
        {"general.alignment": [32]},
        {"split.count": [1, 1]},
        {"tokenizer.ggml.eos_token_id": [0, 0]},
    ],
    ids=lambda changed: min(changed),
)
def test_a_list_in_place_of_one_number_is_refused(
    changed: dict[str, Any], values: dict[str, np.ndarray], tokenizer_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf({**METADATA, **changed}, model_tensors(values)))
    with pytest.raises(StateError, match=r"model\.gguf: "):
        open_pretrained(path, tokenizer_path)


def test_a_tokenizer_is_built_from_a_file(values: dict[str, np.ndarray], tokenizer_path: Path, tmp_path: Path) -> None:
    told = metadata_of(tokenizer_path, "gpt-2")
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf({**METADATA, **told, "tokenizer.ggml.eos_token_id": 0}, model_tensors(values)))
    assert Tokenizer(open_pretrained(path).tokenizer).encode([TEXT]) == Tokenizer.load(tokenizer_path).encode([TEXT])
    path.write_bytes(gguf({**METADATA, **told, "tokenizer.ggml.token_type": [1, 3]}, model_tensors(values)))
    with pytest.raises(StateError, match="token_type is not a list of"):
        open_pretrained(path)


def test_a_head_of_very_many_entries_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for tensors, entries in ((1 << 17, 0), (0, 1 << 17)):
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, entries) + bytes(24 << 17))
        with pytest.raises(StateError, match="announces 131072 entries; at most 65536 are supported"):
            read_gguf(path)


def test_the_user_may_name_the_end_of_text(values: dict[str, np.ndarray], tokenizer_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf({**METADATA, "tokenizer.ggml.eos_token_id": 7}, model_tensors(values)))
    with pytest.raises(StateError, match="eos_token_id = 7, which is not a special token"):
        open_pretrained(path, tokenizer_path)
    found = open_pretrained(path, tokenizer_path, "<|endoftext|>")
    assert "'<|endoftext|>' (token 0), as --end-of-text says" in found.notes[0]


def test_a_quantised_model_is_what_its_blocks_stand_for(
    values: dict[str, np.ndarray], tokenizer_path: Path, tmp_path: Path
) -> None:
    rng = np.random.default_rng(2)
    tensors, expected = model_tensors(values), dict(values)
    for name, value in values.items():
        if value.ndim < 2:
            continue
        raw, decoded = quantised(8, value.size, rng)
        tensors[their_name(name)] = (value.shape, 8, raw)
        rows = np.array(decoded, dtype=np.float32).reshape(value.shape)
        expected[name] = np.empty_like(rows)
        expected[name][order_of(name, len(rows))] = rows
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(METADATA, tensors))
    found = open_pretrained(path, tokenizer_path)
    for name, tensor in found.tensors.items():
        assert np.array_equal(tensor.load().numpy(), expected[name]), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "qwen2"}, 'general.architecture = "qwen2"'),
        ({"llama.block_count": 3}, "says that it has 3 layers, but has tensors of 2 layers"),
        ({"llama.block_count": 0}, "llama.block_count must be a number above 0, it is 0"),
        ({"llama.embedding_length": "wide"}, "llama.embedding_length must be a number above 0, it is 'wide'"),
        ({"llama.attention.head_count_kv": [2, 1]}, r"head_count_kv = \[2, 1\]"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type = 'yarn'"),
        ({"llama.rope.scaling.factor": 2.0}, "llama.rope.scaling.factor = 2.0"),
        ({"llama.rope.dimension_count": 4}, "llama.rope.dimension_count = 4: expected 8"),
        ({"llama.attention.key_length": 16}, "llama.attention.key_length = 16"),
        ({"llama.expert_count": 8}, "llama.expert_count = 8"),
        ({"llama.attention.sliding_window": 8}, "sliding_window = 8"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "norm_eps"),
        ({"general.alignment": 0}, "general.alignment is 0"),
        ({"llama.rope.freq_base": float("inf")}, "rope_theta: Input should be"),
        ({"llama.block_count": 20_001}, "layers: Input should be less"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_this_llama_is_not_is_refused_by_name(
    changes: dict[str, Any], message: str, values: dict[str, np.ndarray], tokenizer_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf({**METADATA, **changes}, model_tensors(values)))
    with pytest.raises(StateError, match=message):
        open_pretrained(path, tokenizer_path)


def test_tensors_that_are_wrong_are_named(values: dict[str, np.ndarray], tokenizer_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    good = model_tensors(values)

    def refused(match: str, *, torn: int = 0, version: int = 3, **changed: Raw) -> None:
        path.write_bytes(gguf(METADATA, {**good, **changed}, version, torn))
        with pytest.raises(StateError, match=match):
            open_pretrained(path, tokenizer_path)

    refused("blk.0.attn_q.weight is Q4_K, supported are F32, F16, BF16", **{"blk.0.attn_q.weight": ((32, 32), 12, b"")})
    refused("is of type 99", **{"blk.0.attn_q.weight": ((32, 32), 99, b"")})
    refused("rows of 33 values, but Q8_0 has blocks of 32", **{"blk.0.ffn_up.weight": ((64, 33), 8, bytes(9999))})
    refused("rope_freqs.weight scales positions", **{"rope_freqs.weight": ((4,), 0, bytes(16))})
    refused(
        "tensor blk.0.attn_q.bias is not supported|self_attn.q_proj.bias",
        **{"blk.0.attn_q.bias": ((32,), 0, bytes(128))},
    )
    refused(
        "says that it has 2 layers, but has tensors of 3 layers",
        **{"blk.20000.attn_q.weight": ((32, 32), 0, bytes(4096))},
    )
    refused("ends at byte .* it is incomplete", torn=32)
    refused("GGUF of version 1; supported: 2, 3", version=1)
    refused("is big-endian", version=3 << 24)
    refused(r"q_proj.weight is \[8, 32\], expected", **{"blk.0.attn_q.weight": ((8, 32), 0, bytes(1024))})
    refused("has 9 rows, which do not make pairs for 4 heads", **{"blk.0.attn_q.weight": ((9, 32), 0, bytes(1152))})


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_damage_is_refused_or_harmless(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever is changed in the head: a StateError, or a file that is read within its bounds."""
    whole = bytearray(gguf({"a": "b", "c": [1, 2], "d": ["x", "y"], "e": 1.5}, {"t": ((2, 32), 8, bytes(68))}))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(4, len(whole) - 69))] = data.draw(st.sampled_from((0, 1, 8, 9, 127, 255)))
    path = tmp_path_factory.mktemp("damaged") / "x.gguf"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.booleans()) else whole)
    try:
        for tensor in read_gguf(path).tensors.values():
            assert tensor.values().nbytes <= 4 * len(whole)
    except StateError:
        pass


# ---------------------------------------------------------------- tokenizers


def metadata_of(tokenizer_path: Path, pre: str) -> dict[str, Any]:
    """What a converter makes of one of our own tokenizers."""
    import json

    tree = json.loads(tokenizer_path.read_text())
    ids = {**tree["model"]["vocab"], **{entry["content"]: entry["id"] for entry in tree["added_tokens"]}}
    tokens = sorted(ids, key=lambda token: ids[token])
    special = {entry["content"] for entry in tree["added_tokens"]}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in tree["model"]["merges"]],
    }


TEXT = "The swarm learns 1234 languages,\n at  any time. <|endoftext|> ü"


def test_a_byte_level_tokenizer_is_built_from_the_metadata(tokenizer_path: Path, tmp_path: Path) -> None:
    ours = Tokenizer.load(tokenizer_path)
    built = Tokenizer(byte_level_bpe(metadata_of(tokenizer_path, "gpt-2"), tmp_path))
    assert built.encode([TEXT]) == ours.encode([TEXT])
    assert (built.vocab_size, built.end_of_text) == (ours.vocab_size, ours.end_of_text)
    assert built.decode(built.encode([TEXT])[0]) == TEXT
    digits = Tokenizer(byte_level_bpe(metadata_of(tokenizer_path, "smollm"), tmp_path))
    assert digits.raw != ours.raw and digits.vocabulary_sha256 == ours.vocabulary_sha256, "of the same tokens"
    assert digits.decode(digits.encode([TEXT])[0]) == TEXT


def test_the_metadata_say_whether_a_text_begins_with_a_token(tokenizer_path: Path, tmp_path: Path) -> None:
    metadata = metadata_of(tokenizer_path, "gpt-2")
    told = {**metadata, "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 0}
    assert Tokenizer(byte_level_bpe(told, tmp_path)).begin == (0,)
    assert Tokenizer(byte_level_bpe({**told, "tokenizer.ggml.add_bos_token": False}, tmp_path)).begin == ()
    with pytest.raises(StateError, match="bos_token_id = 90000, which is not one of its tokens"):
        byte_level_bpe({**told, "tokenizer.ggml.bos_token_id": 90_000}, tmp_path)


def test_bytes_that_text_does_not_have_may_lack(tokenizer_path: Path, tmp_path: Path) -> None:
    metadata = metadata_of(tokenizer_path, "gpt-2")
    letters = _letters()
    assert set(letters.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    tokens = metadata["tokenizer.ggml.tokens"]
    for byte, letter in letters.items():
        without = {**metadata, "tokenizer.ggml.tokens": ["~~" if token == letter else token for token in tokens]}
        if byte in b"\x04\x1d\xf5":
            built = Tokenizer(byte_level_bpe(without, tmp_path))
            assert built.decode(built.encode([f"a{chr(byte)}b"])[0]) in ("ab", f"a{chr(byte)}b")
        elif byte in b"\n\t\xe2\xf0 a":
            with pytest.raises(StateError, match=f"lacks byte {byte:#04x}"):
                byte_level_bpe(without, tmp_path)


def test_tokenizers_that_would_be_guessed_are_refused(tokenizer_path: Path, tmp_path: Path) -> None:
    good = metadata_of(tokenizer_path, "gpt-2")

    def refused(match: str, **changes: Any) -> None:
        with pytest.raises(StateError, match=f"{match}.*--tokenizer"):
            byte_level_bpe({**good, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}, tmp_path)

    refused('model "llama", pre "gpt-2"', model="llama")
    refused('pre "qwen2"', pre="qwen2")
    refused("pre .* cannot be built", pre=["gpt-2", "gpt-2"])
    tokens = good["tokenizer.ggml.tokens"]
    refused("tokens contains some tokens twice", tokens=[*tokens[:-1], tokens[0]])
    refused("tokens is not a list of texts", tokens=[1, 2])
    refused("token_type is not a list", token_type=[1])
    refused("lacks byte 0x61", tokens=["~~" if token == "a" else token for token in tokens])
    refused("cannot be built", merges=["no such"])


# ------------------------------------------------------------ models in parts


def write_parts(folder: Path, parts: int, values: dict[str, np.ndarray], **changes: object) -> list[Path]:
    """The last part has the head alone: without it the model looks as if embedding and head were one matrix."""
    tensors = model_tensors(values)
    names = [name for name in tensors if name != "output.weight"]
    shares = [names[number :: parts - 1] for number in range(parts - 1)] + [["output.weight"]]
    paths = []
    for number, share in enumerate(shares):
        about = {"split.no": number, "split.count": parts, "split.tensors.count": len(tensors), **changes}
        path = folder / f"model-{number + 1:05d}-of-{parts:05d}.gguf"
        path.write_bytes(gguf({**(METADATA if number == 0 else {}), **about}, {name: tensors[name] for name in share}))
        paths.append(path)
    return paths


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_stands_for_the_model(
    given: int, values: dict[str, np.ndarray], tokenizer_path: Path, tmp_path: Path
) -> None:
    found = open_pretrained(write_parts(tmp_path, 3, values)[given], tokenizer_path)
    assert not found.tied
    for name, value in values.items():
        np.testing.assert_array_equal(found.tensors[name].load().numpy(), value)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_part_that_is_not_there_is_named(
    missing: int, values: dict[str, np.ndarray], tokenizer_path: Path, tmp_path: Path
) -> None:
    paths = write_parts(tmp_path, 3, values)
    paths[missing].unlink()
    for path in paths:
        if path.exists():
            with pytest.raises(StateError, match=f"one of 3 parts of a model, but {paths[missing].name}"):
                open_pretrained(path, tokenizer_path)


def test_a_part_under_another_name_is_refused(
    values: dict[str, np.ndarray], tokenizer_path: Path, tmp_path: Path
) -> None:
    path = write_parts(tmp_path, 2, values)[0].rename(tmp_path / "model.gguf")
    with pytest.raises(StateError, match="one of 2 parts"):
        open_pretrained(path, tokenizer_path)


def test_parts_that_do_not_belong_together_are_refused(
    values: dict[str, np.ndarray], tokenizer_path: Path, tmp_path: Path
) -> None:
    first, second = write_parts(tmp_path, 2, values)
    second.write_bytes(first.read_bytes())
    with pytest.raises(StateError, match=r"counted from 0\), expected"):
        open_pretrained(first, tokenizer_path)
    paths = write_parts(tmp_path, 2, values, **{"split.tensors.count": 99})
    with pytest.raises(StateError, match="99 are announced"):
        open_pretrained(paths[0], tokenizer_path)
