"""Hugging Face folders: what a good one gives in GGUF's terms, and that a bad one is refused clearly and by name."""

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseline.errors import FileFormatError, UnsupportedError
from phaseline.files.model_file import open_model_file
from phaseline.files.quant import FORMATS
from support.folders import Tensors, llama_tensors, write_folder, write_index, write_safetensors

Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize("dtype", ["<f4", "<f2", "<u2"])
@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_are_those_of_the_folder(tmp_path: Path, dtype: str, shards: int) -> None:
    tensors = llama_tensors(dtype=dtype)
    file = open_model_file(write_folder(tmp_path / "m", shards=shards, tensors=tensors))
    assert len(file.tensors) == len(tensors) and len(file.parts) == shards
    format = {"<f4": "F32", "<f2": "F16", "<u2": "BF16"}[dtype]
    assert {info.format.name for info in file.tensors.values()} == {format}
    named = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output.weight": "lm_head.weight",
        "output_norm.weight": "model.norm.weight",
        "blk.1.attn_v.weight": "model.layers.1.self_attn.v_proj.weight",
        "blk.0.ffn_norm.weight": "model.layers.0.post_attention_layernorm.weight",
        "blk.1.ffn_down.weight": "model.layers.1.mlp.down_proj.weight",
    }
    for ours, theirs in named.items():
        info, values = file.tensors[ours], tensors[theirs]
        assert (info.shape, info.nbytes) == (values.shape, values.nbytes)
        assert file.raw(ours).tobytes() == values.tobytes() and not file.raw(ours).flags.writeable
        assert np.shares_memory(file.raw(ours), file.raw(ours))  # mapped, not copied
        file.release(ours)
    half = {i + 4 * j: 2 * i + j for i in range(4) for j in range(2)}  # rows of a head of 8, theirs to ours
    for head in range(4):
        for theirs, ours in half.items():
            got = file.raw("blk.1.attn_q.weight")[8 * head + ours]
            assert got.tobytes() == tensors[Q][8 * head + theirs].tobytes()
    file.close()


def test_settings_are_in_ggufs_terms(tmp_path: Path) -> None:
    file = open_model_file(write_folder(tmp_path / "m", head_dim=8, num_key_value_heads=None, torch_dtype="bfloat16"))
    assert dict(file.metadata) == {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 256,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 48,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 4,
        "llama.attention.key_length": 8,
        "llama.attention.value_length": 8,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": 8,
        "llama.rope.freq_base": 10000.0,
    }


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SCALINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "linear", "factor": 2.0}, {"type": "linear", "factor": 2.0}),
    ({"rope_type": "default"}, {}),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {"type": "yarn", "factor": 4.0, "original_context_length": 64},
    ),
    (
        {"rope_type": "yarn", "type": "yarn", "factor": 4, "attention_factor": 1.5, "beta_fast": 16, "beta_slow": 1},
        {
            **{"type": "yarn", "factor": 4.0, "original_context_length": 256, "yarn_beta_fast": 16.0},
            "attn_factor": 1.5 / (0.1 * math.log(4) + 1),
        },
    ),
]


@pytest.mark.parametrize(("scaling", "expected"), SCALINGS)
def test_rope_scaling_in_either_spelling(tmp_path: Path, scaling: dict[str, Any], expected: dict[str, Any]) -> None:
    old = write_folder(tmp_path / "old", rope_theta=5e5, rope_scaling=scaling)
    new = write_folder(tmp_path / "new", rope_theta=None, rope_parameters=scaling | {"rope_theta": 5e5})
    for folder in (old, new):
        metadata = open_model_file(folder).metadata
        prefix = "llama.rope.scaling."
        assert {k[len(prefix) :]: v for k, v in metadata.items() if k.startswith(prefix)} == pytest.approx(expected)
        assert metadata["llama.rope.freq_base"] == 5e5


