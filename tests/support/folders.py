"""Hugging Face folders written by hand: random Llama models, and whatever else a hostile one may hold."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers

from phaseline.files.base import ModelFile

Tensors = Mapping[str, NDArray[Any]]

CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": 64,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
_DTYPES = {"<f4": "F32", "<f2": "F16", "<u2": "BF16", "<f8": "F64", "|i1": "I8"}


def write_folder(folder: Path, *, shards: int = 1, tensors: Tensors | None = None, **config: Any) -> Path:
    """A folder with a config of a tiny Llama model (`config` replaces keys) and its tensors; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    tensors = llama_tensors() if tensors is None else tensors
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return folder
    weight_map = {}
    for i in range(shards):
        name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[i::shards])
        write_safetensors(folder / name, part)
        weight_map |= dict.fromkeys(part, name)
    write_index(folder, weight_map)
    return folder


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def llama_tensors(seed: int = 0, dtype: str = "<f4", vocab: int = 64) -> dict[str, NDArray[Any]]:
    """Random tensors of the model that CONFIG describes. dtype: <f4, <f2 or <u2 (bf16)."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, Sequence[int]] = {"model.embed_tokens": (vocab, 32), "model.norm": (32,), "lm_head": (vocab, 32)}
    for n in range(2):
        p = f"model.layers.{n}."
        shapes |= {p + "input_layernorm": (32,), p + "post_attention_layernorm": (32,)}
        shapes |= {p + "self_attn.q_proj": (32, 32), p + "self_attn.o_proj": (32, 32)}
        shapes |= {p + "self_attn.k_proj": (16, 32), p + "self_attn.v_proj": (16, 32)}
        shapes |= {p + "mlp.gate_proj": (48, 32), p + "mlp.up_proj": (48, 32), p + "mlp.down_proj": (32, 48)}
    values = {f"{name}.weight": rng.normal(0, 0.3, shape).astype("<f4") for name, shape in shapes.items()}
    if dtype == "<u2":  # the upper half of a float32, cut
        return {name: (v.view("<u4") >> 16).astype("<u2") for name, v in values.items()}
    return {name: v.astype(dtype) for name, v in values.items()}


def write_tokenizer(folder: Path, *, chat_template: str | None = None) -> None:
    """Byte-level BPE without merges: <|bos|>, <|eos|>, <|im_start|>, <|im_end|> and the 256 bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    marks = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]
    library = tokenizers.Tokenizer(models.BPE({text: id for id, text in enumerate([*marks, *alphabet])}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(marks)
    library.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": marks[0], "eos_token": marks[1], "chat_template": chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_gguf(path: Path, file: ModelFile) -> Path:
    """A GGUF file of the same settings and tensors, without a tokenizer."""
    writer = GGUFWriter(path, file.metadata["general.architecture"])
    for key, value in file.metadata.items():
        if key != "general.architecture":
            writer.add_key_value(key, value, GGUFValueType.get_type(value))
    for name, info in file.tensors.items():
        raw = file.raw(name).reshape(*info.shape[:-1], -1)
        writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType[info.format.name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_safetensors(path: Path, tensors: Tensors) -> Path:
    """A file as the format has it; uint16 stands for bf16."""
    header, blobs, at = {}, [], 0
    for name, values in tensors.items():
        blob = values.tobytes()
        header[name] = {
            "dtype": _DTYPES[values.dtype.str],
            "shape": list(values.shape),
            "data_offsets": [at, at + len(blob)],
        }
        blobs.append(blob)
        at += len(blob)
    return write_image(path, json.dumps(header), b"".join(blobs))


def write_image(path: Path, header: str | bytes, data: bytes = b"", length: int | None = None) -> Path:
    """A file of this header and data, whatever they are; `length` instead of the header's own."""
    raw = header.encode() if isinstance(header, str) else header
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path