def test_llama_3_factors_are_a_tensor(tmp_path: Path) -> None:
    """Waves of 2 pi, 63, 628 and 6,283 positions: the first fits 64 four times, the second once, the others never."""
    file = open_model_file(write_folder(tmp_path / "m", rope_scaling=LLAMA3))
    info = file.tensors["rope_freqs.weight"]
    assert (info.shape, info.format, info.nbytes) == ((4,), FORMATS["F32"], 16)
    blend = (64 / (20 * math.pi) - 1) / 3
    expected = [1, 1 / ((1 - blend) / 8 + blend), 8, 8]
    assert file.float32("rope_freqs.weight") == pytest.approx(expected, rel=1e-6)
    file.release("rope_freqs.weight")
    assert not any(key.startswith("llama.rope.scaling") for key in file.metadata)


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    tensors = llama_tensors()
    file = open_model_file(write_folder(tmp_path / "both", tensors=tensors, tie_word_embeddings=True))
    assert "output.weight" not in file.tensors
    del tensors["lm_head.weight"]
    open_model_file(write_folder(tmp_path / "one", tensors=tensors, tie_word_embeddings=True))
    with pytest.raises(FileFormatError, match=r"lm_head\.weight is missing, and tie_word_embeddings is not true"):
        open_model_file(write_folder(tmp_path / "none", tensors=tensors))


def test_links_are_followed(tmp_path: Path) -> None:
    """A download cache keeps files elsewhere, under their hashes."""
    real = write_folder(tmp_path / "blobs")
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for path in real.iterdir():
        (linked / path.name).symlink_to(os.path.relpath(path, linked))
    assert open_model_file(linked).tensors.keys() == open_model_file(real).tensors.keys()


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "mamba"}, "model_type 'mamba' is not supported (supported: "),
    ({"model_type": ["llama"]}, "model_type ['llama'] is not supported"),
    ({"model_type": None}, "model_type is missing"),
    ({"new_trick": 1}, "unknown setting 'new_trick'; supported: "),
    ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is not supported"),
    ({"hidden_act": "relu"}, "hidden_act = 'relu' is not supported (supported: absent, 'silu')"),
    ({"attention_bias": True}, "attention_bias = True is not supported"),
    ({"hidden_size": None}, "hidden_size is missing"),
    ({"hidden_size": "32"}, "hidden_size is '32'; accepted: whole numbers"),
    ({"num_hidden_layers": True}, "num_hidden_layers is True; accepted"),
    ({"num_hidden_layers": 10**400}, "num_hidden_layers is 1000"),
    ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0; accepted: numbers over 0"),
    ({"vocab_size": 65}, "config.json says vocab_size 65, the embedding has 64 rows"),
    ({"num_attention_heads": 5}, "hidden_size 32 does not split over 5 heads"),
    ({"num_attention_heads": 32, "num_key_value_heads": 32}, "q_proj.weight': 32 rows do not split into 32 heads"),
    ({"num_hidden_layers": 1}, "tensor 'model.layers.1.input_layernorm.weight': by config.json, 1 must be under 1"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not supported"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_scaling: rope_type 'dynamic' is not supported"),
    ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0, "wide": 1}}, "rope_scaling: unknown setting 'wide'"),
    ({"rope_scaling": 4}, "rope_scaling is 4; an object is needed"),
    ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor 1 must be above low_freq_factor 1"),
    ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; accepted: true, false"),
]


@pytest.mark.parametrize(("change", "message"), SETTINGS)
def test_settings_are_refused_by_name(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises((FileFormatError, UnsupportedError), match=re.escape(message)):
        open_model_file(write_folder(tmp_path / "m", **change))


def changed(**changes: Any) -> Tensors:
    tensors = llama_tensors() | changes
    return {name: values for name, values in tensors.items() if values is not None}


BAD_TENSORS: list[tuple[dict[str, Any], str]] = [
    (
        {"model.layers.0.self_attn.rotary.weight": np.zeros(3, "<f4")},
        "'model.layers.0.self_attn.rotary.weight' has no part in",
    ),
    (
        {"model.layers.01.mlp.up_proj.weight": np.zeros((48, 32), "<f4")},
        "'model.layers.01.mlp.up_proj.weight' has no part in",
    ),
    ({"model.layers.7.mlp.up_proj.weight": np.zeros((48, 32), "<f4")}, "7 must be under 2"),
    ({Q: np.zeros((32, 32), "<f8")}, f"tensor '{Q}' is of type F64 (supported: F32, F16, BF16)"),
    ({Q: np.zeros((0, 32), "<f4")}, f"tensor '{Q}' has shape (0, 32): it holds nothing"),
    ({"model.embed_tokens.weight": None}, "tensor 'token_embd.weight' is missing"),
]


@pytest.mark.parametrize(("change", "message"), BAD_TENSORS)
def test_tensors_are_refused_by_name(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises((FileFormatError, UnsupportedError), match=re.escape(message)):
        open_model_file(write_folder(tmp_path / "m", tensors=changed(**change)))


def test_buffers_of_older_files_are_left_out(tmp_path: Path) -> None:
    tensors = changed(**{"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(4, "<f8")})
    assert len(open_model_file(write_folder(tmp_path / "m", tensors=tensors)).tensors) == len(tensors) - 1


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def with_index_too(folder: Path) -> None:
    write_index(folder, {"a": "b.safetensors"})


def index(weight_map: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        without_weights(folder)
        write_index(folder, weight_map)

    return change


def outside(folder: Path) -> None:
    """A sound file where no index may point."""
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    write_index(folder, dict.fromkeys(llama_tensors(), "../elsewhere.safetensors"))


def foreign_tensor(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    names = list(llama_tensors())
    write_safetensors(folder / "b.safetensors", {names[0]: np.zeros(2, "<f4"), "extra": np.zeros(2, "<f4")})
    write_index(folder, dict.fromkeys(names, "a.safetensors") | {"extra": "b.safetensors"})


def absent_tensor(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    write_index(folder, dict.fromkeys([*llama_tensors(), "zzz"], "a.safetensors"))


def config_text(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "config.json").write_text(text) and None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_weights, "holds neither model.safetensors nor model.safetensors.index.json"),
        (only_pickled, "pytorch_model.bin is not read, for such files can run code"),
        (with_index_too, "holds both model.safetensors and model.safetensors.index.json"),
        (outside, "would be in '../elsewhere.safetensors', which is no file of the folder"),
        (index({"a": "/etc/passwd"}), "would be in '/etc/passwd', which is no file"),
        (index({"a": "..safetensors"}), "would be in '..safetensors', which is no file"),
        (index({"a": "x.bin"}), "would be in 'x.bin', which is no file"),
        (index({"a": 3}), "would be in 3, which is no file"),
        (index({"a": "x.safetensors", "b": "y.safetensors"}), "x.safetensors is missing and 1 others"),
        (index({}), "weight_map must be an object"),
        (index([]), "weight_map must be an object"),
        (index({str(i): f"{i}.safetensors" for i in range(1001)}), "names 1001 files; at most 1000"),
        (foreign_tensor, "tensor 'model.embed_tokens.weight' does not belong here"),
        (absent_tensor, "tensor 'zzz' is not in the file"),
        (config_text("[" * 10_000), "config.json is not JSON"),
        (config_text('{"model_type": "llama", "model_type": "llama"}'), "the key 'model_type' appears twice"),
        (config_text('{"a": 1e999}'), "the number 1e999 is too large"),
        (config_text("{}"), "model_type is missing"),
    ],
)
def test_folders_are_refused_in_words(tmp_path: Path, change: Callable[[Path], None], message: str) -> None:
    folder = write_folder(tmp_path / "m")
    change(folder)
    with pytest.raises((FileFormatError, UnsupportedError), match=re.escape(message)):
        open_model_file(folder)
